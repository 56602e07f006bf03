"""Leases on both databases: one attempt owns a job at a time, and an outdated one changes nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from shared.database import leases as lease_module
from shared.database.adapters import Adapters
from shared.database.attempt_failures import BACKOFF_SECONDS, MAX_FAILURES
from shared.database.connection import Database
from shared.database.files.files import Files
from shared.database.job_results import ResultFile
from shared.database.job_states import JobState, Stage
from shared.database.jobs import Jobs
from shared.database.leases import Lease, Leases
from shared.database.names.aliases import Aliases
from shared.database.records import NewEvent
from shared.errors import Code, JobFailed, LeaseLost, NotFound
from tests.support.builders import LEASE_SECONDS, at_once, claimed, job_in, new_adapter, snapshot, submission
from tests.support.clock import Clock

CRASH = JobFailed(Code.TRAINER_CRASHED, "The trainer crashed.", remedy="Read its log.")
RETRYABLE = JobFailed(Code.TRAINER_KILLED, "The trainer was killed.", retryable=True)
METRICS = ResultFile("metrics.csv", 10, "e" * 64)

WRITES: dict[str, Callable[[Leases, Lease], object]] = {
    "heartbeat": lambda leases, lease: leases.heartbeat(lease),
    "report": lambda leases, lease: leases.report(lease, progress={"step": 1}, events=[NewEvent(message="stale")]),
    "finish": lambda leases, lease: leases.finish(
        lease, {"x": 1}, adapters=[new_adapter()], alias="a", files=[METRICS]
    ),
    "register": lambda leases, lease: leases.register(
        lease, new_adapter(published=False, certificates={"replica": {"passed": False}})
    ),
    "fail": lambda leases, lease: leases.fail(lease, CRASH),
    "fail, retryable": lambda leases, lease: leases.fail(lease, RETRYABLE),
    "stop": lambda leases, lease: leases.stop(lease),
    "confirm_pause": lambda leases, lease: leases.confirm_pause(lease),
    "release": lambda leases, lease: leases.release(lease, "shutdown"),
}


def claim(leases: Leases, job_id: str, worker: str = "worker-1") -> Lease:
    lease = leases.claim(job_id, worker)
    assert lease is not None
    return lease


def expire(leases: Leases, clock: Clock) -> list[str]:
    """Let every lease run out, and sweep."""
    clock.advance(LEASE_SECONDS + 1)
    return leases.sweep()


# -- claim ---------------------------------------------------------------------------------------------------------


def test_claim_starts_an_attempt(jobs: Jobs, leases: Leases, clock: Clock) -> None:
    lease = claimed(jobs, leases)
    job = jobs.get(lease.job.id)
    assert lease.job == job
    assert (lease.token, job.attempt, job.state, job.started_at) == (1, 1, JobState.RUNNING, clock.now)
    assert jobs.events(job.id)[-1].data == {"attempt": 1, "worker": "worker-1"}


def test_unknown_job_is_not_claimed(leases: Leases) -> None:
    assert leases.claim("ftjob-none", "worker-1") is None


@pytest.mark.parametrize("state", [state for state in JobState if state is not JobState.QUEUED])
def test_only_queued_jobs_are_claimed(jobs: Jobs, leases: Leases, database: Database, state: JobState) -> None:
    job, _ = job_in(state, jobs, leases)
    before = snapshot(database)
    assert leases.claim(job.id, "worker-2") is None
    assert snapshot(database) == before


def test_claimed_once_from_eight_threads(jobs: Jobs, leases: Leases) -> None:
    for _ in range(3):
        job, _ = jobs.submit(submission())
        won = [lease for lease in at_once(8, lambda index: leases.claim(job.id, f"worker-{index}")) if lease]  # noqa: B023
        assert [lease.token for lease in won] == [1]
        assert jobs.get(job.id).attempt == 1


# -- fencing -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("write", list(WRITES))
def test_stale_token_changes_nothing_while_another_attempt_runs(
    jobs: Jobs, leases: Leases, clock: Clock, database: Database, write: str
) -> None:
    stale = claimed(jobs, leases)
    expire(leases, clock)
    clock.advance(60)
    current = claim(leases, stale.job.id, "worker-2")
    before = snapshot(database)
    with pytest.raises(LeaseLost) as caught:
        WRITES[write](leases, stale)
    assert caught.value.code is Code.LEASE_LOST
    assert snapshot(database) == before
    WRITES[write](leases, current)
    assert snapshot(database) != before or write == "heartbeat"


@pytest.mark.parametrize("state", [JobState.SUCCEEDED, JobState.FAILED, JobState.CANCELLED, JobState.QUEUED])
def test_token_of_an_ended_attempt_changes_nothing(
    jobs: Jobs, leases: Leases, database: Database, state: JobState
) -> None:
    lease = claimed(jobs, leases) if state is JobState.QUEUED else job_in(state, jobs, leases)[1]
    assert lease is not None
    if state is JobState.QUEUED:
        leases.release(lease, "shutdown")
    assert jobs.get(lease.job.id).state is state
    before = snapshot(database)
    for write in WRITES.values():
        with pytest.raises(LeaseLost):
            write(leases, lease)
        assert snapshot(database) == before


def test_lease_of_no_job_is_not_found(jobs: Jobs, leases: Leases) -> None:
    lease = claimed(jobs, leases)
    lost = Lease(lease.job.model_copy(update={"id": "ftjob-none"}), 1)
    with pytest.raises(NotFound):
        leases.heartbeat(lost)


# -- heartbeat, report ---------------------------------------------------------------------------------------------


def test_heartbeat_extends_the_lease(jobs: Jobs, leases: Leases, clock: Clock) -> None:
    lease = claimed(jobs, leases)
    for _ in range(5):
        clock.advance(LEASE_SECONDS - 1)
        assert leases.sweep() == []
        assert leases.heartbeat(lease) is None
    assert jobs.get(lease.job.id).state is JobState.RUNNING


@pytest.mark.parametrize("request_", ["cancel", "pause"])
def test_heartbeat_returns_the_request(jobs: Jobs, leases: Leases, request_: str) -> None:
    lease = claimed(jobs, leases)
    getattr(jobs, request_)(lease.job.id)
    assert leases.heartbeat(lease) == request_


def test_report_merges_progress_and_keeps_the_stage(jobs: Jobs, leases: Leases) -> None:
    lease = claimed(jobs, leases)
    leases.report(lease, stage=Stage.TRAINING, progress={"step": 1, "of": 9}, events=[])
    leases.report(lease, progress={"step": 2}, events=[NewEvent(message="two")])
    job = jobs.get(lease.job.id)
    assert (job.stage, job.progress) == (Stage.TRAINING, {"step": 2, "of": 9})
    assert job.version > lease.job.version
    assert jobs.events(job.id)[-1].message == "two"


def test_report_of_a_preflight_keeps_what_only_the_submission_knew(jobs: Jobs, leases: Leases) -> None:
    known = {
        "notes": ["2 rows are alike.", "A policy governs the alias."],
        "sources": {"exec.epochs": "auto"},
        "rows": 3,
    }
    lease = claimed(jobs, leases, preflight=known)
    leases.report(lease, preflight={"notes": ["2 rows are alike.", "No GPU."], "rows": 4}, events=[])
    assert jobs.preflight(lease.job.id) == known | {"notes": [*known["notes"], "No GPU."], "rows": 4}


# -- the end of an attempt ----------------------------------------------------------------------------------------


def test_finish_writes_job_adapters_alias_and_files(
    jobs: Jobs, leases: Leases, files: Files, adapters: Adapters, clock: Clock
) -> None:
    lease = claimed(jobs, leases)
    checkpoint = new_adapter("demo@0", final=False, step=3, published=False)
    leases.report(lease, stage=Stage.PUBLISHING, events=[])
    job = leases.finish(lease, {"loss": 0.5}, adapters=[checkpoint, new_adapter()], alias="prod", files=[METRICS])
    assert job == jobs.get(lease.job.id)
    assert (job.state, job.stage, job.finished_at, job.error) == (JobState.SUCCEEDED, None, clock.now, None)
    assert job.result["loss"] == 0.5
    assert job.result["adapters"] == ["demo@0", "demo@1"]
    [file_id] = job.result["result_files"]
    assert (files.get(file_id).filename, files.get(file_id).purpose) == ("metrics.csv", "fine-tune-results")
    assert adapters.get("prod").id == "demo@1"
    assert adapters.get("demo@0").job_id == job.id
    assert "demo@1" in jobs.events(job.id)[-1].message


@pytest.mark.parametrize("step", ["register_adapters", "publish_to_alias", "complete_result", "transition"])
def test_finish_that_fails_in_the_middle_writes_nothing(
    jobs: Jobs, leases: Leases, database: Database, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    lease = claimed(jobs, leases)
    before = snapshot(database)
    real = getattr(lease_module, step)

    def write_then_fail(*args: Any, **kwargs: Any) -> None:
        real(*args, **kwargs)
        raise RuntimeError("power cut")

    monkeypatch.setattr(lease_module, step, write_then_fail)
    with pytest.raises(RuntimeError, match="power cut"):
        WRITES["finish"](leases, lease)
    assert snapshot(database) == before
    monkeypatch.undo()
    assert WRITES["finish"](leases, lease)


def test_finish_without_an_adapter_moves_no_alias(jobs: Jobs, leases: Leases, database: Database) -> None:
    leases.finish(claimed(jobs, leases), {}, alias="prod")
    assert Aliases(database).all() == []


def test_second_job_with_the_same_adapter_succeeds(jobs: Jobs, leases: Leases, adapters: Adapters) -> None:
    first, second = claimed(jobs, leases), claimed(jobs, leases)
    for lease in (first, second):
        assert leases.finish(lease, {}, adapters=[new_adapter()], alias="prod").state is JobState.SUCCEEDED
    assert adapters.get("prod").job_id == first.job.id


# Fails while register_adapters leaves an adapter unpublished that a later job has published.
def test_second_job_publishes_the_adapter_of_a_first(jobs: Jobs, leases: Leases, adapters: Adapters) -> None:
    leases.finish(claimed(jobs, leases), {}, adapters=[new_adapter(published=False)])
    leases.finish(claimed(jobs, leases), {}, adapters=[new_adapter(certificates={"replica": 1})], alias="prod")
    assert adapters.get("prod").published


FAILED = {"http://replica": {"passed": False}}


def test_quarantined_adapter_can_be_read_and_is_not_published(jobs: Jobs, leases: Leases, adapters: Adapters) -> None:
    lease = claimed(jobs, leases)
    leases.register(lease, new_adapter(published=False, certificates=FAILED))
    leases.fail(lease, CRASH)
    found = adapters.get("demo@1")
    assert (found.state, found.published, found.certificates) == ("quarantined", False, FAILED)
    assert adapters.published() == []


def test_later_job_publishes_a_quarantined_adapter(jobs: Jobs, leases: Leases, adapters: Adapters) -> None:
    leases.register(claimed(jobs, leases), new_adapter(published=False, certificates=FAILED))
    leases.finish(claimed(jobs, leases), {}, adapters=[new_adapter(certificates={"replica": 1})], alias="prod")
    assert (adapters.get("prod").state, adapters.get("prod").certificates) == ("published", {"replica": 1})


def test_published_adapter_is_not_quarantined_by_a_later_job(jobs: Jobs, leases: Leases, adapters: Adapters) -> None:
    leases.finish(claimed(jobs, leases), {}, adapters=[new_adapter(certificates={"replica": 1})], alias="prod")
    leases.register(claimed(jobs, leases), new_adapter(published=False, certificates=FAILED))
    assert (adapters.get("prod").state, adapters.get("prod").certificates) == ("published", {"replica": 1})


def test_final_failure_ends_the_job(jobs: Jobs, leases: Leases, clock: Clock) -> None:
    job = leases.fail(claimed(jobs, leases), CRASH)
    assert (job.state, job.error, job.finished_at) == (JobState.FAILED, CRASH.as_dict(), clock.now)
    event = jobs.events(job.id)[-1]
    assert (event.level, event.data) == ("error", {"error": CRASH.as_dict()})


def test_retryable_failure_backs_off_and_then_fails_the_job(jobs: Jobs, leases: Leases, clock: Clock) -> None:
    lease = claimed(jobs, leases)
    for failure in range(1, MAX_FAILURES):
        assert leases.fail(lease, RETRYABLE).state is JobState.QUEUED
        delay = BACKOFF_SECONDS[failure - 1]
        clock.advance(delay - 0.1)
        assert leases.sweep() == []
        assert leases.claim(lease.job.id, "early") is None
        clock.advance(0.1)
        assert leases.sweep() == [lease.job.id]
        lease = claim(leases, lease.job.id)
        assert lease.token == failure + 1
    job = leases.fail(lease, RETRYABLE)
    assert job.state is JobState.FAILED
    assert job.error is not None
    assert job.error["code"] == Code.ATTEMPTS_EXHAUSTED
    assert not job.error["retryable"]
    assert job.error["details"]["last"] == RETRYABLE.as_dict()


def test_expired_leases_are_requeued_and_then_fail_the_job(jobs: Jobs, leases: Leases, clock: Clock) -> None:
    job, _ = jobs.submit(submission())
    for attempt in range(1, MAX_FAILURES + 1):
        lease = claim(leases, job.id)
        assert lease.token == attempt
        assert expire(leases, clock) == []
        if attempt < MAX_FAILURES:
            assert jobs.get(job.id).state is JobState.QUEUED
            assert jobs.events(job.id)[-1].data["error"]["code"] == Code.LEASE_EXPIRED
            clock.advance(BACKOFF_SECONDS[-1])
            assert leases.sweep() == [job.id]
    failed = jobs.get(job.id)
    assert failed.state is JobState.FAILED
    assert failed.error is not None
    assert failed.error["code"] == Code.ATTEMPTS_EXHAUSTED
    assert failed.error["details"]["last"]["code"] == Code.LEASE_EXPIRED


@pytest.mark.parametrize(("request_", "state"), [("cancel", JobState.CANCELLED), ("pause", JobState.PAUSED)])
def test_worker_confirms_the_request(jobs: Jobs, leases: Leases, request_: str, state: JobState) -> None:
    lease = claimed(jobs, leases)
    getattr(jobs, request_)(lease.job.id)
    (leases.stop if request_ == "cancel" else leases.confirm_pause)(lease)
    job = jobs.get(lease.job.id)
    assert (job.state, job.requested) == (state, None)


# Release and retryable failure fail while `transition` forgets the request of the job's owner on requeue.
@pytest.mark.parametrize("end", ["expire", "release", "fail, retryable"])
@pytest.mark.parametrize(("request_", "state"), [("cancel", JobState.CANCELLED), ("pause", JobState.PAUSED)])
def test_request_is_kept_however_the_attempt_ends(
    jobs: Jobs, leases: Leases, clock: Clock, request_: str, state: JobState, end: str
) -> None:
    lease = claimed(jobs, leases)
    getattr(jobs, request_)(lease.job.id)
    expire(leases, clock) if end == "expire" else WRITES[end](leases, lease)
    assert jobs.get(lease.job.id).state is state


def test_resumed_job_gets_a_new_token(jobs: Jobs, leases: Leases) -> None:
    lease = claimed(jobs, leases)
    jobs.pause(lease.job.id)
    leases.confirm_pause(lease)
    assert leases.claim(lease.job.id, "worker-2") is None
    jobs.resume(lease.job.id)
    assert claim(leases, lease.job.id, "worker-2").token == 2


def test_release_does_not_count_as_a_failure(jobs: Jobs, leases: Leases) -> None:
    lease = claimed(jobs, leases)
    for _ in range(MAX_FAILURES + 2):
        leases.release(lease, "shutdown")
        assert leases.sweep() == [lease.job.id]
        lease = claim(leases, lease.job.id)
    assert jobs.get(lease.job.id).state is JobState.RUNNING


def test_clock_that_went_back_holds_no_lease_longer(jobs: Jobs, leases: Leases, clock: Clock) -> None:
    lease = claimed(jobs, leases)
    clock.advance(-3600)
    assert leases.sweep() == []
    assert jobs.get(lease.job.id).state is JobState.RUNNING, "its worker may still extend it"
    expire(leases, clock)
    assert jobs.get(lease.job.id).state is JobState.QUEUED


def test_clock_that_went_back_delays_no_retry(jobs: Jobs, leases: Leases, clock: Clock) -> None:
    lease = claimed(jobs, leases)
    leases.fail(lease, RETRYABLE)
    assert leases.sweep() == [], "a delay of this clock is kept"
    clock.advance(-3600)
    assert leases.sweep() == [lease.job.id]


# -- sweep ---------------------------------------------------------------------------------------------------------


def test_sweep_returns_queued_jobs_oldest_first(jobs: Jobs, leases: Leases, clock: Clock) -> None:
    made = []
    for _ in range(4):
        made.append(jobs.submit(submission())[0].id)
        clock.advance(1)
    jobs.cancel(made[1])
    jobs.pause(made[2])
    assert leases.sweep() == [made[0], made[3]]


def test_sweep_leaves_unexpired_leases(jobs: Jobs, leases: Leases, clock: Clock, database: Database) -> None:
    claimed(jobs, leases)
    clock.advance(LEASE_SECONDS)
    before = snapshot(database)
    assert leases.sweep() == []
    assert snapshot(database) == before


def test_concurrent_sweeps_end_an_attempt_once(jobs: Jobs, leases: Leases, clock: Clock) -> None:
    claimed_ids = [claimed(jobs, leases).job.id for _ in range(4)]
    clock.advance(LEASE_SECONDS + 1)
    at_once(4, lambda _: leases.sweep())
    for job_id in claimed_ids:
        messages = [event.message for event in jobs.events(job_id) if "stopped responding" in event.message]
        assert len(messages) == 1
        assert jobs.get(job_id).state is JobState.QUEUED


def test_real_clock_of_the_database_is_used(jobs: Jobs, database: Database) -> None:
    instant = Leases(database, -1)
    lease = claimed(jobs, instant)
    instant.sweep()
    assert jobs.get(lease.job.id).state is JobState.QUEUED
