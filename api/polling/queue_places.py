"""Places of queued jobs, as callers see them: read from the database at intervals, so that polls do not read a long
queue again.
"""

from __future__ import annotations

import hashlib
import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from datetime import UTC, datetime

from pydantic import BaseModel, Field

from shared.database.job_states import JobState
from shared.database.lists.summaries import JobSummary
from shared.database.queueing.queue_state import Places, QueueReader
from shared.database.records import Job
from shared.scheduling.forecast import Reason
from shared.worker_registry import WorkerRegistry, common_machine

REFRESH_SECONDS = 2.0
LARGEST_SHARE = 0.01
"""Largest share of the time that reading the queue may take: a longer queue is read less often."""
WAIT_SECONDS = 0.5
"""How long the first poll of a new job waits for its place."""
ETAG_SECONDS = 60
"""A job is not sent again for an estimate that moves by less than this."""

EXPLANATIONS = {
    Reason.NEXT: "It is claimed by the next free worker.",
    Reason.PRIORITY: "The job before it has a higher priority.",
    Reason.FAIR_SHARE: "The job before it belongs to a tenant that has used less GPU time in the last 24 hours, or has waited longer for its turn.",
    Reason.SUBMIT_ORDER: "The job before it was submitted earlier.",
    Reason.RETRY: "Its last attempt failed; it is retried after a pause.",
    Reason.RUNNING_JOBS: "Its tenant runs as many jobs as its quota allows.",
    Reason.GPU_MINUTES: "It would reserve more GPU-minutes than its tenant has left this month.",
    Reason.NO_WORKER: "No worker has reported, so the start time is unknown.",
}

logger = logging.getLogger(__name__)


def job_etag(version: int, place: QueuePlace | None) -> str:
    """Return the ETag of a job, which changes with every write to it and with its place."""
    return f'W/"{version}{f"-{place.etag()}" if place else ""}"'


def page_etag(jobs: Iterable[Job | JobSummary], places: Mapping[str, QueuePlace | None]) -> str:
    """Return the ETag of a page of jobs, which changes with each of them and with its place."""
    lines = "\n".join(f"{job.id} {job_etag(job.version, places[job.id])}" for job in jobs)
    return f'W/"{hashlib.blake2b(lines.encode(), digest_size=16).hexdigest()}"'


class EstimateError(BaseModel):
    """Absolute errors, in seconds, of the estimated starts of the last jobs that had an estimate."""

    jobs: int
    p50_seconds: float
    p90_seconds: float


class QueuePlace(BaseModel):
    """Place of a queued job."""

    position: int = Field(description="1: claimed next, among the jobs of all tenants.")
    reason: Reason = Field(description="Reason why it comes after the previous job, or is not claimed.")
    explanation: str
    estimated_start: datetime | None = Field(
        description="Expected start time; null: unknown, e.g. because the duration of an earlier job is unknown."
    )
    estimate_error: EstimateError | None = Field(
        description="Accuracy of such estimates so far; null: no estimates were made yet."
    )

    def etag(self) -> str:
        """ETag of a job's place, which changes with the place."""
        start = int(self.estimated_start.timestamp() // ETAG_SECONDS) if self.estimated_start else 0
        return f"{self.position}.{self.reason}.{start}"


class QueuePlaces:
    """Keeps the queue places of the last reading, and reads them again in a separate thread.

    Args:
        reader: reads the queue.
        workers: registry of live workers.
        clock: monotonic seconds.
    """

    def __init__(
        self, reader: QueueReader, workers: WorkerRegistry, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._reader, self._workers, self._clock = reader, workers, clock
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="queue-places")
        self._places = Places({}, None)
        self._read_at, self._cost = -1e9, 0.0
        self._reading: Future[None] | None = None

    def of(self, job: Job | JobSummary) -> QueuePlace | None:
        """Return the place of a job; None if it is not queued, or cannot be placed now."""
        if job.state is not JobState.QUEUED:
            return None
        is_known = job.id in self._places.of_job
        if self._is_due() or (not is_known and self._clock() - self._read_at > 10 * self._cost):
            reading = self._refresh()
            if not is_known:
                wait([reading], WAIT_SECONDS)
        return self._view(job.id)

    def place(self, job_id: str) -> QueuePlace | None:
        """Return the place of a queued job, or None if the caller must call :meth:`of`, which may take time."""
        return None if self._is_due() else self._view(job_id)

    def of_all(self, jobs: Sequence[Job | JobSummary]) -> Mapping[str, QueuePlace | None]:
        """Return the places of several jobs, by their ids."""
        return {job.id: self.of(job) for job in jobs}

    def close(self) -> None:
        """Stop reading."""
        self._thread.shutdown(cancel_futures=True)

    def _is_due(self) -> bool:
        return self._clock() - self._read_at > max(REFRESH_SECONDS, self._cost / LARGEST_SHARE)

    def _refresh(self) -> Future[None]:
        if self._reading is None or self._reading.done():
            self._reading = self._thread.submit(self._read)
        return self._reading

    def _read(self) -> None:
        try:
            machines = self._workers.machines()
            common = common_machine(machines)
            started = self._clock()
            self._places = self._reader.places(len(machines), max(1, common.devices) if common else 1)
            self._cost = self._clock() - started
        except Exception:
            # If the jobs themselves cannot be read either, the caller gets that error.
            logger.warning("the queue could not be read", exc_info=True)
        # Also after a failure, so that a database that is down is not asked again by every request.
        self._read_at = self._clock()

    def _view(self, job_id: str) -> QueuePlace | None:
        places = self._places
        if (place := places.of_job.get(job_id)) is None:
            return None
        error = places.error
        return QueuePlace(
            position=place.position,
            reason=place.reason,
            explanation=EXPLANATIONS[place.reason],
            estimated_start=None if place.starts_at is None else datetime.fromtimestamp(round(place.starts_at), UTC),
            estimate_error=error
            and EstimateError(jobs=error.jobs, p50_seconds=error.p50_seconds, p90_seconds=error.p90_seconds),
        )
