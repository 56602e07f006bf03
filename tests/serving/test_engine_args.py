"""The command line and environment of vLLM, frozen: a change here is a change of what production runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from serving.engine_args import engine_argv, engine_env
from serving.settings import LORA_RANKS, ServingSettings
from shared.errors import InvalidRequest

BASE = Path("/models/tiny")


@pytest.fixture(autouse=True)
def no_environment(monkeypatch):
    import os

    for name in [name for name in os.environ if name.upper().startswith("MENS_")]:
        monkeypatch.delenv(name)


def test_cpu_command_line():
    settings = ServingSettings(serving_base="mens-tiny", serving_key="secret")
    assert engine_argv(settings, BASE) == [
        "-m", "vllm.entrypoints.openai.api_server",
        "--host", "127.0.0.1",
        "--port", "8001",
        "--model", "/models/tiny",
        "--served-model-name", "mens-tiny",
        "--middleware", "serving.wall.Wall",
        "--max-loras", "4",
        "--max-cpu-loras", "64",
        "--max-lora-rank", "16",
        "--dtype", "float32",
        "--kv-cache-memory-bytes", "67108864",
        "--distributed-executor-backend", "uni",
        "--disable-access-log-for-endpoints", "/health,/metrics",
        "--enable-lora",
        "--disable-fastapi-docs",
    ]  # fmt: skip


def test_cuda_command_line():
    settings = ServingSettings(
        serving_base="qwen3-8b",
        serving_key="secret",
        serving_device="cuda",
        serving_host="0.0.0.0",
        serving_port=9000,
        serving_max_loras=8,
        serving_max_cpu_loras=32,
        serving_max_lora_rank=33,
        serving_max_model_len=4096,
        serving_tensor_parallel=2,
    )
    assert engine_argv(settings, BASE) == [
        "-m", "vllm.entrypoints.openai.api_server",
        "--host", "0.0.0.0",
        "--port", "9000",
        "--model", "/models/tiny",
        "--served-model-name", "qwen3-8b",
        "--middleware", "serving.wall.Wall",
        "--max-loras", "8",
        "--max-cpu-loras", "32",
        "--max-lora-rank", "64",
        "--max-model-len", "4096",
        "--dtype", "auto",
        "--tensor-parallel-size", "2",
        "--disable-access-log-for-endpoints", "/health,/metrics",
        "--enable-lora",
        "--disable-fastapi-docs",
    ]  # fmt: skip


COMMON_ENV = {
    "VLLM_API_KEY": "secret",
    "MENS_SERVING_BASE_DIGEST": "d1",
    "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "True",
    "VLLM_SKIP_MODEL_NAME_VALIDATION": "0",
    "VLLM_PLUGINS": "mens_lora_resolver",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_DO_NOT_TRACK": "1",
    "HF_HUB_OFFLINE": "1",
}


def test_environment_of_each_device():
    cpu = ServingSettings(serving_base="b", serving_key="secret", serving_cpu_threads=2)
    cuda = ServingSettings(serving_base="b", serving_key="secret", serving_device="cuda")
    assert engine_env(cuda, "d1") == COMMON_ENV
    assert engine_env(cpu, "d1") == COMMON_ENV | {
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "OMP_NUM_THREADS": "2",
    }


def test_a_given_dtype_and_cache_win_over_the_defaults():
    settings = ServingSettings(serving_base="b", serving_dtype="bfloat16", serving_kv_cache_bytes=1 << 30)
    argv = engine_argv(settings, BASE)
    assert argv[argv.index("--dtype") + 1] == "bfloat16"
    assert argv[argv.index("--kv-cache-memory-bytes") + 1] == str(1 << 30)


@pytest.mark.parametrize(("asked", "given"), [(1, 1), (2, 8), (8, 8), (17, 32), (257, 320), (512, 512)])
def test_rank_is_rounded_up_to_what_vllm_takes(asked, given):
    assert ServingSettings(serving_base="b", serving_max_lora_rank=asked).serving_max_lora_rank == given


def test_ranks_are_vllms_own():
    config = pytest.importorskip("vllm.config.lora")
    assert config.MaxLoRARanks.__args__ == LORA_RANKS


BAD = [
    ({}, "MENS_SERVING_BASE: it must name a base model"),
    ({"MENS_SERVING_BASE": ""}, "MENS_SERVING_BASE: it must name a base model"),
    ({"MENS_SERVING_BASE": "b", "MENS_SERVING_MAX_LORA_RANK": "513"}, "MENS_SERVING_MAX_LORA_RANK:"),
    ({"MENS_SERVING_BASE": "b", "MENS_SERVING_PORT": "tcp://1.2.3.4"}, "MENS_SERVING_PORT:"),
    ({"MENS_SERVING_BASE": "b", "MENS_SERVING_HOST": "0.0.0.0"}, "serving_key must be set"),
    ({"MENS_SERVING_BASE": "b", "MENS_SERVING_TENSOR_PARALLEL": "2"}, "needs serving_device=cuda"),
    ({"MENS_SERVING_BASE": "b", "MENS_SERVING_MAX_CPU_LORAS": "2"}, "smaller than serving_max_loras"),
]


@pytest.mark.parametrize(("variables", "message"), BAD)
def test_wrong_settings_are_named(monkeypatch, variables, message):
    from serving.settings import load_settings

    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(InvalidRequest, match=message) as caught:
        load_settings()
    assert caught.value.code == "SETTINGS_INVALID"
