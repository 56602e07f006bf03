"""A job's alias under a policy: its adapter is published and judged, and takes the alias over or not; and the outcome
if it cannot be judged.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from sqlalchemy import update

from cli.client.gate_outcome import describe_gates
from shared.database.adapters import Adapters
from shared.database.connection import Database
from shared.database.evaluation.evals import Evals
from shared.database.files.files import Files
from shared.database.job_states import Stage
from shared.database.jobs import Jobs
from shared.database.leases import Lease, Leases
from shared.database.records import Job
from shared.database.tables.jobs import JobRow
from shared.errors import Code, JobFailed, MensError, Unavailable
from tests.support.builders import claimed, contract, new_adapter, submission
from tests.support.databases import ON_SQLITE_IN_MAKE_TEST
from tests.support.gate_rows import govern
from tests.support.judged_installation import CONFIG, EQUALS, OLD, JudgedInstallation, Models, policy_of
from worker.evaluation.gate_runs import run_templates
from worker.jobs.attempt import Attempt
from worker.jobs.finetune import finish
from worker.run_folder import METRICS_NAME, SUMMARY_NAME

AWAY = Unavailable(Code.SERVING_UNAVAILABLE, "No replica answers.")
BUSY = Unavailable(Code.EVAL_UNAVAILABLE, "The API does not answer.")


class WorkerDied(BaseException):
    """The process has ended: nothing further is written."""


class HeldUp:
    """In place of the runs of a policy: something goes wrong, so often."""

    def __init__(self, times: int, error: BaseException = AWAY) -> None:
        self.left = times
        self.error = error

    def __call__(self, *args: Any) -> Any:
        self.left -= 1
        if self.left >= 0:
            raise self.error
        return run_templates(*args)


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    """The folder of a training that has ended."""
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / METRICS_NAME).write_text("step\n")
    counts = ("trained_tokens", "optimizer_step_count", "planned_steps")
    numbers = dict.fromkeys((*counts, "last_train_loss", "last_val_loss", "resume"))
    summary = numbers | {"metrics": {}, "memory": {"device": "cpu"}, "tokens_per_second": 2000.0}
    (folder / SUMMARY_NAME).write_text(json.dumps(summary))
    return folder


def finish_attempt(place: JudgedInstallation, leases: Leases, lease: Lease, adapter: str, run_dir: Path) -> None:
    """An attempt whose training has ended, at a job with the alias prod."""
    supervision = {"tokens": 100, "supervised_tokens": 40, "truncation_fraction": 0.1}
    leases.report(lease, preflight={"supervision": supervision}, events=[])
    attempt = Attempt(place.worker.settings, leases, place.worker.storage, lease, None, lambda: False)
    attempt.raise_if_stopped = lambda: None
    plan: Any = SimpleNamespace(contract=contract(artifact={"alias": "prod"}))
    finish(attempt, plan, [new_adapter(adapter)], run_dir)


def finish_attempts(place: JudgedInstallation, run_dir: Path, adapter: str, failures: int) -> Job:
    """A job whose training failed so often, then all attempts to finish it."""
    jobs, leases = Jobs(place.database), Leases(place.database, 60)
    job, _ = jobs.submit(submission())
    for number in range(20):
        change(place.database, job, not_before=None)
        if (lease := leases.claim(job.id, "w")) is None:
            break
        if number < failures:
            leases.fail(lease, JobFailed(Code.LEASE_EXPIRED, "The worker died.", retryable=True))
            continue
        try:
            finish_attempt(place, leases, lease, adapter, run_dir)
        except MensError as error:
            leases.fail(lease, error)
        except WorkerDied:
            change(place.database, job, lease_expires_at=datetime(2026, 1, 1, tzinfo=UTC))
            leases.sweep()
    return jobs.get(job.id)


def change(database: Database, job: Job, **fields: datetime | None) -> None:
    with database.write() as session:
        session.execute(update(JobRow).where(JobRow.id == job.id).values(fields))


@pytest.mark.parametrize(("adapter", "moves"), [("new@1", True), ("new@2", False)])
def test_a_jobs_alias_moves_when_its_adapter_passes_and_else_stays(
    place: JudgedInstallation, models: Models, run_dir: Path, adapter: str, moves: bool
) -> None:
    models.right |= {"new@1": 1.0, "new@2": 0.5}
    jobs, leases = Jobs(place.database), Leases(place.database, 60)
    lease = claimed(jobs, leases)
    finish_attempt(place, leases, lease, adapter, run_dir)
    job = jobs.get(lease.job.id)
    assert (job.state, Adapters(place.database).get(adapter).published) == ("succeeded", True)
    assert place.aliases.get("prod").adapter_id == (adapter if moves else OLD)
    assert (job.result["receipt"]["passed"], job.result["alias"]["moved"]) == (moves, moves)
    assert {row["name"]: row["status"] for row in job.result["receipt"]["gates"]}["throughput"] == "passed"
    said = [event.message for event in jobs.events(job.id)]
    assert any("Evaluating" in message for message in said)
    if not moves:
        assert job.result["alias"]["error"]["code"] == "GATE_FAILED"
        assert any(message.startswith("evals.quality failed: mean score went from 0.9 to 0.5") for message in said)
        assert said[-1].endswith("The alias prod stays at demo@1: GATE_FAILED.")


def test_the_win_rate_of_the_aliass_policy_is_a_line_of_the_jobs_report(
    place: JudgedInstallation, models: Models, run_dir: Path
) -> None:
    """The policy names the eval; its result, which `mens jobs show` prints, has the rate and its interval's end."""
    models.right |= {"new@1": 1.0, OLD: 0.5}
    judged = Evals(place.database).create("better", {}, {"data_source_config": CONFIG, "testing_criteria": [EQUALS]})
    runs = policy_of(judged.id, place.file_id).partition("gates:")[0]
    gates = "gates: {evals: {better: {run: support, criterion: equals, min_win_rate: 0.5}}}\n"
    place.policy = govern(place.database, "alias:prod", runs + gates, name="better").policy
    jobs, leases = Jobs(place.database), Leases(place.database, 60)
    lease = claimed(jobs, leases)
    finish_attempt(place, leases, lease, "new@1", run_dir)
    receipt, gate, alias = describe_gates(jobs.get(lease.job.id).result)
    assert receipt.endswith(": passed")
    assert gate.startswith("  evals.better  passed: win rate is 0.75 (30 won, 30 tied, 0 lost): the lower end of its ")
    assert gate.endswith(", and must be above 0.5")
    assert alias == "alias    prod points to it"


@ON_SQLITE_IN_MAKE_TEST
@pytest.mark.parametrize(
    ("failures", "error", "attempts", "code"),
    [
        (4, BUSY, 5, "ATTEMPTS_EXHAUSTED"),
        (0, WorkerDied(), 5, "ATTEMPTS_EXHAUSTED"),
        (0, JobFailed(Code.INTERNAL_ERROR, "a bug"), 1, "INTERNAL_ERROR"),
    ],
)
def test_job_whose_judging_never_ends_succeeds_and_leaves_the_alias(
    place: JudgedInstallation,
    run_dir: Path,
    monkeypatch: pytest.MonkeyPatch,
    failures: int,
    error: BaseException,
    attempts: int,
    code: str,
) -> None:
    held = HeldUp(99, error)
    monkeypatch.setattr("worker.jobs.judge.run_templates", held)
    job = finish_attempts(place, run_dir, "new@1", failures)
    assert (job.state, job.error, 99 - held.left) == ("succeeded", None, attempts), "judging has all attempts to itself"
    assert Adapters(place.database).get("new@1").published
    assert place.aliases.get("prod").adapter_id == OLD
    assert (job.result["adapter_id"], job.result["adapters"]) == ("new@1", ["new@1"])
    files = [Files(place.database).get(file_id).filename for file_id in job.result["result_files"]]
    assert files == [f"step_metrics-{job.id}.csv"], "stored once, however many attempts there were"
    assert job.result["judging_error"]["code"] == code
    assert job.result["alias"] == {"name": "prod", "moved": False, "error": job.result["judging_error"]}
    said = [event.message for event in Jobs(place.database).events(job.id)]
    assert any("mens receipts create new@1 --alias prod" in message for message in said)
    assert said[-1] == "Job succeeded; new adapter new@1. The alias prod was not moved: the adapter was not evaluated."


def test_adapter_that_is_quarantined_after_it_was_published_fails_the_job(place: JudgedInstallation) -> None:
    jobs, leases = Jobs(place.database), Leases(place.database, 60)
    lease = claimed(jobs, leases)
    leases.report(lease, stage=Stage.EVALUATING, events=[])
    leases.publish(lease, [new_adapter("new@1")], {"adapter_id": "new@1"}, alias="prod")
    leases.report(lease, stage=Stage.PUBLISHING, events=[])
    leases.fail(lease, JobFailed(Code.ADAPTER_PARITY_FAILED, "It differs."))
    assert jobs.get(lease.job.id).state == "failed"


@ON_SQLITE_IN_MAKE_TEST
def test_job_whose_judging_was_held_up_four_times_is_judged(
    place: JudgedInstallation, models: Models, run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    models.right["new@1"] = 1.0
    monkeypatch.setattr("worker.jobs.judge.run_templates", HeldUp(4))
    job = finish_attempts(place, run_dir, "new@1", failures=4)
    assert (job.state, job.result["receipt"]["passed"]) == ("succeeded", True)
    assert place.aliases.get("prod").adapter_id == "new@1"
