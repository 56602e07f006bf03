"""The trainer's share of a GPU's memory, if another program, such as a serving replica, uses the same GPU."""

from __future__ import annotations

import os
from collections.abc import Mapping

import torch

from shared.errors import Code, JobFailed
from shared.gpus.driver import query_programs
from shared.preflight.estimate import RUNTIME_BYTES

VARIABLE = "MENS_TRAINER_GPU_SHARE"
"""Environment variable of the worker's setting, which the worker has validated (`worker/settings.py`)."""


def gpu_share(environment: Mapping[str, str] = os.environ) -> float:
    """Return the trainer's share of a GPU's memory."""
    return float(environment.get(VARIABLE) or 1)


def keep_to_share(device: torch.device) -> None:
    """Let torch take no more of a GPU than the trainer's share, even while the rest is free: a replica that
    restarts needs all of its own part at once.
    """
    share = gpu_share()
    if share < 1:
        total = torch.cuda.get_device_properties(device).total_memory
        # Torch's allocator counts neither the context nor the memory that libraries allocate themselves.
        torch.cuda.set_per_process_memory_fraction(max(share / 2, share - RUNTIME_BYTES / total), device)


def memory_held(device: torch.device, *, needed: int, free: int) -> JobFailed:
    """Return the error for a job that would fit the GPU if other programs did not hold the memory.

    Args:
        needed: minimum number of bytes that the job needs.
        free: number of free bytes.
    """
    uuid = f"GPU-{getattr(torch.cuda.get_device_properties(device), 'uuid', '')}"
    holders = ", ".join(map(str, query_programs(uuid))) or "programs that the driver does not show here"
    return JobFailed(
        Code.GPU_MEMORY_HELD,
        f"The job needs at least {needed >> 20} MiB of the GPU's memory, of which {free >> 20} MiB are free. Held "
        f"by: {holders}.",
        remedy=(
            "The job is retried. End the programs that hold the memory, or give a replica on this GPU a smaller "
            "share (MENS_SERVING_GPU_MEMORY_UTILIZATION)."
        ),
        retryable=True,
    )
