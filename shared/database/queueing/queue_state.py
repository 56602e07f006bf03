"""The state of the queue, read from the rows, with the place of each job and the accuracy of past estimates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import exists, select
from sqlalchemy.orm import Session

from shared.database.connection import Database
from shared.database.job_states import JobState
from shared.database.queueing.gpu_time import MonthUse, gpu_hold, month_use, recent_use
from shared.database.tables.jobs import GpuTimeRow, JobRow, TenantQuotaRow
from shared.scheduling.forecast import Place, StartError, forecast, start_error
from shared.scheduling.types import Allowance, QueuedJob, QueueState, RunningJob, Share

PAST_STARTS = 200
"""Number of past estimates from which the accuracy is computed."""


@dataclass(frozen=True, slots=True)
class Places:
    """The place of every queued job, by its id, and the error of such estimates of starts."""

    of_job: Mapping[str, Place]
    error: StartError | None


class QueueReader:
    """Read access to the queue, without claims."""

    def __init__(self, database: Database) -> None:
        self._db = database

    def places(self, workers: int, gpus: int = 1) -> Places:
        """Return the place of every queued job of any tenant.

        Args:
            workers: number of live workers.
            gpus: number of GPUs of a job.
        """
        with self._db.read() as session:
            return Places(
                forecast(read_queue(session, self._db.now(session), gpus), workers), start_error(_start_errors(session))
            )

    def note_estimates(self, workers: int, gpus: int = 1) -> int:
        """Store the estimated start of queued jobs without one, so that it can be compared with the real one.

        Returns:
            the number of stored estimates.
        """
        with self._db.write() as session:
            waiting = select(JobRow.id).where(JobRow.state == JobState.QUEUED, JobRow.estimated_at.is_(None))
            without = set(session.scalars(waiting.where(JobRow.started_at.is_(None)).limit(1000)))
            if not without:
                return 0
            now = self._db.now(session)
            places = forecast(read_queue(session, now, gpus), workers)
            starts = {job: place.starts_at for job in without if (place := places.get(job)) and place.starts_at}
            # A row that is locked is being claimed at this moment.
            rows = select(JobRow).where(JobRow.id.in_(starts), JobRow.state == JobState.QUEUED)
            for row in session.scalars(rows.with_for_update(skip_locked=True)).all():
                row.estimated_at, row.estimated_start_at = now, datetime.fromtimestamp(starts[row.id], UTC)
            return len(starts)


QUOTAS = select(TenantQuotaRow)
QUEUED = select(
    JobRow.id,
    JobRow.tenant,
    JobRow.priority,
    JobRow.queued_at,
    JobRow.created_at,
    JobRow.not_before,
    JobRow.expected_seconds,
    JobRow.max_gpu_minutes,
    exists(QUOTAS).label("has_quotas"),
).where(JobRow.state == JobState.QUEUED)
RUNNING = (
    select(
        JobRow.tenant,
        JobRow.expected_seconds,
        JobRow.progress,
        GpuTimeRow.held,
        GpuTimeRow.gpus,
        GpuTimeRow.started_at,
    )
    .outerjoin(GpuTimeRow, (JobRow.id == GpuTimeRow.job_id) & (JobRow.attempt == GpuTimeRow.attempt))
    .where(JobRow.state == JobState.RUNNING)
)


def read_queue(session: Session, now: datetime, gpus: int) -> QueueState:
    """Read the queue's current state.

    Args:
        now: the database's time.
        gpus: number of GPUs of the worker that would claim a job; they determine a job's hold.
    """
    return _state(session, now, session.execute(QUEUED).all(), gpus)


def read_claimable(session: Session, now: datetime, gpus: int) -> QueueState:
    """Read the part of the queue that a claim needs: without quotas, a job that waits alone need not be compared with
    others.

    This is the usual case for an idle worker, so the job starts without needless reads.

    Args:
        now: the database's time.
        gpus: number of GPUs of the worker that claims.
    """
    queued = session.execute(QUEUED).all()
    if len(queued) < 2 and not any(row.has_quotas for row in queued):
        return QueueState(now.timestamp(), _waiting(queued, gpus), {}, {}, [])
    return _state(session, now, queued, gpus)


def _state(session: Session, now: datetime, queued: Sequence[Any], gpus: int) -> QueueState:
    running = list(_running(session, now))
    shares = {
        tenant: Share(use.gpu_seconds, 0, use.served_at.timestamp()) for tenant, use in recent_use(session, now).items()
    }
    for job in running:
        share = shares.setdefault(job.tenant, Share())
        share.used += job.hold
        share.running += 1
    allowances = _allowances(session, now, session.scalars(QUOTAS).all())
    return QueueState(now.timestamp(), _waiting(queued, gpus), shares, allowances, running)


def _waiting(queued: Sequence[Any], gpus: int) -> list[QueuedJob]:
    return [
        QueuedJob(
            row.id,
            row.tenant,
            (row.queued_at or row.created_at).timestamp(),
            row.priority,
            gpu_hold(row.max_gpu_minutes, row.expected_seconds, gpus),
            row.expected_seconds,
            row.not_before.timestamp() if row.not_before else 0.0,
        )
        for row in queued
    ]


def _running(session: Session, now: datetime) -> Sequence[RunningJob]:
    running = []
    for row in session.execute(RUNNING):
        elapsed = (now - row.started_at).total_seconds() if row.started_at else 0.0
        left = row.progress.get("eta_seconds")
        if left is None and row.expected_seconds is not None:
            left = max(0.0, row.expected_seconds - elapsed)
        # A job that exceeds its hold counts with its real use.
        running.append(RunningJob(row.tenant, left, max(row.held or 0.0, (row.gpus or 1) * elapsed)))
    return running


def _allowances(session: Session, now: datetime, quotas: Sequence[TenantQuotaRow]) -> dict[str, Allowance]:
    used = month_use(session, now) if any(quota.gpu_minutes_per_month is not None for quota in quotas) else {}
    allowances = {}
    for quota in quotas:
        month, limit = used.get(quota.tenant, MonthUse()), quota.gpu_minutes_per_month
        left = None if limit is None else 60.0 * limit - month.used - month.held
        allowances[quota.tenant] = Allowance(quota.running_jobs, left)
    return allowances


def _start_errors(session: Session) -> list[float]:
    """Return the number of seconds by which each of the last jobs started later than estimated."""
    query = select(JobRow.started_at, JobRow.estimated_start_at).where(
        JobRow.started_at.is_not(None), JobRow.estimated_start_at.is_not(None)
    )
    rows = session.execute(query.order_by(JobRow.id.desc()).limit(PAST_STARTS))
    return [(row.started_at - row.estimated_start_at).total_seconds() for row in rows]
