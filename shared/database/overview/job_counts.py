"""Counts of jobs over all tenants, for an operator's metrics; tenants do not see them."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import func, select

from shared.database.connection import Database
from shared.database.job_states import JobState
from shared.database.tables.jobs import EventRow, JobRow


@dataclass(frozen=True, slots=True)
class JobCount:
    """Number of a tenant's jobs of one kind and state."""

    tenant: str
    kind: str
    state: str
    jobs: int


@dataclass(frozen=True, slots=True)
class QueueAge:
    """Longest wait (s) of a queued job of a kind, since it was last queued."""

    kind: str
    seconds: float


@dataclass(frozen=True, slots=True)
class JobCounts:
    """Jobs of the installation at one moment."""

    counts: list[JobCount]
    ages: list[QueueAge]


def count_jobs(database: Database) -> JobCounts:
    """Count the jobs of all tenants, in one read transaction.

    A job that waits for its retry time is not late, so its wait begins with that time.
    """
    counts = select(JobRow.tenant, JobRow.kind, JobRow.state, func.count()).group_by(
        JobRow.tenant, JobRow.kind, JobRow.state
    )
    # A queued job writes no events while it waits, so the last one says when it was queued.
    queued_at = select(func.max(EventRow.created_at)).where(EventRow.job_id == JobRow.id).scalar_subquery()
    waiting = select(JobRow.kind, queued_at, JobRow.not_before).where(JobRow.state == JobState.QUEUED)
    oldest: dict[str, float] = {}
    with database.read() as session:
        now = database.now(session)
        job_counts = [JobCount(*row) for row in session.execute(counts)]
        for kind, queued, not_before in session.execute(waiting):
            since = max(queued, not_before) if not_before else queued
            oldest[kind] = max(oldest.get(kind, 0.0), (now - since).total_seconds())
    return JobCounts(job_counts, [QueueAge(kind, seconds) for kind, seconds in sorted(oldest.items())])
