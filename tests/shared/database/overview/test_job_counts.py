"""Counts of jobs over all tenants, on both databases."""

from __future__ import annotations

from shared.database.connection import Database
from shared.database.job_states import JobState
from shared.database.jobs import Jobs
from shared.database.leases import Leases
from shared.database.overview.job_counts import JobCount, QueueAge, count_jobs
from shared.database.records import Kind
from shared.errors import Code, JobFailed
from tests.support.builders import claimed, job_in, submission
from tests.support.clock import Clock


def test_jobs_are_counted_by_tenant_kind_and_state(database: Database, jobs: Jobs, leases: Leases) -> None:
    for _ in range(2):
        job_in(JobState.SUCCEEDED, jobs, leases)
    jobs.of("team-a").submit(submission(kind=Kind.MERGE))
    assert sorted(count_jobs(database).counts, key=str) == [
        JobCount("shared", "finetune", "succeeded", 2),
        JobCount("team-a", "merge", "queued", 1),
    ]


def test_wait_begins_when_a_job_was_queued_last(database: Database, jobs: Jobs, leases: Leases, clock: Clock) -> None:
    jobs.submit(submission())
    lease = claimed(jobs, leases)
    clock.advance(50)
    assert count_jobs(database).ages == [QueueAge("finetune", 50)]
    jobs.cancel(next(job.id for job in jobs.list() if job.state is JobState.QUEUED))
    leases.release(lease, "the worker stops")
    clock.advance(7)
    assert count_jobs(database).ages == [QueueAge("finetune", 7)], "not since it was created"


def test_job_that_waits_for_its_retry_is_not_late(database: Database, jobs: Jobs, leases: Leases, clock: Clock) -> None:
    leases.fail(claimed(jobs, leases), JobFailed(Code.TRAINER_KILLED, "Killed.", retryable=True))
    assert count_jobs(database).ages == [QueueAge("finetune", 0)]
    clock.advance(3)  # the first delay is 1 s
    assert count_jobs(database).ages == [QueueAge("finetune", 2)]


def test_nothing_waits_in_an_empty_queue(database: Database, jobs: Jobs, leases: Leases) -> None:
    job_in(JobState.RUNNING, jobs, leases)
    assert count_jobs(database).ages == []
