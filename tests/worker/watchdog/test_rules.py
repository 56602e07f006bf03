"""The rules of the watchdog: their order, and when each applies."""

from __future__ import annotations

from typing import Any

import pytest

from shared.errors import Code, JobFailed
from worker.watchdog.idle import IdleWatch
from worker.watchdog.rules import JobLimits, LimitWatch, OrphanWatch, Termination, check_all
from worker.watchdog.stall import StallWatch


class Stopwatch:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def watches(clock: Stopwatch, **limits: Any) -> list[Any]:
    """Everything that is watched, in order; without limits only stall, idle and orphan can hold."""
    return [
        LimitWatch(JobLimits(**limits), clock=clock),
        StallWatch(10.0, 10.0, clock),
        IdleWatch(-1, 10.0, clock=clock, gpu_share=lambda: 0.0),
        OrphanWatch(lambda: 0.0, 10.0, clock),
    ]


def reason(found: list[Any]) -> str:
    with pytest.raises(JobFailed) as failed:
        check_all(found)
    return str(failed.value.details["termination"])


def test_the_first_in_order_is_the_reason_when_all_hold() -> None:
    clock = Stopwatch()
    all_limits = {"cap_seconds": 50.0, "gpu_minutes": 0.5, "wall_seconds": 40.0}
    found = [watches(clock, **dict(list(all_limits.items())[left:])) for left in range(4)]
    rest = [found[3][start:] for start in range(1, 4)]
    clock.now = 100.0
    reasons = [reason(one) for one in [*found[:3], *rest]]
    assert reasons == list(Termination)


def test_nothing_holds_while_there_is_time() -> None:
    clock = Stopwatch()
    found = watches(clock, cap_seconds=10.0, gpu_minutes=1.0, wall_seconds=10.0)
    clock.now = 9.9
    check_all([*found, None])


def test_several_gpus_use_a_budget_faster() -> None:
    clock = Stopwatch()
    watch = LimitWatch(JobLimits(gpu_minutes=4.0), gpus=4, gpu_before=60.0, clock=clock)
    clock.now = 45.0
    watch.check()
    clock.now = 45.1
    with pytest.raises(JobFailed) as failed:
        watch.check()
    assert (failed.value.code, failed.value.details["allowed_gpu_minutes"]) == (Code.GPU_BUDGET_EXCEEDED, 4.0)
