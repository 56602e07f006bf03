"""Numbers of jobs by state, counted without reading the jobs."""

from __future__ import annotations

from sqlalchemy import func, select

from shared.database.connection import Database
from shared.database.job_states import JobState
from shared.database.lists.job_filter import JobFilter
from shared.database.tables.jobs import JobRow
from shared.database.tenancy import TenantName, visible_to


def count_states(database: Database, tenant: TenantName, which: JobFilter) -> dict[JobState, int]:
    """Return the number of jobs that a tenant sees in each state; states without jobs are left out."""
    query = select(JobRow.state, func.count()).where(
        JobRow.tenant.in_(visible_to(tenant)), *which.conditions(is_sqlite=database.is_sqlite)
    )
    with database.read() as session:
        return {JobState(state): jobs for state, jobs in session.execute(query.group_by(JobRow.state))}
