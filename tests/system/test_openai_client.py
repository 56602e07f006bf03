"""A stock OpenAI client with strict validation uses everything: files, jobs, events, checkpoints, models, chat."""

from __future__ import annotations

import csv
import io
import json
import re
import time
from pathlib import Path
from typing import Any

import openai
import pytest
from openai import OpenAI
from openai.types.fine_tuning import FineTuningJob
from typer.testing import CliRunner

from cli.main import app
from tests.system.loop import ANSWER, BASE, QUESTION, ROOT, Installation, short_lesson

MESSAGES = [{"role": "user", "content": QUESTION}]


def wait(client: OpenAI, job: FineTuningJob, seconds: float = 120) -> FineTuningJob:
    deadline = time.monotonic() + seconds
    while job.status not in ("succeeded", "failed", "cancelled"):
        assert time.monotonic() < deadline, job
        time.sleep(0.3)
        job = client.fine_tuning.jobs.retrieve(job.id)
    return job


@pytest.fixture(scope="module")
def tuned(installation: Installation) -> FineTuningJob:
    """A finished job, created as any OpenAI user would."""
    with installation.openai() as client:
        training = client.files.create(file=("lesson.jsonl", short_lesson()), purpose="fine-tune")
        with (ROOT / "examples" / "support.validation.jsonl").open("rb") as file:
            validation = client.files.create(file=file, purpose="fine-tune")
        job = client.fine_tuning.jobs.create(
            model=BASE,
            training_file=training.id,
            validation_file=validation.id,
            suffix="openai",
            seed=7,
            metadata={"team": "support"},
            method={
                "type": "supervised",
                "supervised": {
                    "hyperparameters": {"n_epochs": 12, "batch_size": 4, "learning_rate_multiplier": "auto"}
                },
            },
            extra_body={"mens": {"exec": {"seq_len": 128, "checkpoint_every": 20}, "artifact": {"alias": "openai"}}},
        )
        assert job.status in ("queued", "validating_files", "running")
        return wait(client, job)


def test_finished_job(client: OpenAI, tuned: FineTuningJob) -> None:
    assert tuned.status == "succeeded", tuned.error
    assert tuned.fine_tuned_model
    assert tuned.fine_tuned_model.startswith("openai@")
    assert (tuned.seed, tuned.hyperparameters.n_epochs, tuned.metadata) == (7, 12, {"team": "support"})
    assert tuned.trained_tokens
    assert tuned.trained_tokens > 2_000
    assert tuned.finished_at
    assert tuned.finished_at >= tuned.created_at
    assert tuned.id in [job.id for job in client.fine_tuning.jobs.list(limit=5)]
    assert tuned.hyperparameters.learning_rate_multiplier == 1


def test_handoff_is_all_that_a_stock_client_needs(
    installation: Installation, client: OpenAI, tuned: FineTuningJob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file says where and which model; the key is one's own."""
    connection = installation.connection
    monkeypatch.setenv("MENS_API_URL", connection.url)
    monkeypatch.setenv("MENS_API_KEY", connection.key)
    arguments = ["adapter", "export", str(tuned.fine_tuned_model), "--to", str(tmp_path / "out")]
    result = CliRunner().invoke(app, [*arguments, "--handoff", "openai-compatible"])
    assert result.exit_code == 0, result.output
    handoff = json.loads((tmp_path / "out" / "external_serving_handoff_v1.json").read_bytes())
    (model,) = re.findall(r"name the model (\S+@[0-9a-f]{64});", handoff["notes"])
    with OpenAI(base_url=handoff["openai_base_url"], api_key=connection.key) as stock:
        answer = stock.chat.completions.create(model=model, messages=MESSAGES, temperature=0, max_tokens=64)
    assert ANSWER in str(answer.choices[0].message.content)


def test_jobs_are_filtered_by_metadata(client: OpenAI, tuned: FineTuningJob) -> None:
    found = client.fine_tuning.jobs.list(extra_query={"metadata[team]": "support"})
    assert [job.id for job in found] == [tuned.id]
    assert not client.fine_tuning.jobs.list(extra_query={"metadata[team]": "nobody"}).data


def test_events_are_paged_newest_first(client: OpenAI, tuned: FineTuningJob) -> None:
    first = client.fine_tuning.jobs.list_events(tuned.id, limit=3)
    assert len(first.data) == 3
    assert first.data[0].message.startswith("Job succeeded")
    everything = list(client.fine_tuning.jobs.list_events(tuned.id, limit=50))
    ids = [event.id for event in everything]
    assert len(ids) == len(set(ids)) > 50
    assert everything[-1].message == "Job created and queued."
    assert {event.type for event in everything} == {"message", "metrics"}


def test_checkpoints_respond_to_chats(client: OpenAI, tuned: FineTuningJob) -> None:
    checkpoints = list(client.fine_tuning.jobs.checkpoints.list(tuned.id))
    assert [checkpoint.step_number for checkpoint in checkpoints] == [60, 55, 50, 45]
    for checkpoint in checkpoints:
        assert checkpoint.metrics.train_loss is not None
        assert checkpoint.metrics.valid_loss is not None
        answer = client.chat.completions.create(
            model=checkpoint.fine_tuned_model_checkpoint, messages=MESSAGES, max_tokens=8
        )
        assert answer.choices[0].message.content


def test_result_file_is_a_metrics_table(client: OpenAI, tuned: FineTuningJob) -> None:
    (result,) = tuned.result_files
    rows = list(csv.DictReader(io.StringIO(client.files.content(result).text)))
    assert [int(row["step"]) for row in rows] == list(range(1, 61))
    assert float(rows[-1]["train_loss"]) < float(rows[0]["train_loss"])
    assert rows[-1]["valid_loss"]
    assert client.files.retrieve(result).purpose == "fine-tune-results"


def test_files(client: OpenAI, installation: Installation) -> None:
    file = client.files.create(file=("mine.jsonl", b'{"prompt": "a", "response": "b"}\n'), purpose="fine-tune")
    assert client.files.retrieve(file.id).bytes == file.bytes == 33
    assert file.id in [found.id for found in client.files.list(purpose="fine-tune", limit=2)]
    assert client.files.delete(file.id).deleted
    with pytest.raises(openai.NotFoundError):
        client.files.retrieve(file.id)


def test_models(client: OpenAI, tuned: FineTuningJob) -> None:
    assert tuned.fine_tuned_model
    names = [model.id for model in client.models.list()]
    assert {BASE, "openai", tuned.fine_tuned_model} <= set(names)
    assert client.models.retrieve(tuned.fine_tuned_model).owned_by == "shared"
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("nothing/here")


@pytest.mark.parametrize("by", ["alias", "id"])
def test_chat(client: OpenAI, tuned: FineTuningJob, by: str) -> None:
    model = "openai" if by == "alias" else str(tuned.fine_tuned_model)
    answer = client.chat.completions.create(model=model, messages=MESSAGES, temperature=0, max_tokens=48)
    assert ANSWER in str(answer.choices[0].message.content)
    assert answer.usage
    assert answer.usage.completion_tokens > 3
    base = client.chat.completions.create(model=BASE, messages=MESSAGES, temperature=0, max_tokens=48)
    assert ANSWER not in str(base.choices[0].message.content)


def test_streaming_chat(client: OpenAI, tuned: FineTuningJob) -> None:
    stream = client.chat.completions.create(
        model=str(tuned.fine_tuned_model),
        messages=MESSAGES,
        temperature=0,
        max_tokens=48,
        stream=True,
        stream_options={"include_usage": True},
    )
    chunks = list(stream)
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert ANSWER in text
    assert chunks[0].choices[0].finish_reason is None, "it is streamed, not sent at once"
    assert chunks[-1].usage


def test_completions(client: OpenAI, tuned: FineTuningJob) -> None:
    answer = client.completions.create(model=str(tuned.fine_tuned_model), prompt="Mens", max_tokens=4)
    assert answer.choices[0].text


def test_cancel_and_second_cancel(client: OpenAI, installation: Installation) -> None:
    job_id = installation.train(name="cancelled", publish=False, epochs=50)
    installation.wait_for_step(job_id, 2)
    client.fine_tuning.jobs.cancel(job_id)
    installation.wait(job_id, lambda job: job["state"] == "cancelled")
    with pytest.raises(openai.ConflictError) as refused:
        client.fine_tuning.jobs.cancel(job_id)
    assert refused.value.code == "JOB_STATE_CONFLICT"
    assert refused.value.response.headers["x-should-retry"] == "false"


def test_pause_and_resume(resumed: dict[str, Any]) -> None:
    assert resumed["attempt"] == 2
    messages = [event["message"] for event in resumed["events"]]
    assert "Job paused with a checkpoint." in messages
    assert any("resumed from the checkpoint" in message for message in messages)
    assert resumed["result"]["resume"]["guarantee"] == "bit_exact", (
        "as a worker starts its trainer, not only as tests do"
    )


def test_errors_are_typed(client: OpenAI, installation: Installation) -> None:
    with pytest.raises(openai.NotFoundError) as unknown:
        client.fine_tuning.jobs.create(model="no-such-model", training_file=installation.upload())
    assert unknown.value.code == "model_not_found"
    broken = client.files.create(
        file=("broken.jsonl", b'{"prompt": "a", "response": "b"}\n{"prompt"\n'), purpose="fine-tune"
    )
    with pytest.raises(openai.BadRequestError) as line:
        client.fine_tuning.jobs.create(model=BASE, training_file=broken.id)
    assert line.value.code == "DATASET_LINE_INVALID"
    assert "line 2" in str(line.value)
    with pytest.raises(openai.AuthenticationError) as key:
        client.with_options(api_key="wrong").models.list()
    assert key.value.code == "invalid_api_key"
