"""Records of jobs, which are logs of attempts and series: they are deleted together with the jobs' run folders."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Literal

from sqlalchemy import delete, func, select
from sqlalchemy.orm import InstrumentedAttribute

from shared.database.connection import Database
from shared.database.tables.jobs import AttemptLogRow, JobSeriesRow

JobRecord = Literal["job log", "job series"]
RECORDS: dict[JobRecord, tuple[type[AttemptLogRow | JobSeriesRow], InstrumentedAttribute[Any]]] = {
    "job log": (AttemptLogRow, AttemptLogRow.text),
    "job series": (JobSeriesRow, JobSeriesRow.values),
}
"""Tables, and the column that has the content."""
BATCH = 500
"""Number of jobs in one query."""


def measure_records(database: Database, what: JobRecord, jobs: Collection[str]) -> Mapping[str, int]:
    """Return the size of these records of each job that has any: of logs in characters, of series in bytes."""
    ids, sizes = sorted(jobs), dict[str, int]()
    row, content = RECORDS[what]
    query = select(row.job_id, func.sum(func.length(content))).group_by(row.job_id).order_by(row.job_id)
    with database.read() as session:
        for start in range(0, len(ids), BATCH):
            part = query.where(row.job_id.in_(ids[start : start + BATCH]))
            sizes |= {job_id: int(size) for job_id, size in session.execute(part)}
    return sizes


def remove_records(database: Database, what: JobRecord, job_id: str) -> bool:
    """Delete a job's records; return False if it has none."""
    row, _ = RECORDS[what]
    with database.write() as session:
        gone = session.execute(delete(row).where(row.job_id == job_id).returning(row.attempt))
        return bool(gone.all())
