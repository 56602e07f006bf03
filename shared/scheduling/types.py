"""Inputs of the rule of the queue: queued and running jobs, and the tenants' use and limits.

Times are seconds since 1970, amounts are GPU-seconds: the seconds that a worker has a job, times the GPUs that share
it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

LOWEST_PRIORITY, HIGHEST_PRIORITY = -5, 5
PRIORITY_SECONDS = 12 * 3600.0
"""Worth of a level of priority: a job that has waited this long counts as one level higher."""
RECENT_SECONDS = 24 * 3600.0
"""Period for which a tenant's GPU time counts in the fair share."""
UNKNOWN_SECONDS = 3600.0
"""Assumed need of an unknown job: it has no estimate, and no similar job has succeeded here."""


class Blocked(StrEnum):
    """Reason why a job is not claimed although a worker is free."""

    RUNNING_JOBS = "running_jobs"
    """Its tenant has reached its limit of running jobs."""
    GPU_MINUTES = "gpu_minutes"
    """Its hold would exceed the rest of its tenant's GPU-minutes of the month."""


@dataclass(frozen=True, slots=True)
class QueuedJob:
    """A waiting job.

    Attributes:
        queued_at: when it was submitted or resumed.
        hold: GPU-seconds that it takes of its tenant's quota until it has ended.
        seconds: expected duration of the job in seconds; None: unknown.
        ready_at: earliest time at which it may start again after a failure.
    """

    id: str
    tenant: str
    queued_at: float
    priority: int = 0
    hold: float = UNKNOWN_SECONDS
    seconds: float | None = None
    ready_at: float = 0.0


@dataclass(frozen=True, slots=True)
class RunningJob:
    """A running job; ``seconds`` is its expected remaining time, None if unknown."""

    tenant: str
    seconds: float | None = None
    hold: float = 0.0


@dataclass(slots=True)
class Share:
    """A tenant's past and current use.

    Attributes:
        used: GPU-seconds of the last 24 hours, holds of running jobs included.
        running: its running jobs.
        served_at: when a job of it last ran; None: never. While one runs, that is now.
    """

    used: float = 0.0
    running: int = 0
    served_at: float | None = None


@dataclass(slots=True)
class Allowance:
    """The rest of a tenant's limits; None means unlimited.

    Attributes:
        running: number of jobs that may run at once.
        gpu_seconds: GPU-seconds left of this month, after use and holds.
    """

    running: int | None = None
    gpu_seconds: float | None = None


@dataclass(slots=True)
class QueueState:
    """The whole queue at one moment."""

    now: float
    queued: list[QueuedJob] = field(default_factory=list)
    shares: dict[str, Share] = field(default_factory=dict)
    allowances: dict[str, Allowance] = field(default_factory=dict)
    running: list[RunningJob] = field(default_factory=list)
