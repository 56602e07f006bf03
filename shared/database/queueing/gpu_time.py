"""GPU time: the hold of an attempt at its beginning, its use at its end, and the use of tenants.

Holds and their settlement are in the transactions that begin and end attempts, so none can be lost or counted twice.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from sqlalchemy import ColumnElement, and_, bindparam, case, func, not_, select
from sqlalchemy.orm import Session

from shared.database.job_states import JobState
from shared.database.tables.base import insert_rows
from shared.database.tables.jobs import GpuTimeRow, JobRow
from shared.scheduling.forecast import typical_seconds
from shared.scheduling.types import PRIORITY_SECONDS, RECENT_SECONDS, UNKNOWN_SECONDS

PAST_JOBS = 20
"""Number of past jobs of a kind from which the duration of the next one is estimated."""
ABANDONED = "abandoned"
"""Outcome of an attempt whose end a process of another release recorded."""


@dataclass(frozen=True, slots=True)
class Spent:
    """Total time that earlier attempts at a job have used."""

    wall_seconds: float = 0.0
    gpu_seconds: float = 0.0


NOTHING_SPENT = Spent()


def gpu_hold(max_gpu_minutes: float | None, expected_seconds: float | None, gpus: int) -> float:
    """Return the GPU-seconds that a job holds while it runs: its budget if it has one, else its expected use."""
    if max_gpu_minutes is not None:
        return 60.0 * max_gpu_minutes
    return gpus * (UNKNOWN_SECONDS if expected_seconds is None else expected_seconds)


def begin_hold(session: Session, row: JobRow, gpus: int, now: datetime) -> None:
    """Record the hold of an attempt that begins."""
    hold = {
        "job_id": row.id,
        "attempt": row.attempt,
        "tenant": row.tenant,
        "kind": row.kind,
        "base_model": row.base_model,
        "gpus": gpus,
        "started_at": now,
        "held": gpu_hold(row.max_gpu_minutes, row.expected_seconds, gpus),
    }
    insert_rows(session, GpuTimeRow, [hold])


def settle_hold(session: Session, row: JobRow, outcome: JobState, now: datetime) -> None:
    """Replace the hold of the job's attempt by its use."""
    held = session.get(GpuTimeRow, (row.id, row.attempt))
    if held is not None and held.ended_at is None:
        held.ended_at, held.outcome = now, str(outcome)
        held.used = held.gpus * (now - held.started_at).total_seconds()


def settle_abandoned(session: Session, now: datetime) -> None:
    """Settle the holds of ended attempts that are still open: a worker or an API of the previous release ended them."""
    owner = select(JobRow.id).where(
        JobRow.id == GpuTimeRow.job_id, JobRow.state == JobState.RUNNING, JobRow.attempt == GpuTimeRow.attempt
    )
    open_rows = session.scalars(select(GpuTimeRow).where(GpuTimeRow.ended_at.is_(None), not_(owner.exists())))
    for row in open_rows.all():
        used = row.gpus * (now - row.started_at).total_seconds()
        row.ended_at, row.outcome, row.used = now, ABANDONED, used


def spent_on(session: Session, job_id: str) -> Spent:
    """Sum the time that a job's ended attempts used."""
    rows = session.scalars(select(GpuTimeRow).where(GpuTimeRow.job_id == job_id, GpuTimeRow.used.is_not(None))).all()
    used = [row.used or 0.0 for row in rows]
    return Spent(sum(seconds / row.gpus for seconds, row in zip(used, rows, strict=True)), sum(used))


def seconds_like(session: Session, kind: str, base_model: str) -> float | None:
    """Estimate the duration of a job from the last successful jobs of its kind on its base or, if none has
    succeeded on it, on all bases.

    Returns:
        None if no job of the kind has succeeded.
    """
    for same in (and_(GpuTimeRow.kind == kind, GpuTimeRow.base_model == base_model), GpuTimeRow.kind == kind):
        if past := _past_seconds(session, same):
            return typical_seconds(past)
    return None


def _past_seconds(session: Session, which: ColumnElement[bool]) -> Sequence[float]:
    query = select(GpuTimeRow.used / GpuTimeRow.gpus).where(which, GpuTimeRow.outcome == str(JobState.SUCCEEDED))
    newest = session.scalars(query.order_by(GpuTimeRow.ended_at.desc()).limit(PAST_JOBS))
    return [seconds for seconds in newest if seconds is not None]


RECENT = (
    select(
        GpuTimeRow.tenant,
        func.sum(case((GpuTimeRow.ended_at > bindparam("since"), GpuTimeRow.used), else_=0.0)).label("used"),
        func.max(GpuTimeRow.ended_at).label("served_at"),
    )
    .where(GpuTimeRow.ended_at > bindparam("oldest"))
    .group_by(GpuTimeRow.tenant)
)
"""Statement of the recent use; built once, like all of a claim, because building takes longer than running it."""


@dataclass(frozen=True, slots=True)
class RecentUse:
    """A tenant's ended attempts: GPU-seconds of the last 24 hours, and when the last one ended."""

    gpu_seconds: float
    served_at: datetime


def recent_use(session: Session, now: datetime) -> dict[str, RecentUse]:
    """Return each tenant's recent use; tenants without an attempt for days are left out."""
    since = now - timedelta(seconds=RECENT_SECONDS)
    # Attempts that ended earlier make no difference to a level of priority.
    oldest = now - timedelta(seconds=10 * PRIORITY_SECONDS + RECENT_SECONDS)
    rows = session.execute(RECENT, {"since": since, "oldest": oldest})
    return {row.tenant: RecentUse(float(row.used or 0.0), row.served_at) for row in rows}


def month_start(now: datetime) -> datetime:
    """Return the start of the current month of quotas, in UTC."""
    return now.astimezone(UTC).replace(day=1, hour=0, minute=0, second=0, microsecond=0)


def next_month(now: datetime) -> datetime:
    """Return the start of the next month of quotas."""
    start = month_start(now)
    return start.replace(year=start.year + start.month // 12, month=start.month % 12 + 1)


@dataclass(frozen=True, slots=True)
class MonthUse:
    """GPU-seconds of a tenant's attempts that began in this month: used by ended attempts, held by running ones."""

    used: float = 0.0
    held: float = 0.0


def month_use(session: Session, now: datetime) -> dict[str, MonthUse]:
    """Return the time that each tenant has used and holds this month, by the month in which an attempt began."""
    query = select(
        GpuTimeRow.tenant,
        func.sum(func.coalesce(GpuTimeRow.used, 0.0)).label("used"),
        func.sum(case((GpuTimeRow.used.is_(None), GpuTimeRow.held), else_=0.0)).label("held"),
    )
    rows = session.execute(query.where(GpuTimeRow.started_at >= month_start(now)).group_by(GpuTimeRow.tenant))
    return {row.tenant: MonthUse(float(row.used), float(row.held)) for row in rows}


def minutes(gpu_seconds: float) -> float:
    """Convert to GPU-minutes, rounded up to a tenth, as callers see them."""
    return math.ceil(gpu_seconds / 6.0) / 10
