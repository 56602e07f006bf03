"""Logs of attempts that are kept with their jobs: they are deleted with the jobs' run folders."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from sqlalchemy import delete, func, select

from shared.database.connection import Database
from shared.database.tables.jobs import AttemptLogRow

BATCH = 500
"""Jobs of one query."""


def measure_logs(database: Database, jobs: Collection[str]) -> Mapping[str, int]:
    """Return the size of the logs of each of these jobs that has any, in characters."""
    ids, sizes = sorted(jobs), dict[str, int]()
    size = func.sum(func.length(AttemptLogRow.text))
    query = select(AttemptLogRow.job_id, size).group_by(AttemptLogRow.job_id).order_by(AttemptLogRow.job_id)
    with database.read() as session:
        for start in range(0, len(ids), BATCH):
            part = query.where(AttemptLogRow.job_id.in_(ids[start : start + BATCH]))
            sizes |= {job_id: int(found) for job_id, found in session.execute(part)}
    return sizes


def remove_logs(database: Database, job_id: str) -> bool:
    """Delete a job's logs; return False if it has none."""
    with database.write() as session:
        gone = session.execute(
            delete(AttemptLogRow).where(AttemptLogRow.job_id == job_id).returning(AttemptLogRow.attempt)
        )
        return bool(gone.all())
