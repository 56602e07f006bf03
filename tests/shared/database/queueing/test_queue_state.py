"""Positions of queued jobs, and the accuracy of past estimates, on both databases."""

from __future__ import annotations

import pytest

from shared.database.connection import Database
from shared.database.jobs import Jobs
from shared.database.leases import Leases
from shared.database.queueing.queue_state import QueueReader
from shared.database.queueing.quotas import Quotas
from shared.database.records import NewEvent
from shared.scheduling.forecast import Reason
from tests.support.builders import submission
from tests.support.clock import Clock


@pytest.fixture
def reader(database: Database) -> QueueReader:
    return QueueReader(database)


def submit(jobs: Jobs, **terms: object) -> str:
    return jobs.submit(submission(**({"expected_seconds": 100.0} | terms)))[0].id


def test_the_places_are_the_order_of_the_claims(jobs: Jobs, leases: Leases, reader: QueueReader) -> None:
    acme = jobs.of("acme")
    ids = [submit(jobs), submit(jobs), submit(acme, priority=-1), submit(acme), submit(jobs)]
    places = reader.places(workers=1).of_job
    order = sorted(ids, key=lambda job_id: places[job_id].position)
    claimed = []
    while lease := leases.claim_next("worker"):
        claimed.append(lease.job.id)
    assert claimed == order


def test_starts_follow_from_what_runs(jobs: Jobs, leases: Leases, reader: QueueReader, clock: Clock) -> None:
    running, waiting = submit(jobs), submit(jobs)
    lease = leases.claim_next("worker")
    assert lease
    assert lease.job.id == running
    clock.advance(30)
    now = clock.now.timestamp()
    assert reader.places(1).of_job[waiting].starts_at == now + 70
    leases.report(lease, progress={"eta_seconds": 10.0}, events=[NewEvent(message="step")])
    assert reader.places(1).of_job[waiting].starts_at == now + 10
    assert reader.places(2).of_job[waiting].starts_at == now


def test_a_quota_is_the_reason(jobs: Jobs, leases: Leases, reader: QueueReader, database: Database) -> None:
    Quotas(database).set("shared", {"running_jobs": 1})
    submit(jobs)
    waiting = submit(jobs)
    leases.claim_next("worker")
    assert reader.places(5).of_job[waiting].reason is Reason.RUNNING_JOBS


def test_estimates_are_noted_once_and_compared_with_the_start(
    jobs: Jobs, leases: Leases, reader: QueueReader, clock: Clock
) -> None:
    submit(jobs)
    lease = leases.claim_next("worker")
    assert lease
    waiting = submit(jobs)
    assert reader.places(1).error is None
    assert reader.note_estimates(workers=0) == 1
    clock.advance(10)
    assert reader.note_estimates(workers=1) == 0
    clock.advance(130)
    leases.finish(lease, {})
    started = leases.claim_next("worker")
    assert started
    assert started.job.id == waiting
    error = reader.places(1).error
    assert error
    assert (error.jobs, error.p50_seconds, error.p90_seconds) == (1, 40.0, 40.0)
