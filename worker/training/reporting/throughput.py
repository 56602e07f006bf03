"""Speed of a run: pace, time left, and the share of the device's peak that it uses (MFU). Pure except for the clock."""

from __future__ import annotations

import resource
import time
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING

from shared.preflight.training_time import Workload

if TYPE_CHECKING:
    import torch

RATE_SMOOTHING = 0.2
LEAST_WINDOW, COST_WINDOW = 8, 0.5
"""Least number, and share, of the steps so far whose durations decide the expected cost of a step. The last ten alone follow each burst of
other work on the machine; all of them would never follow a lasting change.
"""
FEWEST_MEASURED, MOST_MEASURED = 3, 8
"""Bounds of the number of steps that are measured before a time left is stated: a quarter of the run."""
FORWARD_SHARE = 0.5
"""Share of a training step's time per token that a validation is assumed to take until one has been measured (median of
SmolLM2-135M's runs on a CPU: 0.47).
"""


def peak_bytes(device: torch.device | None = None) -> int:
    """Return this process's peak memory so far, in bytes.

    On a GPU this is the memory that torch's allocator reserved, without the device context; on a CPU, or without a
    device, the resident set of the whole process, including Python and libraries. The two cannot be compared.
    """
    if device is not None and device.type == "cuda":
        import torch

        return torch.cuda.max_memory_reserved(device)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024  # Linux counts KiB


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredDevice:
    """Properties of the device that telemetry needs.

    Attributes:
        work: None leaves MFU out.
        peak_flops: dense bf16 FLOP/s of the device; None leaves MFU out.
        peak_memory: largest number of bytes held so far, on the device or, on a CPU, in the process.
    """

    work: Workload | None = None
    peak_flops: float | None = None
    peak_memory: Callable[[], int] = peak_bytes

    def mfu(self, *, tokens: int, attended_keys: float, targets: int, seconds: float) -> float | None:
        """Return the model FLOPs utilisation of a step, 0 to 1; None if work or peak is unknown, or nothing was
        computed.
        """
        if not (self.work and self.peak_flops and tokens):
            return None
        flops = tokens * self.work.flops_per_token(attended_keys / tokens, targets / tokens)
        return flops / max(seconds, 1e-9) / self.peak_flops


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedWork:
    """The work of a run that is known before it begins.

    Attributes:
        step_tokens: tokens of each optimizer step, in order.
        pauses: numbers of the steps after which the run validates and writes a checkpoint, ascending.
        validation_tokens: tokens of one validation.
    """

    step_tokens: Sequence[int]
    pauses: Sequence[int] = ()
    validation_tokens: int = 0

    @classmethod
    def of_equal_steps(cls, steps: int) -> PlannedWork:
        """Return planned work if only the number of steps is known."""
        return cls(step_tokens=[1] * steps)


class _StepCost:
    """Seconds of a step by its tokens, ``a + b * tokens``: least squares over the last steps, with older ones weighted
    less.

    Rows and therefore steps differ in length, so the mean duration of some steps is a poor estimate for others.
    """

    def __init__(self) -> None:
        self.steps = 0
        self._tokens = self._seconds = self._variance = self._covariance = 0.0

    def add(self, tokens: int, seconds: float) -> None:
        self.steps += 1
        if self.steps <= 2:  # the first step is slow: the second one replaces it
            self._tokens, self._seconds = float(tokens), seconds
            return
        weight = 1 / min(self.steps - 1, max(LEAST_WINDOW, COST_WINDOW * self.steps))
        off, late = tokens - self._tokens, seconds - self._seconds
        self._tokens += weight * off
        self._seconds += weight * late
        self._variance = (1 - weight) * (self._variance + weight * off * off)
        self._covariance = (1 - weight) * (self._covariance + weight * off * late)

    def seconds(self, steps: int, tokens: int) -> float:
        """Return the expected seconds of the given steps with the given tokens in total."""
        highest = self.seconds_per_token
        slope = min(max(self._covariance / self._variance, 0.0), highest) if self._variance else highest
        return steps * (self._seconds - slope * self._tokens) + slope * tokens

    @property
    def seconds_per_token(self) -> float:
        """Mean over the last steps."""
        return self._seconds / self._tokens if self._tokens else 0.0


class Pace:
    """Measured speed of this process: seconds per step, time between the steps, time left."""

    def __init__(self, work: PlannedWork) -> None:
        self._work = work
        self._tokens_before = [0, *accumulate(work.step_tokens)]
        self._cost = _StepCost()
        self._began = self._mark = time.monotonic()
        self._seconds_per_step = 0.0
        self._paused = False
        self.steps = 0
        self.step_seconds = 0.0

    def mark(self) -> None:
        """Exclude the time since the last step, which went to a validation or a checkpoint, from the pace."""
        self._mark, self._paused = time.monotonic(), True

    @property
    def wall_seconds(self) -> float:
        """Seconds since the start, everything included."""
        return time.monotonic() - self._began

    def step(self, number: int) -> float:
        """Record the finished step with that number, counted from 1 over the whole run; return its seconds."""
        now = time.monotonic()
        seconds, self._mark, self._paused = max(now - self._mark, 1e-9), now, False
        self.steps += 1
        self.step_seconds += seconds
        weight = 1.0 if self.steps == 1 else RATE_SMOOTHING
        self._seconds_per_step += weight * (seconds - self._seconds_per_step)
        self._cost.add(self._work.step_tokens[number - 1], seconds)
        return seconds

    @property
    def steps_per_second(self) -> float:
        """Smoothed rate over steps alone."""
        return 1 / max(self._seconds_per_step, 1e-9)

    def eta_seconds(self, done: int) -> float | None:
        """Return the time left after ``done`` steps of the run: steps by their tokens, and the planned pauses between
        them.

        None until enough steps are measured; the first ones are slow.
        """
        total = len(self._work.step_tokens)
        if self.steps < min(max(total // 4, FEWEST_MEASURED), MOST_MEASURED):
            return None
        left = total - done
        tokens = self._tokens_before[-1] - self._tokens_before[done]
        # A step is reported before the pause that follows it.
        began, reached = (bisect_left(self._work.pauses, step) for step in (done - self.steps + 1, done + self._paused))
        pause = self._pause_seconds(reached - began)
        return self._cost.seconds(left, tokens) + (len(self._work.pauses) - reached) * pause

    def _pause_seconds(self, measured: int) -> float:
        """Return the expected seconds of one pause, after `measured` pauses."""
        if measured:
            return max(self._mark - self._began - self.step_seconds, 0.0) / measured
        return FORWARD_SHARE * self._cost.seconds_per_token * self._work.validation_tokens
