"""End an attempt that failed: the job is queued again if the error may be temporary and attempts are left; otherwise it
fails.

An outage of the installation does not count as a failure of the job. Outages are counted separately, and a job survives
hours of them.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from sqlalchemy import delete
from sqlalchemy.orm import Session

from shared.database.job_results import finish_unjudged, outlives
from shared.database.job_states import Verb
from shared.database.jobs import transition
from shared.database.records import NewEvent
from shared.database.tables.jobs import AttemptLogRow, JobRow
from shared.database.tables.storable import storable
from shared.errors import Code, JobFailed, MensError

MAX_FAILURES = 5
BACKOFF_SECONDS = (1, 5, 15, 60)
OUTAGES = frozenset(
    {
        Code.STORAGE_FULL, Code.STORAGE_UNAVAILABLE, Code.STORAGE_DENIED, Code.STORAGE_BUCKET_NOT_FOUND,
        Code.DATABASE_UNAVAILABLE, Code.SERVING_UNAVAILABLE, Code.API_UNAVAILABLE, Code.HUB_UNAVAILABLE,
        Code.GPU_UNUSABLE, Code.GPU_REQUIRED, Code.GPU_MEMORY_HELD,
    }
)  # fmt: skip
"""Codes of retryable errors whose cause is a part of the installation."""
MAX_OUTAGES = 24
OUTAGE_BACKOFF_SECONDS = (1, 5, 15, 60, 300, 900)
"""Delays between attempts. The first ones are short, because another machine may be healthy. Together they take five
hours, because a job that causes the outage itself, by filling a disk, must end.
"""
KEPT_LOGS = 5
"""Number of attempts per job whose logs are kept."""
CARRIED_OUT = {"cancel": "Job cancelled", "pause": "Job paused"}
"""Outcome of each request of a job's owner. Instead of being tried again, the job gets this outcome."""
LONGEST_DELAY_SECONDS = OUTAGE_BACKOFF_SECONDS[-1]


def keep_log(session: Session, row: JobRow, text: str) -> None:
    """Store the end of the log of the job's current attempt; logs of the oldest attempts are removed."""
    old = AttemptLogRow.attempt <= row.attempt - KEPT_LOGS
    session.execute(delete(AttemptLogRow).where(AttemptLogRow.job_id == row.id, old))
    session.merge(AttemptLogRow(job_id=row.id, attempt=row.attempt, text=storable(text)))


def fail_attempt(session: Session, row: JobRow, error: MensError, now: datetime) -> None:
    if not error.retryable:
        _fail_for_good(session, row, error, now)
        return
    if done := CARRIED_OUT.get(row.requested or ""):
        message = f"{done}; its attempt ended with an error: {error.message}"
        requeue(session, row, now, NewEvent(message=message, data={"error": error.as_dict()}))
        return
    number, limit, delays = _count(row, error)
    if number >= limit:
        last = f"The job failed {number} times; the last time: {error.message}"
        remedy = error.remedy or "Read the job's events, fix the cause and create the job again."
        exhausted = JobFailed(Code.ATTEMPTS_EXHAUSTED, last, remedy=remedy, details={"last": error.as_dict()})
        _fail_for_good(session, row, exhausted, now)
        return
    # The last delay also applies to every further failure.
    delay = delays[min(number, len(delays)) - 1]
    row.not_before = now + timedelta(seconds=delay)
    event = NewEvent(level="warn", message=f"{error} Trying again in {delay} s.", data={"error": error.as_dict()})
    requeue(session, row, now, event)


def _count(row: JobRow, error: MensError) -> tuple[int, int, tuple[int, ...]]:
    """Count a failed attempt; return the number of failures of this kind so far, the number at which the job ends, and
    the delays.
    """
    if error.code in OUTAGES:
        row.outages += 1
        return row.outages, MAX_OUTAGES, OUTAGE_BACKOFF_SECONDS
    row.failures += 1
    return row.failures, MAX_FAILURES, BACKOFF_SECONDS


def requeue(session: Session, row: JobRow, now: datetime, event: NewEvent) -> None:
    """Queue a job again, unless its owner has requested a cancel or a pause, which is carried out instead."""
    verb = {"cancel": Verb.STOP, "pause": Verb.PAUSE_CONFIRMED}.get(row.requested or "", Verb.REQUEUE)
    transition(session, row, verb, now, event)


def _fail_for_good(session: Session, row: JobRow, error: MensError, now: datetime) -> None:
    if outlives(row, error):
        finish_unjudged(session, row, error, now)
        return
    row.error = error.as_dict()
    transition(session, row, Verb.FAIL, now, NewEvent(level="error", message=str(error), data={"error": row.error}))


def expire_attempt(session: Session, row: JobRow, now: datetime) -> None:
    """End an attempt whose lease has expired. A requested cancel or pause is carried out for the lost worker."""
    if done := CARRIED_OUT.get(row.requested or ""):
        requeue(session, row, now, NewEvent(message=f"{done}; its worker no longer responded."))
        return
    error = JobFailed(
        Code.LEASE_EXPIRED,
        f"The worker {row.lease_owner} stopped responding in attempt {row.attempt}.",
        remedy="Check that worker's log and machine; the job continues from its last checkpoint.",
        details={"termination": "orphan"},
        retryable=True,
    )
    fail_attempt(session, row, error, now)
