"""Forecast each queued job's place and start: the rule of the queue, run ahead on the current workers."""

from __future__ import annotations

import heapq
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from shared.scheduling.fair_queue import FairQueue
from shared.scheduling.types import UNKNOWN_SECONDS, Blocked, QueuedJob, QueueState


class Reason(StrEnum):
    """Reason why a job waits, or why the job just before it comes first."""

    NEXT = "next"
    PRIORITY = "priority"
    FAIR_SHARE = "fair_share"
    SUBMIT_ORDER = "submit_order"
    RETRY = "retry"
    RUNNING_JOBS = "running_jobs"
    GPU_MINUTES = "gpu_minutes"
    NO_WORKER = "no_worker"


@dataclass(frozen=True, slots=True)
class Place:
    """A place in the queue.

    Attributes:
        position: place in the order of claims; 1: the job is claimed next.
        starts_at: seconds since 1970; None: unknown, because a job before it has no estimate, or no worker is alive.
    """

    position: int
    reason: Reason
    starts_at: float | None


@dataclass(frozen=True, slots=True)
class _Started:
    """A job that was started, with its level and its tenant's use at that time."""

    job: QueuedJob
    level: int
    used: float


@dataclass(frozen=True, order=True)
class _Slot:
    """A worker that becomes free: the time, and whether every duration until then was known."""

    free_at: float
    guessed: bool
    tenant: str = ""


def forecast(state: QueueState, workers: int) -> dict[str, Place]:
    """Return the place of every queued job, by its id.

    Jobs that the rule would never take (their tenant's month is used up) come last, in the order of submission.

    Args:
        state: the queue as it is.
        workers: number of live workers; workers that run jobs count even if they are not among them.
    """
    queue = FairQueue(state)
    slots = [
        _Slot(state.now + (UNKNOWN_SECONDS if job.seconds is None else job.seconds), job.seconds is None, job.tenant)
        for job in state.running
    ]
    slots += [_Slot(state.now, False)] * (workers - len(slots))
    has_workers = bool(slots)
    heapq.heapify(slots)
    places: dict[str, Place] = {}
    waits = {job.id: _own_reason(queue, job, state.now) for job in state.queued}
    before: _Started | None = None
    # Without a worker, assume one: the order is known, the time is not.
    slots = slots or [_Slot(state.now, True)]
    while slots and len(places) < len(state.queued):
        slot = heapq.heappop(slots)
        if slot.tenant:
            queue.end(slot.tenant, slot.free_at)
        now = slot.free_at
        job = queue.next(now)
        if job is None:
            if (later := _next_chance(queue, slots, now)) is not None:
                heapq.heappush(slots, _Slot(later, slot.guessed))
            continue
        reason = waits[job.id] or _reason(queue, job, before, now) if has_workers else Reason.NO_WORKER
        places[job.id] = Place(len(places) + 1, reason, None if slot.guessed or not has_workers else now)
        before = _Started(job, queue.level(job, now), queue.used(job.tenant))
        queue.start(job)
        seconds = UNKNOWN_SECONDS if job.seconds is None else job.seconds
        heapq.heappush(slots, _Slot(now + seconds, slot.guessed or job.seconds is None, job.tenant))
    for job in sorted(queue.waiting(), key=lambda waiting_job: (waiting_job.queued_at, waiting_job.id)):
        blocked = queue.blocked(job)
        places[job.id] = Place(len(places) + 1, Reason(blocked) if blocked else Reason.NO_WORKER, None)
    return places


def _next_chance(queue: FairQueue, slots: Sequence[_Slot], now: float) -> float | None:
    """Return when an idle worker may find a job: another worker's job has ended, or a retry is due."""
    chances = [slot.free_at for slot in slots if slot.tenant]
    chances += [job.ready_at for job in queue.waiting() if job.ready_at > now and not queue.blocked(job)]
    later = [moment for moment in chances if moment > now]
    # At the same moment the other worker comes first: its end counts already.
    return math.nextafter(min(later), math.inf) if later else None


def _own_reason(queue: FairQueue, job: QueuedJob, now: float) -> Reason | None:
    """Return why a job would wait now even at the head of the queue."""
    if job.ready_at > now:
        return Reason.RETRY
    return Reason.RUNNING_JOBS if queue.blocked(job) is Blocked.RUNNING_JOBS else None


def _reason(queue: FairQueue, job: QueuedJob, before: _Started | None, now: float) -> Reason:
    if before is None:
        return Reason.NEXT
    if before.job.priority > job.priority:
        return Reason.PRIORITY
    if before.job.tenant == job.tenant:
        return Reason.SUBMIT_ORDER
    longer_unserved = before.level > queue.level(job, now)
    return Reason.FAIR_SHARE if longer_unserved or before.used < queue.used(job.tenant) else Reason.SUBMIT_ORDER


def typical_seconds(past: Sequence[float]) -> float | None:
    """Return the usual duration of a job: the median of the given past durations; None if they are empty."""
    return statistics.median(past) if past else None


@dataclass(frozen=True, slots=True)
class StartError:
    """Error of the estimates of starts: seconds between the estimated and the real start of past jobs."""

    jobs: int
    p50_seconds: float
    p90_seconds: float


def start_error(errors: Sequence[float]) -> StartError | None:
    """Return the median and the 90th percentile of the absolute errors; None without errors."""
    if not errors:
        return None
    absolute = sorted(map(abs, errors))
    return StartError(len(absolute), statistics.median(absolute), absolute[math.ceil(0.9 * len(absolute)) - 1])
