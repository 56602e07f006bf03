"""The rules in the order in which they end an attempt, each with its typed reason (specification §13).

    installation's cap → GPU budget → job's own time → stall → idle → orphan

When several hold at once, the first is the reason. The first three end the job for good; after the others it is tried again
from its last checkpoint.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Protocol

from shared.errors import Code, JobFailed


class Termination(StrEnum):
    """Why an attempt was ended: ``details["termination"]`` of its error."""

    WALL_CLOCK_CAP = "wall_clock_cap"
    GPU_BUDGET = "gpu_budget"
    TIME_LIMIT = "time_limit"
    STALL = "stall"
    IDLE = "idle"
    ORPHAN = "orphan"


class Watch(Protocol):
    """Something of a child process that is watched."""

    def check(self) -> None:
        """Raises:
        JobFailed: it has to be ended.
        """


@dataclass(frozen=True, slots=True)
class JobLimits:
    """What a job's attempts may use together; None is no limit.

    Attributes:
        cap_seconds: of the installation. wall_seconds: of the job.
        gpu_minutes: of the job.
    """

    cap_seconds: float | None = None
    gpu_minutes: float | None = None
    wall_seconds: float | None = None


@dataclass
class LimitWatch:
    """Compares what a job has used with what it may use.

    Attributes:
        gpus: that this attempt occupies.
        wall_before: seconds of the attempts before it. gpu_before: their GPU-seconds.
        clock: monotonic seconds; the attempt begins when this is made.
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
        """Raises:
        JobFailed: ``WALL_CLOCK_CAP_EXCEEDED``, ``GPU_BUDGET_EXCEEDED`` or ``TIME_LIMIT_EXCEEDED``; not retryable.
        """
        elapsed = self.clock() - self._begun
        wall, gpu = self.wall_before + elapsed, (self.gpu_before + self.gpus * elapsed) / 60
        may = self.limits
        if may.cap_seconds is not None and wall > may.cap_seconds:
            raise _exceeded(
                Termination.WALL_CLOCK_CAP,
                f"The job has run for {wall:.0f} s; this installation allows {may.cap_seconds:.0f} s.",
                "Ask for less work in one job, or raise MENS_MAX_JOB_SECONDS.",
                {"used_seconds": round(wall, 1), "allowed_seconds": may.cap_seconds},
            )
        if may.gpu_minutes is not None and gpu > may.gpu_minutes:
            raise _exceeded(
                Termination.GPU_BUDGET,
                f"The job has used {gpu:.1f} GPU-minutes; its budget is {may.gpu_minutes:g}.",
                "Create it again with a larger max_gpu_minutes, or with less work.",
                {"used_gpu_minutes": round(gpu, 1), "allowed_gpu_minutes": may.gpu_minutes},
            )
        if may.wall_seconds is not None and wall > may.wall_seconds:
            raise _exceeded(
                Termination.TIME_LIMIT,
                f"The job has run for {wall:.0f} s; it may run for {may.wall_seconds:g} s.",
                "Create it again with a larger max_wall_seconds, or with less work.",
                {"used_seconds": round(wall, 1), "allowed_seconds": may.wall_seconds},
            )


CODES = {
    Termination.WALL_CLOCK_CAP: Code.WALL_CLOCK_CAP_EXCEEDED,
    Termination.GPU_BUDGET: Code.GPU_BUDGET_EXCEEDED,
    Termination.TIME_LIMIT: Code.TIME_LIMIT_EXCEEDED,
}


def _exceeded(reason: Termination, message: str, remedy: str, details: dict[str, Any]) -> JobFailed:
    return JobFailed(CODES[reason], message, remedy=remedy, details=details | {"termination": str(reason)})


@dataclass
class OrphanWatch:
    """Notices that a trainer belongs to nobody: its worker has not reached the database for so long that the job is another's.

    Attributes:
        contact_at: monotonic seconds of the worker's last heartbeat that arrived.
        seconds: how long there may be none.
    """

    contact_at: Callable[[], float]
    seconds: float
    clock: Callable[[], float] = time.monotonic

    def check(self) -> None:
        """Raises:
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
    """Check in the order given; None is not watched.

    Raises:
        JobFailed: of the first that has to end the attempt.
    """
    for watch in watches:
        if watch is not None:
            watch.check()
