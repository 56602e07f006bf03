"""Notices a trainer that no longer makes progress: it would otherwise hold its GPU indefinitely, because the worker
only sees that it is alive.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from shared.errors import Code, JobFailed
from worker.watchdog.rules import Termination

STALL_FACTOR = 20
"""A silence counts as a stall if it is this many times as long as the longest one so far, including checkpoints; during
validations the trainer keeps reporting.
"""


class StallWatch:
    """Compares a trainer's silence with its usual one.

    Args:
        start_seconds: longest silence until the first step is done: it loads the base and encodes the data.
        stall_seconds: silence that is always allowed after that.
        clock: monotonic seconds.
    """

    def __init__(self, start_seconds: float, stall_seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._start_seconds, self._stall_seconds, self._clock = start_seconds, stall_seconds, clock
        self._heard_at = clock()
        self._longest: float | None = None  # silence between two reports, once a step is done

    def note(self, telemetry: Sequence[dict[str, Any]]) -> None:
        """Process the trainer's reports since the last call, which may be empty."""
        if not telemetry:
            return
        now = self._clock()
        steps = [line["payload"].get("step_seconds") or 0.0 for line in telemetry if line["event"] == "step"]
        if self._longest is not None:
            self._longest = max(self._longest, now - self._heard_at)
        elif steps:
            self._longest = max(steps)  # the duration of the start says nothing about the steps
        self._heard_at = now

    def check(self) -> None:
        """Raise an error if the trainer has been silent for too long.

        Raises:
            JobFailed: ``TRAINER_STALLED``, retryable.
        """
        silent = self._clock() - self._heard_at
        if self._longest is None:
            allowed, silence = self._start_seconds, "has not completed its first step"
            remedy = "If the base or the data take that long to load, raise MENS_TRAINER_START_SECONDS."
        else:
            allowed = max(self._stall_seconds, STALL_FACTOR * self._longest)
            silence, remedy = "has reported nothing", "If its steps take that long, raise MENS_TRAINER_STALL_SECONDS."
        if silent > allowed:
            raise JobFailed(
                Code.TRAINER_STALLED,
                f"The trainer {silence} for {silent:.0f} s; {allowed:.0f} s are allowed.",
                remedy=f"The job is retried from its last checkpoint. {remedy}",
                details={
                    "termination": str(Termination.STALL),
                    "silent_seconds": round(silent, 1),
                    "allowed_seconds": round(allowed, 1),
                },
                retryable=True,
            )
