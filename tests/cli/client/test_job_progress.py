"""Following a job: its events, and outages of the API."""

from __future__ import annotations

import io
from typing import Any

import httpx
import pytest
import typer
from rich.console import Console

from cli.client import job_progress
from cli.client.connection import Connection, connect
from cli.client.job_progress import describe_progress, describe_wait, follow, poll
from shared.database.job_states import Stage
from shared.database.leases import Leases
from shared.database.records import Kind
from shared.errors import Code, JobFailed
from shared.job_progress import (
    EvaluationProgress,
    MergeProgress,
    ProgressPart,
    SelfEvaluationProgress,
    TrainingProgress,
)
from tests.support.builders import claimed
from tests.support.cli_installation import CliInstallation

PROGRESS = {"step": 140, "total_steps": 1000, "loss": 1.5, "eta_seconds": 26}
EXEC = {"batch_size": 1, "grad_accum": 1, "epochs": 1, "learning_rate": 0.1}
PLAN = {"train": {"rows": 9}, "validation_rows": 0, "optimizer_steps": 9}
KILLED = JobFailed(Code.TRAINER_KILLED, "The trainer was killed.", retryable=True)


def test_each_event_is_yielded_once(installation: CliInstallation, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_progress, "POLL_SECONDS", 0.0)
    jobs = installation.services.jobs
    leases = Leases(installation.services.database, 60)
    lease = claimed(jobs, leases)
    versions = poll(lease.job.id, connect())
    seen = [event["message"] for event in next(versions)["events"]]
    leases.fail(lease, KILLED)
    seen += [event["message"] for event in next(versions)["events"]]
    jobs.cancel(lease.job.id)
    seen += [event["message"] for version in versions for event in version["events"]]
    assert seen == [event.message for event in jobs.events(lease.job.id)]


def test_short_outage_is_waited_for(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    finished = {"state": "succeeded", "events": []}
    respond(monkeypatch, httpx.ConnectError("refused"), httpx.Response(503), job(finished))
    assert list(poll("ftjob-1", Connection("http://api", "key"))) == [finished]
    assert capsys.readouterr().err == "http://api does not respond; trying again\n"


def test_long_outage_ends_the_command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(job_progress, "OUTAGE_SECONDS", -1.0)
    respond(monkeypatch, httpx.Response(503))
    with pytest.raises(typer.Exit):
        list(poll("ftjob-1", Connection("http://api", "key")))
    assert "`mens jobs watch ftjob-1`" in capsys.readouterr().err


def test_job_that_was_queued_again_shows_its_place_and_no_remaining_time(monkeypatch: pytest.MonkeyPatch) -> None:
    place = {"position": 2, "explanation": "A job before it is older."}
    known = {"events": [], "stage": None, "progress": PROGRESS}
    respond(
        monkeypatch,
        job(known | {"state": "running", "stage": "train"}),
        job(known | {"state": "queued", "queue": place}),
        job(known | {"state": "succeeded", "queue": None}),
    )
    console = Console(file=io.StringIO(), force_terminal=False)
    follow("ftjob-1", console, Connection("http://api", "key"))
    assert console.file.getvalue().splitlines() == [
        "train  step 140/1000  loss 1.500  stage ends in 0:26",
        "queued  2 in the queue. A job before it is older.",
        "succeeded  step 140/1000  loss 1.500",
    ]


@pytest.mark.parametrize("state", ["queued", "paused", "failed"])
def test_remaining_time_is_of_running_jobs_alone(state: str) -> None:
    assert describe_progress({"state": state, "progress": PROGRESS}) == "step 140/1000  loss 1.500"
    assert describe_progress({"state": "running", "progress": PROGRESS}).endswith("stage ends in 0:26")


@pytest.mark.parametrize("queue", [{}, {"queue": None}])
def test_queued_job_without_a_place_says_nothing_of_one(queue: dict[str, Any]) -> None:
    assert describe_wait({"state": "queued"} | queue) == ""


def job(content: dict[str, Any]) -> httpx.Response:
    return httpx.Response(200, json=content, headers={"ETag": "1"})


def respond(monkeypatch: pytest.MonkeyPatch, *script: httpx.Response | Exception) -> None:
    """Let the API give these responses, one per request."""
    left = list(script)

    def respond_next(_request: httpx.Request) -> httpx.Response:
        if isinstance(left[0], Exception):
            raise left.pop(0)
        return left.pop(0)

    monkeypatch.setattr(job_progress, "POLL_SECONDS", 0.0)
    client = httpx.Client(base_url="http://api", transport=httpx.MockTransport(respond_next))
    monkeypatch.setattr(Connection, "client", lambda _self: client)


@pytest.mark.parametrize(
    ("stored", "line"),
    [
        ({}, ""),
        ({"storing": ["d" * 64]}, ""),
        ({"stored_checkpoints": {"step-1": "d" * 64}}, ""),
        ({"fraction": 1.0, "storing": []}, "100 %"),
        (MergeProgress(shard=1, of=4, fraction=0.25).model_dump(), "shard 1/4"),
        (
            PROGRESS | SelfEvaluationProgress(activity="sample_answers", items_done=3, items_total=8).model_dump(),
            "sample answers 3/8",
        ),
        (
            EvaluationProgress(items_done=2, items_total=60, eta_seconds=90.0).model_dump(),
            "item 2/60  stage ends in 1:30",
        ),
        ({"items_done": 2, "items_total": 60}, "item 2/60"),
        ({"kind": "a later release's"}, ""),
    ],
)
def test_each_kind_of_progress_has_its_line(stored: dict[str, Any], line: str) -> None:
    assert describe_progress({"state": "running", "stage": "self_evaluation", "progress": stored}) == line


@pytest.mark.parametrize(("state", "stage"), [("running", "publishing"), ("succeeded", None), ("failed", None)])
def test_counts_of_the_self_evaluation_end_with_its_stage(state: str, stage: str | None) -> None:
    stored = SelfEvaluationProgress(activity="sample_answers", items_done=0, items_total=8).model_dump()
    assert describe_progress({"state": state, "stage": stage, "progress": stored}) == ""


@pytest.mark.network
@pytest.mark.parametrize(
    ("kind", "stage", "progress", "line"),
    [
        (Kind.FINETUNE, Stage.TRAINING, TrainingProgress(step=3, total_steps=9), "step 3/9"),
        (
            Kind.FINETUNE,
            Stage.SELF_EVALUATION,
            SelfEvaluationProgress(activity="sample_answers", items_done=3, items_total=8),
            "sample answers 3/8",
        ),
        (Kind.MERGE, Stage.MERGING, MergeProgress(shard=2, of=5, fraction=0.4), "shard 2/5"),
        (Kind.IMPORT, Stage.PUBLISHING, None, ""),
        (Kind.EVALUATE, Stage.EVALUATING, EvaluationProgress(items_done=2, items_total=60), "item 2/60"),
        (Kind.JUDGE, Stage.EVALUATING, EvaluationProgress(items_done=2, items_total=60), "item 2/60"),
    ],
    ids=lambda value: str(value) if isinstance(value, Kind) else "",
)
def test_every_command_shows_a_job_of_every_kind(
    installation: CliInstallation, kind: Kind, stage: Stage, progress: ProgressPart | None, line: str
) -> None:
    jobs, leases = installation.services.jobs, Leases(installation.services.database, 60)
    lease = claimed(jobs, leases, kind=kind, contract={"exec": EXEC}, plan=PLAN)
    leases.report(lease, stage=stage, progress=progress.model_dump() if progress else {}, events=[])
    leases.keep_adapters(lease, ["d" * 64])
    job_id = lease.job.id
    steps = line.rpartition(" ")[2]
    for command, part in ((("status",), steps), (("jobs", "list"), steps), (("jobs", "show", job_id), line)):
        shown = installation.mens(*command)
        assert part in shown
        assert "d" * 64 not in installation.mens(*command, "--json"), "what a job reserves is not its progress"
    assert f"({str(stage).replace('_', '-')})" in installation.mens("jobs", "show", job_id)
    leases.finish(lease, {})
    assert "succeeded" in installation.mens("jobs", "watch", job_id)
