"""Failures of a job and outages of the installation: counted separately, each with its delays and its limit."""

from __future__ import annotations

import pytest

from shared.database.attempt_failures import (
    BACKOFF_SECONDS,
    KEPT_LOGS,
    MAX_FAILURES,
    MAX_OUTAGES,
    OUTAGE_BACKOFF_SECONDS,
    OUTAGES,
)
from shared.database.job_states import JobState
from shared.database.jobs import Jobs
from shared.database.leases import Leases
from shared.database.records import Job
from shared.errors import Code, JobFailed, LeaseLost, Unavailable
from tests.support.builders import claimed, submission
from tests.support.clock import Clock

FAILURE = JobFailed(Code.TRAINER_STALLED, "It was silent.", retryable=True)


def fail(leases: Leases, clock: Clock, job_id: str, error: Unavailable | JobFailed) -> Job:
    """Run one attempt, as soon as it is due, that ends with an error."""
    clock.advance(OUTAGE_BACKOFF_SECONDS[-1])
    lease = leases.claim(job_id, "worker")
    assert lease
    return leases.fail(lease, error)


@pytest.mark.parametrize("code", sorted(OUTAGES))
def test_job_outlives_an_outage_of_hours(jobs: Jobs, leases: Leases, clock: Clock, code: Code) -> None:
    job, _ = jobs.submit(submission())
    for _ in range(MAX_OUTAGES - 1):
        assert fail(leases, clock, job.id, Unavailable(code, "away")).state is JobState.QUEUED
    failed = fail(leases, clock, job.id, Unavailable(code, "away"))
    assert failed.state is JobState.FAILED
    assert failed.error is not None
    assert failed.error["code"] == Code.ATTEMPTS_EXHAUSTED


def test_outages_leave_the_jobs_own_attempts(jobs: Jobs, leases: Leases, clock: Clock) -> None:
    job, _ = jobs.submit(submission())
    outage = Unavailable(Code.STORAGE_FULL, "full")
    for _ in range(MAX_FAILURES - 1):
        assert fail(leases, clock, job.id, outage).state is JobState.QUEUED
        assert fail(leases, clock, job.id, FAILURE).state is JobState.QUEUED
    assert fail(leases, clock, job.id, FAILURE).state is JobState.FAILED


def test_all_outages_take_hours_and_the_first_delays_are_short() -> None:
    last = OUTAGE_BACKOFF_SECONDS[-1]
    waited = sum(OUTAGE_BACKOFF_SECONDS) + last * (MAX_OUTAGES - 1 - len(OUTAGE_BACKOFF_SECONDS))
    assert 4 * 3600 < waited < 6 * 3600
    assert OUTAGE_BACKOFF_SECONDS[: len(BACKOFF_SECONDS)] == BACKOFF_SECONDS


def test_newer_log_of_an_attempt_replaces_the_one_before(jobs: Jobs, leases: Leases) -> None:
    lease = claimed(jobs, leases)
    for text in ("one\n", "one\ntwo\n"):
        leases.keep_log(lease, text)
    kept = jobs.log(lease.job.id)
    assert kept and (kept.attempt, kept.text) == (1, "one\ntwo\n")
    leases.release(lease, "the worker stops")
    with pytest.raises(LeaseLost):
        leases.keep_log(lease, "late")


def test_logs_of_the_last_failed_attempts_are_kept(jobs: Jobs, leases: Leases, clock: Clock) -> None:
    job, _ = jobs.submit(submission())
    for number in range(1, KEPT_LOGS + 3):
        clock.advance(OUTAGE_BACKOFF_SECONDS[-1])
        lease = leases.claim(job.id, "worker")
        assert lease
        leases.fail(lease, Unavailable(Code.STORAGE_FULL, "full"), f"log {number} \0")
    kept = [jobs.log(job.id, attempt) for attempt in range(1, KEPT_LOGS + 3)]
    assert [log is not None for log in kept] == [False, False, *[True] * KEPT_LOGS]
    newest = jobs.log(job.id)
    assert newest == kept[-1] and newest and newest.text == f"log {KEPT_LOGS + 2} \N{REPLACEMENT CHARACTER}"
