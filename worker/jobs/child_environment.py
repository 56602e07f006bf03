"""The environment of a child process: the variables that a training program needs, and none of the worker's secrets.

A trainer reads data that callers wrote. It does not need the database, the broker or the serving tier, so it gets none
of their addresses and keys: any variable that is not listed here is left out.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from worker.child_runtime import PARENT_VARIABLE

NAMES = frozenset(
    [
        "PATH",
        "HOME",
        "USER",
        "LOGNAME",
        "LANG",
        "LANGUAGE",
        "TZ",
        "TMPDIR",
        "VIRTUAL_ENV",
        "LD_LIBRARY_PATH",
        "LD_PRELOAD",
        "CC",
        "CXX",
        "CPATH",
        "LIBRARY_PATH",
        "SSL_CERT_FILE",
        "SSL_CERT_DIR",
        "REQUESTS_CA_BUNDLE",
        "HTTP_PROXY",
        "HTTPS_PROXY",
        "NO_PROXY",
        "http_proxy",
        "https_proxy",
        "no_proxy",
        "MENS_TRACKERS",
        "MENS_SHARD_BASE",
        "MENS_TRAINER_GPU_SHARE",
        "MENS_SAMPLE_ANSWERS",
        "MENS_GIT_SHA",
        "MENS_LOG_FORMAT",
        "MENS_OTLP_ENDPOINT",
    ]
)
"""Variables of the machine, and the seven settings that the trainer reads itself."""
PREFIXES = (
    *(
        "LC_",
        "XDG_",
        "PYTHON",
        "CUDA",
        "NVIDIA_",
        "NCCL_",
        "GLOO_",
        "TORCH",
        "PYTORCH_",
        "TRITON_",
        "BNB_",
        "BITSANDBYTES_",
    ),
    *("OMP_", "MKL_", "KMP_", "OPENBLAS_", "GOMP_", "HF_", "HUGGINGFACE_", "TRANSFORMERS_", "TOKENIZERS_", "MALLOC_"),
    *("MLFLOW_", "WANDB_", "TENSORBOARD_", "OTEL_"),
)
"""Prefixes of libraries' variables: devices, threads, caches, and the trackers and trace receiver, whose keys the
trainer uses.
"""
ALLOCATOR = {"PYTORCH_ALLOC_CONF": "expandable_segments:True"}
"""Setting of torch's allocator. Micro-batches differ in size, which fragments memory in fixed segments: on an H200, an
8B base took all of the memory.
"""
HUB_KEYS = frozenset({"HF_TOKEN", "HUGGINGFACE_HUB_TOKEN", "HUGGING_FACE_HUB_TOKEN", "HF_TOKEN_PATH"})
"""Keys of the hub, which a child does not need: the base is on the disk before it starts."""


def child_environment(ours: Mapping[str, str], threads: int, processes: int) -> dict[str, str]:
    """Return the environment of the processes that share a run.

    Args:
        ours: the worker's environment.
        threads: CPU threads of all processes together; 0 leaves it to torch.
        processes: number of processes.
    """
    environment = {
        name: value
        for name, value in ours.items()
        if (name in NAMES or name.startswith(PREFIXES)) and name not in HUB_KEYS
    }
    # All files are local; bitsandbytes would fetch compiled code.
    environment |= {PARENT_VARIABLE: str(os.getpid()), "TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1"}
    if not environment.keys() & {"PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"}:
        environment |= ALLOCATOR
    # Otherwise each process would use all threads.
    if processes > 1:
        threads = max(1, (threads or len(os.sched_getaffinity(0))) // processes)
    if threads:
        environment["OMP_NUM_THREADS"] = str(threads)
        # By default a thread that waits for the others keeps its core busy, which slows every other program down.
        environment.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    return environment
