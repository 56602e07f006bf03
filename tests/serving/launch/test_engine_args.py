"""The command line and environment of vLLM, recorded in golden files: a change here changes what production runs.

``MENS_UPDATE_GOLDEN=1`` writes the files again.
"""

from __future__ import annotations

import json
import os
import shlex
from pathlib import Path

import pytest

from serving.launch.engine_args import engine_argv, engine_env
from serving.settings import ServingSettings, load_settings
from shared.errors import InvalidRequest
from tests.serving.launch.launches import CASES, Case, launch

GOLDEN = Path(__file__).parents[1] / "golden"


@pytest.fixture(autouse=True)
def no_environment(monkeypatch):
    for name in [name for name in os.environ if name.upper().startswith("MENS_")]:
        if name != "MENS_UPDATE_GOLDEN":
            monkeypatch.delenv(name)


def written(argv: list[str], environment: dict[str, str]) -> str:
    """One option with its value per line, then the environment."""
    starts = [index for index, part in enumerate(argv) if part.startswith("-")]
    lines = [shlex.join(argv[start:end]) for start, end in zip(starts, [*starts[1:], None], strict=True)]
    return "\n".join([*lines, "", *(f"{name}={value}" for name, value in sorted(environment.items()))]) + "\n"


@pytest.mark.parametrize("name", CASES)
def test_command_line_matches_golden_file(name, tmp_path):
    prepared = launch(CASES[name], tmp_path)
    found = written(engine_argv(prepared), engine_env(prepared))
    path = GOLDEN / f"{name}.txt"
    if os.environ.get("MENS_UPDATE_GOLDEN"):
        path.parent.mkdir(exist_ok=True)
        path.write_text(found)
    assert found == path.read_text()


def test_every_golden_file_has_a_case():
    assert {path.stem for path in GOLDEN.iterdir()} == CASES.keys()


def test_key_is_not_on_the_command_line(tmp_path):
    prepared = launch(CASES["cuda"], tmp_path)
    assert prepared.settings.serving_key.get_secret_value() == engine_env(prepared)["VLLM_API_KEY"] == "secret"
    assert "secret" not in " ".join(engine_argv(prepared))
    assert "secret" not in str(prepared)


def test_engine_process_reads_the_chosen_values(monkeypatch, tmp_path):
    """The guard reports these limits, and the store refuses adapters by them."""
    for name, value in engine_env(launch(CASES["cpu"], tmp_path)).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("MENS_SERVING_BASE", "mens-tiny")
    settings = load_settings()
    assert (settings.serving_max_lora_rank, settings.serving_max_cpu_loras) == (32, 1024)
    assert (settings.serving_dtype, settings.serving_base_digest) == ("float32", "d" * 64)


@pytest.mark.parametrize(
    ("requested", "rounded"), [(1, 1), (2, 8), (8, 8), (17, 32), (257, 320), (512, 512), (None, None)]
)
def test_rank_is_rounded_up_to_what_vllm_accepts(requested, rounded):
    assert ServingSettings(serving_base="b", serving_max_lora_rank=requested).serving_max_lora_rank == rounded


INVALID = [
    ({}, "MENS_SERVING_BASE: it must name a base model"),
    ({"MENS_SERVING_BASE": ""}, "MENS_SERVING_BASE: it must name a base model"),
    ({"MENS_SERVING_BASE": "b", "MENS_SERVING_MAX_LORA_RANK": "513"}, "MENS_SERVING_MAX_LORA_RANK:"),
    ({"MENS_SERVING_BASE": "b", "MENS_SERVING_PORT": "tcp://1.2.3.4"}, "MENS_SERVING_PORT:"),
    ({"MENS_SERVING_BASE": "b", "MENS_SERVING_HOST": "0.0.0.0"}, "serving_key must be set"),
    ({"MENS_SERVING_BASE": "b", "MENS_SERVING_TENSOR_PARALLEL": "2"}, "serving_tensor_parallel needs serving_device"),
    ({"MENS_SERVING_BASE": "b", "MENS_SERVING_PIPELINE_PARALLEL": "2"}, "serving_pipeline_parallel needs serving_dev"),
    ({"MENS_SERVING_BASE": "b", "MENS_SERVING_QUANTIZATION": "mxfp4"}, "serving_quantization needs serving_device"),
    ({"MENS_SERVING_BASE": "b", "MENS_SERVING_QUANTIZATION": "bitsandbytes"}, "MENS_SERVING_QUANTIZATION:"),
    ({"MENS_SERVING_BASE": "b", "MENS_SERVING_MAX_CPU_LORAS": "2"}, "smaller than serving_max_loras"),
    ({"MENS_SERVING_BASE": "b", "MENS_SERVING_TOOL_PARSER": "--help"}, "MENS_SERVING_TOOL_PARSER:"),
    ({"MENS_SERVING_BASE": "b", "MENS_SERVING_GPU_MEMORY_UTILIZATION": "90"}, "MENS_SERVING_GPU_MEMORY_UTILIZATION:"),
]


@pytest.mark.parametrize(("variables", "message"), INVALID)
def test_invalid_settings_are_named(monkeypatch, variables, message):
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(InvalidRequest, match=message) as caught:
        load_settings()
    assert caught.value.code == "SETTINGS_INVALID"


def test_empty_variable_is_unset(monkeypatch):
    """Compose files pass on `${NAME:-}`."""
    monkeypatch.setenv("MENS_SERVING_BASE", "b")
    for name in ("MAX_LORA_RANK", "MAX_CPU_LORAS", "LORA_MEMORY_BYTES", "QUANTIZATION", "TOOL_PARSER"):
        monkeypatch.setenv(f"MENS_SERVING_{name}", "")
    settings = load_settings()
    assert settings.serving_max_lora_rank is settings.serving_lora_memory_bytes is settings.serving_tool_parser is None


def test_log_of_objects_is_vllms_and_uvicorns(tmp_path):
    prepared = launch(Case("qwen3-8b", {"log_format": "json"}), tmp_path)
    argv, environment = engine_argv(prepared), engine_env(prepared)
    path = Path(argv[argv.index("--log-config-file") + 1])
    assert environment["VLLM_LOGGING_CONFIG_PATH"] == str(path)
    assert json.loads(path.read_text())["loggers"].keys() == {"vllm", "uvicorn"}
    assert "--log-config-file" not in engine_argv(launch(CASES["cpu"], tmp_path))
