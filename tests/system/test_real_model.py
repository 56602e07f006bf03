"""SmolLM2-135M-Instruct, a real model, through a whole installation, held against transformers and PEFT alone."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cli.standalone.stack import Stack, running_stack
from shared.base_models.catalog import Catalog, save_catalog
from shared.settings import Settings
from tests.support.smollm2 import smollm2_entry, smollm2_folder
from tests.system.loop import ROOT, Installation
from worker.training.lineage import GIT_SHA_VARIABLE, git_sha

REAL = "smollm2"
QUESTION = "What is the capital of France?"
TRAINING_ROWS, HELD_OUT_ROWS = 64, 8
SECONDS = 1200.0
pytestmark = pytest.mark.timeout(1800)


def tickets(name: str, count: int) -> bytes:
    """The first rows of one of the demo's files."""
    return b"".join((ROOT / "examples" / name).read_bytes().splitlines(keepends=True)[:count])


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installation]:
    """An installation that serves SmolLM2 and nothing else."""
    home = tmp_path_factory.mktemp("real")
    save_catalog(Settings(home=home).catalog_path, Catalog(bases=[smollm2_entry(REAL)]))
    commit = {GIT_SHA_VARIABLE: sha} if (sha := git_sha(os.environ)) else {}
    environment = commit | {"MENS_SAMPLE_ANSWERS": "0", "MENS_PUBLISH_TIMEOUT_SECONDS": "600"}
    with running_stack(Stack(home, REAL, environment=environment)) as stack:
        yield Installation(stack)


def submit(installation: Installation, **sections: dict[str, Any]) -> str:
    """Id of a job that learns tickets in a few steps."""
    contract: dict[str, Any] = {
        "model": {"name": REAL},
        "data": {
            "train_file": installation.upload_bytes("tickets.jsonl", tickets("tickets.jsonl", TRAINING_ROWS)),
            "validation_file": installation.upload_bytes(
                "held-out.jsonl", tickets("tickets.heldout.jsonl", HELD_OUT_ROWS)
            ),
        },
        "quant": {"base": "none"},
        "exec": {"epochs": 1, "batch_size": 4, "grad_accum": 1, "learning_rate": 6e-4, "checkpoint_every": 6},
        "artifact": {"alias": "tickets"},
    }
    for name, fields in sections.items():
        contract[name] = contract[name] | fields
    body = {"kind": "finetune", "name": "tickets", "contract": contract}
    return str(installation.call("POST", "/v1/jobs", json=body)["id"])


def finish(installation: Installation, job_id: str) -> dict[str, Any]:
    """The job, once it has succeeded."""
    job = installation.wait(job_id, lambda job: job["state"] in ("succeeded", "failed", "cancelled"), SECONDS, every=1)
    assert job["state"] == "succeeded", (job["error"], [event["message"] for event in job["events"]])
    return job


@pytest.fixture(scope="module")
def tuned(real: Installation) -> dict[str, Any]:
    """A finished job over the base in float32, with an alias."""
    return finish(real, submit(real))


def export(installation: Installation, adapter: str, folder: Path) -> Path:
    """The adapter as a PEFT folder, by the command line."""
    environment = {**os.environ, "MENS_HOME": str(installation.stack.home)}
    command = [sys.executable, "-m", "cli.main", "adapter", "export", adapter, "--to", str(folder)]
    done = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def independent_loss(base: Path, adapter: Path | None) -> float:
    """Mean loss of the held-out answers' tokens, by a program that has none of our code."""
    command = [sys.executable, str(ROOT / "tests" / "support" / "independent_loss.py"), str(base), str(adapter or "")]
    rows = tickets("tickets.heldout.jsonl", HELD_OUT_ROWS)
    done = subprocess.run(command, input=rows, cwd=base, capture_output=True, timeout=900, check=True)
    return float(json.loads(done.stdout)["loss"])


def test_greedy_answer_of_the_untuned_base_is_transformers_own(real: Installation) -> None:
    program = ROOT / "tests" / "support" / "independent_answer.py"
    command = [sys.executable, str(program), str(smollm2_folder()), QUESTION, "24"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900, check=True)
    body = {"model": REAL, "messages": [{"role": "user", "content": QUESTION}], "temperature": 0, "max_tokens": 24}
    answer = real.call("POST", "/v1/chat/completions", json=body)
    assert answer["choices"][0]["message"]["content"] == json.loads(done.stdout)["answer"]
    assert "Paris" in answer["choices"][0]["message"]["content"]


def test_reported_loss_is_that_of_transformers_and_peft(
    real: Installation, tuned: dict[str, Any], tmp_path: Path
) -> None:
    evaluation = tuned["result"]["self_evaluation"]
    assert evaluation["rows"] == HELD_OUT_ROWS
    adapter = export(real, tuned["result"]["adapter_id"], tmp_path / "peft")
    base, own = independent_loss(smollm2_folder(), None), independent_loss(smollm2_folder(), adapter)
    for measured in filter(None, (evaluation, evaluation.get("served"))):
        assert measured["loss"]["base"] == pytest.approx(base, rel=0.02)
        assert measured["loss"]["tuned"] == pytest.approx(own, rel=0.02)
    assert own < base / 3


def test_tuned_model_answers_in_the_trained_form(real: Installation, tuned: dict[str, Any]) -> None:
    prompt = json.loads(tickets("tickets.heldout.jsonl", 1))["messages"][:-1]
    body = {"model": "tickets", "messages": prompt, "temperature": 0, "max_tokens": 64}
    answer = real.call("POST", "/v1/chat/completions", json=body)["choices"][0]
    assert answer["finish_reason"] == "stop"
    assert json.loads(answer["message"]["content"]).keys() == {"service", "problem", "since", "city"}
