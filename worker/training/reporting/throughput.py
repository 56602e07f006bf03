"""How fast a run is: pace, time left, and the share of the device's peak that it uses (MFU). Pure but for the clock."""

from __future__ import annotations

import resource
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from shared.preflight.training_time import Workload

if TYPE_CHECKING:
    import torch

RATE_SMOOTHING = 0.2
STEPS_BEFORE_ETA = 8


def peak_bytes(device: torch.device | None = None) -> int:
    """The most memory in bytes that this process has held so far.

    On a GPU that is what torch's allocator reserved, beside the device context; on a CPU, or without a device, the resident
    set of the whole process, Python and libraries included. The two are never to be compared.
    """
    if device is not None and device.type == "cuda":
        import torch

        return torch.cuda.max_memory_reserved(device)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024  # Linux counts KiB


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """What a run trains on, as far as telemetry has to know.

    Attributes:
        work: None leaves MFU out.
        peak_flops: dense bf16 FLOP/s of the device; None leaves MFU out.
        peak_memory: the most bytes held so far, on the device or, on a CPU, in the process.
    """

    work: Workload | None = None
    peak_flops: float | None = None
    peak_memory: Callable[[], int] = peak_bytes

    def mfu(self, *, tokens: int, attended_keys: float, targets: int, seconds: float) -> float | None:
        """Model FLOPs utilisation of a step, 0 to 1; None when work or peak is not known, or nothing was computed."""
        if not (self.work and self.peak_flops and tokens):
            return None
        flops = tokens * self.work.flops_per_token(attended_keys / tokens, targets / tokens)
        return flops / max(seconds, 1e-9) / self.peak_flops


class Pace:
    """Measured speed of this process: seconds per step, time between the steps, time left."""

    def __init__(self, total_steps: int) -> None:
        self._total = total_steps
        self._began = self._mark = time.monotonic()
        self._seconds_per_step = 0.0
        self.steps = 0
        self.step_seconds = 0.0

    def mark(self) -> None:
        """What went on since the last step was no step (a validation, a checkpoint): do not count it as one."""
        self._mark = time.monotonic()

    @property
    def wall_seconds(self) -> float:
        """Since the beginning, everything included."""
        return time.monotonic() - self._began

    def step(self) -> float:
        """Note a finished step; returns its seconds."""
        now = time.monotonic()
        seconds, self._mark = max(now - self._mark, 1e-9), now
        self.steps += 1
        self.step_seconds += seconds
        weight = 1.0 if self.steps == 1 else RATE_SMOOTHING
        self._seconds_per_step += weight * (seconds - self._seconds_per_step)
        return seconds

    @property
    def steps_per_second(self) -> float:
        """Smoothed, over steps alone."""
        return 1 / max(self._seconds_per_step, 1e-9)

    def eta_seconds(self, done: int) -> float | None:
        """Time left after ``done`` steps of the run: smoothed step time, and what is spent between steps on average.

        None until enough steps are measured; the first ones are slow.
        """
        if self.steps < STEPS_BEFORE_ETA:
            return None
        between = max(self._mark - self._began - self.step_seconds, 0.0) / self.steps
        return (self._total - done) * (self._seconds_per_step + between)
