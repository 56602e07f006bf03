"""Properties of the queue's rule: no worker idles, no job starves, and the same state gives the same order."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shared.scheduling.fair_queue import FairQueue
from shared.scheduling.types import (
    HIGHEST_PRIORITY,
    LOWEST_PRIORITY,
    PRIORITY_SECONDS,
    Allowance,
    Blocked,
    QueuedJob,
    QueueState,
    Share,
)
from tests.support.queue_states import HOUR, NOW, drain, states, tenants


@settings(max_examples=25, deadline=None)
@given(states())
def test_no_worker_idles_while_a_job_may_run(state: QueueState) -> None:
    queue = FairQueue(state)
    while job := queue.next(NOW):
        assert queue.blocked(job) is None
        queue.start(job)
    assert all(queue.blocked(job) or job.ready_at > NOW for job in queue.waiting())


@settings(max_examples=25, deadline=None)
@given(states(), st.randoms(use_true_random=False))
def test_the_order_depends_on_the_state_alone(state: QueueState, chance: random.Random) -> None:
    first = drain(state)
    shuffled = QueueState(NOW, chance.sample(state.queued, len(state.queued)), state.shares, state.allowances)
    assert drain(shuffled) == first
    assert drain(state) == first, "the state was changed"


@settings(max_examples=25, deadline=None)
@given(states())
def test_limits_are_never_passed(state: QueueState) -> None:
    queue, jobs = FairQueue(state), {job.id: job for job in state.queued}
    running = {name: share.running for name, share in state.shares.items()}
    held: dict[str, float] = {}
    while job := queue.next(NOW):
        queue.start(job)
        running[job.tenant] = running.get(job.tenant, 0) + 1
        held[job.tenant] = held.get(job.tenant, 0) + jobs[job.id].hold
        may = state.allowances.get(job.tenant, Allowance())
        assert may.running is None or running[job.tenant] <= may.running
        assert may.gpu_seconds is None or held[job.tenant] <= may.gpu_seconds


@settings(max_examples=25, deadline=None)
@given(
    st.lists(st.tuples(tenants, st.integers(LOWEST_PRIORITY, HIGHEST_PRIORITY)), min_size=1, max_size=3),
    st.integers(1, 20),
)
def test_no_job_starves_however_many_come_later(others: list[tuple[str, int]], hours: int) -> None:
    """One worker, jobs of the other tenants' highest wish arriving for each that ends: the lowest is served in bounded time."""
    lowest = QueuedJob("lowest", "z", NOW, LOWEST_PRIORITY, hold=1.0)
    used = Share(1e9)  # its tenant has used more than all the others
    queued, shares, now, number = [lowest], {"z": used}, NOW, 0
    levels = HIGHEST_PRIORITY - LOWEST_PRIORITY + 1
    bound = NOW + levels * PRIORITY_SECONDS + (len(others) + 1) * hours * HOUR
    while now <= bound:
        for tenant, priority in others:
            number += 1
            queued.append(QueuedJob(f"j{number:05}", tenant, now, priority, hold=1.0))
        queue = FairQueue(QueueState(now, queued, shares))
        job = queue.next(now)
        assert job is not None
        if job is lowest:
            return
        queued.remove(job)
        now += hours * HOUR
        shares[job.tenant] = Share(1.0, 0, now)
    pytest.fail("it was never taken")


def test_a_tenant_does_not_wait_for_anothers_backlog() -> None:
    backlog = [QueuedJob(f"a{index}", "a", NOW - 9 * HOUR + index) for index in range(5)]
    late = QueuedJob("b", "b", NOW)
    shares = {"a": Share(used=7200.0, running=1)}
    assert drain(QueueState(NOW, [*backlog, late], shares))[0] == "b"


def test_free_workers_are_shared_although_nobody_has_used_anything() -> None:
    """Holds count: the jobs that have just begun have used nothing yet."""
    jobs = [QueuedJob(f"a{index}", "a", NOW + index) for index in range(3)] + [QueuedJob("b", "b", NOW + 5)]
    assert drain(QueueState(NOW + 9, jobs), NOW + 9) == ["a0", "b", "a1", "a2"]


def test_priority_comes_before_the_share_and_the_share_before_the_order() -> None:
    jobs = [QueuedJob("old", "a", NOW - 60), QueuedJob("light", "b", NOW), QueuedJob("urgent", "a", NOW, 1)]
    shares = {"a": Share(100.0, 0, NOW), "b": Share(10.0, 0, NOW)}
    assert drain(QueueState(NOW, jobs, shares)) == ["urgent", "light", "old"]


@pytest.mark.parametrize(("waited", "first"), [(11.9, "high"), (12.1, "low")])
def test_a_level_is_worth_twelve_hours_within_a_tenant(waited: float, first: str) -> None:
    jobs = [QueuedJob("low", "a", NOW - waited * HOUR), QueuedJob("high", "a", NOW, 1)]
    assert drain(QueueState(NOW, jobs))[0] == first


def test_a_smaller_job_runs_where_the_tenants_first_is_too_large_for_its_month() -> None:
    jobs = [QueuedJob("large", "a", NOW, hold=100.0), QueuedJob("small", "a", NOW + 1, hold=10.0)]
    queue = FairQueue(QueueState(NOW, jobs, allowances={"a": Allowance(gpu_seconds=50.0)}))
    assert queue.next(NOW + 2) is jobs[1]
    assert queue.blocked(jobs[0]) is Blocked.GPU_MINUTES
    assert {job.id for job in queue.waiting()} == {"large", "small"}
