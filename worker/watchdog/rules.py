"""The rules in the order in which they end an attempt, each with its typed reason (specification §13).

    installation's cap → GPU budget → job's own time → stall → idle → orphan

If several apply at once, the first is the reason. The first three end the job permanently; after the others it is
retried from its last checkpoint.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

from shared.errors import Code, JobFailed


class Termination(StrEnum):
    """Reason for ending an attempt: ``details["termination"]`` of its error."""

    WALL_CLOCK_CAP = "wall_clock_cap"
    GPU_BUDGET = "gpu_budget"
    TIME_LIMIT = "time_limit"
    STALL = "stall"
    IDLE = "idle"
    ORPHAN = "orphan"


class Watch(Protocol):
    """Watches one property of a child process."""

    def check(self) -> None:
        """Raise an error if the child process must be ended.

        Raises:
            JobFailed: the reason, with a code and a remedy.
        """


@dataclass(frozen=True, slots=True)
class JobLimits:
    """Limits on what a job's attempts may use in total; None means no limit.

    Attributes:
        cap_seconds: the installation's limit.
        wall_seconds: the job's limit.
        gpu_minutes: the job's limit.
    """

    cap_seconds: float | None = None
    gpu_minutes: float | None = None
    wall_seconds: float | None = None


@dataclass
class LimitWatch:
    """Compares a job's use with its limits.

    Attributes:
        gpus: GPUs that this attempt occupies.
        wall_before: seconds of earlier attempts.
        gpu_before: their GPU-seconds.
        clock: monotonic seconds; the attempt begins when this object is created.
    """

    limits: JobLimits
    gpus: int = 1
    wall_before: float = 0.0
    gpu_before: float = 0.0
    clock: Callable[[], float] = time.monotonic
    _begun: float = field(init=False)

    def __post_init__(self) -> None:
        self._begun = self.clock()

    def check(self) -> None:
        """Raise an error if the job has used more than a limit allows."""
        elapsed = self.clock() - self._begun
        wall, gpu = self.wall_before + elapsed, (self.gpu_before + self.gpus * elapsed) / 60
        for bound, used, allowed in (
            (_CAP, wall, self.limits.cap_seconds),
            (_BUDGET, gpu, self.limits.gpu_minutes),
            (_OWN_TIME, wall, self.limits.wall_seconds),
        ):
            if allowed is not None and used > allowed:
                raise bound.exceeded(used, allowed)


@dataclass(frozen=True, slots=True)
class _Bound:
    """Error texts for an exceeded limit.

    Attributes:
        message: contains ``{used}`` and ``{allowed}``, counted in ``unit``.
    """

    reason: Termination
    code: Code
    unit: str
    message: str
    remedy: str

    def exceeded(self, used: float, allowed: float) -> JobFailed:
        counts = {f"used_{self.unit}": round(used, 1), f"allowed_{self.unit}": allowed}
        return JobFailed(
            self.code,
            self.message.format(used=used, allowed=allowed),
            remedy=self.remedy,
            details=counts | {"termination": str(self.reason)},
        )


_CAP = _Bound(
    Termination.WALL_CLOCK_CAP,
    Code.WALL_CLOCK_CAP_EXCEEDED,
    "seconds",
    "The job has run for {used:.0f} s; this installation allows {allowed:.0f} s.",
    "Split the work into several jobs, or raise MENS_MAX_JOB_SECONDS.",
)
_BUDGET = _Bound(
    Termination.GPU_BUDGET,
    Code.GPU_BUDGET_EXCEEDED,
    "gpu_minutes",
    "The job has used {used:.1f} GPU-minutes; its budget is {allowed:g}.",
    "Create it again with a larger max_gpu_minutes, or with less work.",
)
_OWN_TIME = _Bound(
    Termination.TIME_LIMIT,
    Code.TIME_LIMIT_EXCEEDED,
    "seconds",
    "The job has run for {used:.0f} s; it may run for {allowed:g} s.",
    "Create it again with a larger max_wall_seconds, or with less work.",
)


@dataclass
class OrphanWatch:
    """Notices an orphaned trainer: its worker has not reached the database for so long that another worker may have the
    job.

    Attributes:
        contact_at: monotonic seconds of the worker's last heartbeat that arrived.
        seconds: longest time without a heartbeat.
    """

    contact_at: Callable[[], float]
    seconds: float
    clock: Callable[[], float] = time.monotonic

    def check(self) -> None:
        """Raise an error if the last heartbeat was too long ago.

        Raises:
            JobFailed: ``TRAINER_ORPHANED``, retryable.
        """
        silent = self.clock() - self.contact_at()
        if silent > self.seconds:
            raise JobFailed(
                Code.TRAINER_ORPHANED,
                f"The worker has not reached the database for {silent:.0f} s, so its trainer was ended.",
                remedy="Check the worker's connection to the database; the job continues from its last checkpoint.",
                details={"termination": str(Termination.ORPHAN), "silent_seconds": round(silent, 1)},
                retryable=True,
            )


def check_all(watches: Sequence[Watch | None]) -> None:
    """Run the checks in the given order; None entries are skipped.

    Raises:
        JobFailed: the error of the first watch that ends the attempt.
    """
    for watch in watches:
        if watch is not None:
            watch.check()
