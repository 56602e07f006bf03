"""Quotas on both databases: refusals that name the amount and the end, and no race that exceeds them."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from shared.database.connection import Database
from shared.database.jobs import Jobs
from shared.database.leases import Leases
from shared.database.queueing.quotas import Quotas
from shared.errors import Code, Forbidden, MensError, TooMany
from tests.support.builders import at_once, submission
from tests.support.clock import Clock


@pytest.fixture
def quotas(database: Database) -> Quotas:
    return Quotas(database)


@pytest.fixture
def acme(jobs: Jobs) -> Jobs:
    return jobs.of("acme")


def refused(jobs: Jobs, **terms: object) -> MensError | None:
    try:
        jobs.submit(submission(**terms))
    except MensError as error:
        return error
    return None


def test_a_tenant_without_a_quota_is_unlimited(quotas: Quotas, acme: Jobs, clock: Clock) -> None:
    assert refused(acme) is None
    use = quotas.use("acme")
    assert (use.running_jobs, use.queued_jobs, use.gpu_minutes_per_month, use.queued) == (None, None, None, 1)
    assert use.resets_at == datetime(2026, 2, 1, tzinfo=UTC)


def test_the_queue_of_a_tenant_is_full(quotas: Quotas, acme: Jobs, jobs: Jobs) -> None:
    quotas.set("acme", {"queued_jobs": 1})
    first, _ = acme.submit(submission(idempotency_key="k"))
    error = refused(acme)
    assert isinstance(error, TooMany)
    assert (error.code, error.details["queued_jobs_limit"], error.details["queued"]) == (Code.QUEUED_JOBS_LIMITED, 1, 1)
    assert error.details["retry_after_seconds"] > 0
    assert acme.submit(submission(idempotency_key="k")) == (first, False), "a repeated request is no new job"
    assert refused(jobs) is None, "another tenant's queue is its own"
    acme.pause(first.id)
    assert refused(acme) is None
    with pytest.raises(TooMany):
        acme.resume(first.id)


def test_no_race_passes_the_queues_limit(quotas: Quotas, acme: Jobs) -> None:
    quotas.set("acme", {"queued_jobs": 3})
    errors = at_once(8, lambda _: refused(acme))
    assert sum(error is None for error in errors) == 3


@pytest.mark.parametrize("tenant", ["a", "b", "c"])
def test_two_first_quotas_at_once_set_both_limits(quotas: Quotas, tenant: str) -> None:
    limits = {"running_jobs": 2, "queued_jobs": 3, "gpu_minutes_per_month": 4.0}
    changes = [{name: limit} for name, limit in limits.items()]
    at_once(3, lambda number: quotas.set(tenant, changes[number]))
    assert quotas.use(tenant).model_dump(include=set(limits)) == limits


def test_a_job_that_does_not_fit_in_the_month_is_refused(
    quotas: Quotas, acme: Jobs, leases: Leases, clock: Clock
) -> None:
    quotas.set("acme", {"gpu_minutes_per_month": 30})
    assert refused(acme, max_gpu_minutes=20) is None
    lease = leases.claim_next("worker")
    error = refused(acme, max_gpu_minutes=15)
    assert isinstance(error, Forbidden)
    assert error.code == Code.GPU_MINUTES_EXHAUSTED
    assert error.details == {
        "limit": 30,
        "used": 0,
        "held": 20,
        "wanted": 15,
        "resets_at": "2026-02-01T00:00:00+00:00",
    }
    assert "2026-02-01T00:00Z" in error.remedy
    assert lease
    clock.advance(60)
    leases.finish(lease, {})
    assert refused(acme, max_gpu_minutes=15) is None, "what was not used is given back"


def test_a_job_of_which_nothing_is_known_holds_an_hour(quotas: Quotas, acme: Jobs) -> None:
    quotas.set("acme", {"gpu_minutes_per_month": 59})
    error = refused(acme)
    assert error
    assert error.details["wanted"] == 60


def test_a_month_ends(quotas: Quotas, acme: Jobs, leases: Leases, clock: Clock) -> None:
    quotas.set("acme", {"gpu_minutes_per_month": 30})
    acme.submit(submission(max_gpu_minutes=30))
    lease = leases.claim_next("worker")
    assert lease
    clock.advance(1800)
    leases.finish(lease, {})
    assert refused(acme, max_gpu_minutes=1)
    clock.advance(31 * 24 * 3600)
    assert refused(acme, max_gpu_minutes=1) is None
    assert quotas.use("acme").gpu_minutes_used == 0


def test_what_is_left_out_stays_and_null_removes(quotas: Quotas) -> None:
    quotas.set("acme", {"running_jobs": 2, "queued_jobs": 5})
    use = quotas.set("acme", {"running_jobs": None})
    assert (use.running_jobs, use.queued_jobs) == (None, 5)


def test_all_lists_whoever_has_a_quota_or_a_job(quotas: Quotas, acme: Jobs, jobs: Jobs) -> None:
    quotas.set("zoo", {"running_jobs": 2})
    acme.submit(submission())
    jobs.submit(submission())
    assert [use.tenant for use in quotas.all()] == ["acme", "shared", "zoo"]
