"""Series of a job: the chunks that its attempts have sent, and one value for each step read from them."""

from __future__ import annotations

from array import array
from collections.abc import Collection, Sequence
from typing import NamedTuple

from sqlalchemy import func, select
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.orm import Session

from shared.database.connection import Database
from shared.database.tables.jobs import JobSeriesRow
from shared.job_series import ABSENT, CHUNK_STEPS, SeriesChunk, unpack


class SeriesExtent(NamedTuple):
    """Extent of a job's stored series.

    Attributes:
        attempts: the first step of each attempt that has sent any, by its number.
        last_step: last step of the latest attempt; 0 if nothing is stored.
        names: names of the series.
    """

    attempts: dict[int, int]
    last_step: int
    names: list[str]


def store_chunks(session: Session, job_id: str, attempt: int, chunks: Sequence[SeriesChunk]) -> None:
    """Store chunks of an attempt in place of those that they continue, in a transaction that holds the job's row."""
    if not chunks:
        return
    # One statement: after hours without the database there are thousands, and their transaction delays other writers.
    insert = sqlite.insert if session.get_bind().dialect.name == "sqlite" else postgresql.insert
    new = insert(JobSeriesRow)
    changed = {name: new.excluded[name] for name in ("first_step", "last_step", "values")}
    rows = [{"job_id": job_id, "attempt": attempt, "chunk": chunk.number} | chunk._asdict() for chunk in chunks]
    for row in rows:
        del row["number"]
    session.execute(
        new.on_conflict_do_update(index_elements=["job_id", "attempt", "name", "chunk"], set_=changed), rows
    )


def read_extent(database: Database, job_id: str) -> SeriesExtent:
    """Return the extent of a job's stored series."""
    first, last = func.min(JobSeriesRow.first_step), func.max(JobSeriesRow.last_step)
    query = select(JobSeriesRow.attempt, JobSeriesRow.name, first, last).where(JobSeriesRow.job_id == job_id)
    with database.read() as session:
        rows = list(session.execute(query.group_by(JobSeriesRow.attempt, JobSeriesRow.name)))
    firsts = dict[int, int]()
    for attempt, _, first_step, _ in sorted(rows):
        firsts[attempt] = min(first_step, firsts.get(attempt, first_step))
    latest = max(firsts, default=0)
    last_step = max((row[3] for row in rows if row[0] == latest), default=0)
    return SeriesExtent(firsts, last_step, sorted({row[1] for row in rows}))


def read_series(
    database: Database, job_id: str, extent: SeriesExtent, names: Collection[str], first: int, last: int
) -> dict[str, array[float]]:
    """Return the values of each step of a range, by series; an attempt replaces the steps of earlier ones from its first step
    on. A series that the job does not have is empty. As arrays, because a list of floats takes eight times their memory.

    Args:
        database: the database that has the chunks.
        job_id: the job.
        extent: the stored part of the series.
        names: names of the series.
        first: first step of the range.
        last: last step of the range, not after the extent's.
    """
    query = (
        select(JobSeriesRow.name, JobSeriesRow.attempt, JobSeriesRow.chunk, JobSeriesRow.values)
        .where(
            JobSeriesRow.job_id == job_id,
            JobSeriesRow.name.in_(names),
            JobSeriesRow.chunk.between((first - 1) // CHUNK_STEPS, (last - 1) // CHUNK_STEPS),
        )
        .order_by(JobSeriesRow.attempt, JobSeriesRow.chunk)
    )
    steps = max(last - first + 1, 0)
    series = {name: array("f", [ABSENT]) * (steps if name in extent.names else 0) for name in names}
    begun = 0

    def begin(attempt: int) -> None:
        # Cut: a later attempt may be shorter than the part of an earlier one that it replaces.
        nonlocal begun
        for number in (number for number in extent.attempts if begun < number <= attempt):
            cut = max(extent.attempts[number] - first, 0)
            for values in series.values():
                values[cut:] = array("f", [ABSENT]) * (len(values) - cut)
        begun = max(begun, attempt)

    with database.read() as session:
        for name, attempt, chunk, packed in session.execute(query):
            begin(attempt)
            start = chunk * CHUNK_STEPS + 1
            low, high = max(start, first, extent.attempts.get(attempt, start)), min(start + CHUNK_STEPS - 1, last)
            if low <= high:
                series[name][low - first : high - first + 1] = unpack(packed)[low - start : high - start + 1]
    begin(max(extent.attempts, default=0))
    return series
