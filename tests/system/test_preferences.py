"""Preference tuning through a whole installation: OpenAI's client and ``mens train`` create the jobs, the tuned model answers."""

from __future__ import annotations

import csv
import io
import json
import math
import time
from pathlib import Path

import pytest
from openai import OpenAI
from openai.types.fine_tuning import FineTuningJob
from typer.testing import CliRunner

from cli.main import app
from tests.support.preference_rows import FORMS
from tests.system.loop import BASE, Installation

QUESTIONS = [f"What is a {word}?" for word in ("bug", "file", "loop", "name", "test", "row", "list", "key")]
SHORT, LONG = "A word.", "I am sorry, I do not know what that is."


def pairs() -> bytes:
    """Pairs in every form, of which the short answer is preferred."""
    rows = [FORMS[number % len(FORMS)](question, SHORT, LONG) for number, question in enumerate(QUESTIONS * 3)]
    return b"".join(json.dumps(row).encode() + b"\n" for row in rows)


@pytest.fixture(scope="module")
def preferred(installation: Installation) -> FineTuningJob:
    """A finished job on pairs, created as any OpenAI user would."""
    with installation.openai() as client:
        file = client.files.create(file=("pairs.jsonl", pairs()), purpose="fine-tune")
        job = client.fine_tuning.jobs.create(
            model=BASE,
            training_file=file.id,
            validation_file=file.id,
            suffix="preferred",
            method={"type": "dpo", "dpo": {"hyperparameters": {"n_epochs": 6, "batch_size": 4, "beta": 0.2}}},
            extra_body={"mens": {"exec": {"learning_rate": 2e-3}, "artifact": {"alias": "preferred"}}},
        )
        return finished(client, job)


def finished(client: OpenAI, job: FineTuningJob) -> FineTuningJob:
    """Wait until a job has ended."""
    deadline = time.monotonic() + 150
    while job.status not in ("succeeded", "failed", "cancelled"):
        assert time.monotonic() < deadline, job
        time.sleep(0.3)
        job = client.fine_tuning.jobs.retrieve(job.id)
    return job


def test_job_is_of_the_method_that_was_requested(preferred: FineTuningJob) -> None:
    assert preferred.status == "succeeded", preferred.error
    assert preferred.method is not None
    assert preferred.method.type == "dpo"
    assert preferred.method.dpo is not None
    assert preferred.method.dpo.hyperparameters is not None
    assert (preferred.method.dpo.hyperparameters.beta, preferred.method.dpo.hyperparameters.n_epochs) == (0.2, 6)


def test_events_and_result_file_have_the_rewards(client: OpenAI, preferred: FineTuningJob) -> None:
    events = [
        event.data for event in client.fine_tuning.jobs.list_events(preferred.id, limit=100) if event.type == "metrics"
    ]
    first = min((data for data in events if "train_loss" in data), key=lambda data: data["step"])
    assert first["train_loss"] == pytest.approx(math.log(2), abs=1e-4)
    rows = list(csv.DictReader(io.StringIO(client.files.content(preferred.result_files[0]).text)))
    assert float(rows[-1]["reward_margin"]) > float(rows[0]["reward_margin"])
    assert float(rows[-1]["train_loss"]) < 0.8 * math.log(2)


def test_checkpoints_are_listed(client: OpenAI, preferred: FineTuningJob) -> None:
    checkpoints = list(client.fine_tuning.jobs.checkpoints.list(preferred.id))
    assert checkpoints
    assert all(checkpoint.metrics.valid_loss is not None for checkpoint in checkpoints)


def test_the_tuned_model_answers_by_its_alias(client: OpenAI, preferred: FineTuningJob) -> None:
    assert preferred.fine_tuned_model
    answer = client.chat.completions.create(
        model="preferred", messages=[{"role": "user", "content": QUESTIONS[0]}], temperature=0, max_tokens=16
    )
    assert answer.choices[0].message.content is not None


def test_adapter_says_how_it_was_tuned(installation: Installation, preferred: FineTuningJob) -> None:
    manifest = installation.call("GET", f"/v1/adapters/{preferred.fine_tuned_model}")["manifest"]
    assert manifest["method"] == "dpo"
    assert (manifest["preference"]["beta"], manifest["preference"]["reference"]) == (0.2, "base")


def test_supervised_jobs_and_one_on_pairs_continue_each_other(installation: Installation, client: OpenAI) -> None:
    """SFT, SFT, DPO, each from the previous model, created and followed by OpenAI's client alone."""
    chats = [
        {"messages": [{"role": "user", "content": each}, {"role": "assistant", "content": LONG}]} for each in QUESTIONS
    ]
    lessons = b"".join(json.dumps(chat).encode() + b"\n" for chat in chats)
    files = {
        name: client.files.create(file=(f"{name}.jsonl", content), purpose="fine-tune").id
        for name, content in (("supervised", lessons), ("dpo", pairs()))
    }
    model, steps = BASE, []
    for method in ("supervised", "supervised", "dpo"):
        asked = {"type": method, method: {"hyperparameters": {"n_epochs": 1, "batch_size": 4}}}
        job = client.fine_tuning.jobs.create(model=model, training_file=files[method], method=asked)
        job = finished(client, job)
        assert job.status == "succeeded", job.error
        assert job.fine_tuned_model
        steps.append((model, job.fine_tuned_model))
        model = job.fine_tuned_model
    manifests = [installation.call("GET", f"/v1/adapters/{made}")["manifest"] for _, made in steps]
    assert [manifest.get("method", "supervised") for manifest in manifests] == ["supervised", "supervised", "dpo"]
    assert [(manifest.get("parent") or {"id": BASE})["id"] for manifest in manifests] == [old for old, _ in steps]
    assert manifests[-1]["preference"]["reference"] == "parent"
    answer = client.chat.completions.create(
        model=model, messages=[{"role": "user", "content": QUESTIONS[0]}], temperature=0, max_tokens=16
    )
    assert answer.choices[0].message.content is not None


def test_mens_train_names_the_method(
    installation: Installation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MENS_API_URL", installation.connection.url)
    monkeypatch.setenv("MENS_API_KEY", installation.connection.key)
    path = tmp_path / "pairs.jsonl"
    path.write_bytes(pairs())
    command = ["train", str(path), "--model", BASE, "--no-publish"]
    refused = CliRunner().invoke(app, command)
    assert (refused.exit_code, "--method dpo" in refused.output) == (1, True)
    trained = CliRunner().invoke(app, [*command, "--method", "dpo", "--sft-weight", "0.2"])
    assert trained.exit_code == 0, trained.output
