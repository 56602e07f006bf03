"""When a trainer without output counts as stalled, on a clock that the test sets."""

from __future__ import annotations

import pytest

from shared.errors import Code, JobFailed
from worker.watchdog.stall import STALL_FACTOR, StallWatch

START, STALL = 100.0, 10.0


class Seconds:
    """Time since the watch was made."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Seconds:
    return Seconds()


@pytest.fixture
def watch(clock) -> StallWatch:
    return StallWatch(START, STALL, clock)


def event(name: str, **payload) -> dict:
    return {"event": name, "payload": payload}


def refuse(watch: StallWatch) -> JobFailed:
    with pytest.raises(JobFailed) as stalled:
        watch.check()
    assert (stalled.value.code, stalled.value.retryable) == (Code.TRAINER_STALLED, True)
    return stalled.value


def test_a_trainer_has_its_own_time_to_start(watch, clock):
    clock.now = START
    watch.check()
    clock.now = START + 1
    assert "MENS_TRAINER_START_SECONDS" in refuse(watch).remedy


def test_its_first_report_is_not_a_first_step(watch, clock):
    clock.now = START
    watch.note([event("train_start")])
    clock.now = 2 * START
    watch.check()
    clock.now += 1
    refuse(watch)


def test_after_a_step_the_time_is_shorter(watch, clock):
    watch.note([event("step", step_seconds=0.01)])
    clock.now = STALL
    watch.check()
    clock.now = STALL + 1
    assert "MENS_TRAINER_STALL_SECONDS" in refuse(watch).remedy


def test_slow_steps_are_usual_from_the_first_on(watch, clock):
    watch.note([event("step", step_seconds=30.0)])
    clock.now = STALL_FACTOR * 30
    watch.check()
    clock.now += 1
    refuse(watch)


def test_the_longest_silence_so_far_is_the_measure(watch, clock):
    watch.note([event("step", step_seconds=None)])
    clock.now = 7.0
    watch.note([event("validation")])
    watch.note([])
    clock.now = 7.0 + STALL_FACTOR * 7
    watch.check()
    clock.now += 1
    refuse(watch)
