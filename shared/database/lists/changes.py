"""Changes of jobs: the jobs of all tenants that have changed lately, read from an index."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import NamedTuple

from sqlalchemy import select

from shared.database.connection import Database
from shared.database.tables.jobs import JobRow
from shared.database.tenancy import TenantName

MAX_CHANGES = 5_000
"""Most changed jobs of one reading."""


class ChangedJob(NamedTuple):
    """A job, and its version since its last change."""

    id: str
    version: int
    changed_at: datetime


class ChangedJobs(NamedTuple):
    """The jobs that have changed since a moment, the first change first.

    Attributes:
        read_at: time of the reading, by the database's clock.
        has_more: there are more than were read.
    """

    read_at: datetime
    jobs: Sequence[ChangedJob]
    has_more: bool


def changed_jobs(
    database: Database, since: datetime | None, tenants: Sequence[TenantName] | None = None, limit: int = MAX_CHANGES
) -> ChangedJobs:
    """Return the jobs of all tenants, or of some, that have changed since a moment; None: only what time it is.

    A change becomes visible when its transaction ends, which may be after later ones: read again what is a few seconds
    old. Changes by a process of the previous release are not found.
    """
    query = select(JobRow.id, JobRow.version, JobRow.changed_at).order_by(JobRow.changed_at, JobRow.id)
    if tenants is not None:
        query = query.where(JobRow.tenant.in_(tenants))
    with database.read() as session:
        now = database.now(session)
        if since is None:
            return ChangedJobs(now, [], has_more=False)
        rows = session.execute(query.where(JobRow.changed_at >= since).limit(limit + 1)).all()
        found = [ChangedJob(job_id, version, moment) for job_id, version, moment in rows[:limit] if moment]
        return ChangedJobs(now, found, len(rows) > limit)
