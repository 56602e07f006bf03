"""How a run's telemetry becomes its speed."""

from __future__ import annotations

from typing import Any

from bench.training.recipe import UNTIMED_STEPS, step_and_checkpoint_ms


def step(number: int, at: int) -> dict[str, Any]:
    return {"event": "step", "ts_ms": at, "payload": {"step": number}}


def test_a_step_lasts_without_checkpoints_before_it_and_after_the_last_one() -> None:
    untimed = [step(number, 10 * number) for number in range(1, UNTIMED_STEPS + 1)]
    now = 10 * UNTIMED_STEPS
    events = [
        *untimed,
        {"event": "checkpoint", "ts_ms": now + 500},
        step(UNTIMED_STEPS + 1, now + 507),
        {"event": "note", "ts_ms": now + 508},
        step(UNTIMED_STEPS + 2, now + 516),
        {"event": "checkpoint", "ts_ms": now + 816},
    ]
    assert step_and_checkpoint_ms(events) == ([7, 9], 800)
