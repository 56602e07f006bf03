"""The job ledger, as workers use it: claim a job, keep the lease, report, and end the attempt.

The attempt number is the fencing token. Every write here carries it and is refused once another attempt has begun, so a
worker that was thought dead cannot change a job it lost, whatever it still believes.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Literal

from sqlalchemy import or_, select
from sqlalchemy.orm import Session

from shared.aliases import Mover, hold_alias, move_alias
from shared.db import Database
from shared.deletion import keep_for_job
from shared.errors import Code, JobFailed, LeaseLost, MensError
from shared.job import Job, NewEvent
from shared.jobstate import Stage, State, Verb
from shared.ledger import job_row, move, record
from shared.registry import NewAdapter, add_file, register_adapters
from shared.routing import Routing
from shared.tables import AliasRow, JobRow

MAX_FAILURES = 5
BACKOFF_SECONDS = (1, 5, 15, 60)


@dataclass(frozen=True, slots=True)
class Lease:
    """The right to write one job, until it expires."""

    job: Job
    token: int


@dataclass(frozen=True, slots=True)
class ResultFile:
    """A file that a job produced and stored, e.g. its metrics."""

    filename: str
    bytes: int
    sha256: str


class LeaseLedger:
    """Verbs of the worker and of the sweeper; each is one transaction."""

    def __init__(self, database: Database, lease_seconds: float) -> None:
        self._db = database
        self._lease = timedelta(seconds=lease_seconds)

    def claim(self, job_id: str, worker: str) -> Lease | None:
        """Take a queued job, or None when it is not there to be taken: claimed, over, or waiting for its retry time."""
        with self._db.write() as session:
            row = session.scalar(select(JobRow).where(JobRow.id == job_id).with_for_update(skip_locked=True))
            now = self._db.now(session)
            if row is None or row.state != State.QUEUED or (row.not_before and row.not_before > now):
                return None
            row.attempt += 1
            row.lease_owner, row.lease_expires_at = worker, now + self._lease
            row.started_at = row.started_at or now
            row.error = None
            event = NewEvent(message=f"Attempt {row.attempt} started.", data={"attempt": row.attempt, "worker": worker})
            move(session, row, Verb.CLAIM, now, event)
            return Lease(Job.model_validate(row), row.attempt)

    def heartbeat(self, lease: Lease) -> Literal["cancel", "pause"] | None:
        """Extend the lease; returns what the job's owner asked for meanwhile.

        Raises:
            LeaseLost: another attempt owns the job.
        """
        with self._db.write() as session:
            row = self._held(session, lease)
            row.lease_expires_at = self._db.now(session) + self._lease
            return Job.model_validate(row).requested

    def report(
        self,
        lease: Lease,
        *,
        stage: Stage | None = None,
        progress: dict[str, Any] | None = None,
        preflight: dict[str, Any] | None = None,
        events: list[NewEvent],
    ) -> None:
        """Write a stage, progress and events.

        Raises:
            LeaseLost: another attempt owns the job.
        """
        with self._db.write() as session:
            row = self._held(session, lease)
            row.stage = stage or row.stage
            row.progress = {**row.progress, **(progress or {})}
            if preflight is not None:
                row.preflight = preflight
            row.version += 1
            record(session, row, self._db.now(session), *events)

    def keep_adapters(self, lease: Lease, digests: list[str]) -> None:
        """Keep what has the same content from being removed until the job is over: it is about to store these adapters.

        Raises:
            LeaseLost: another attempt owns the job.
        """
        with self._db.write() as session:
            keep_for_job(session, self._held(session, lease), digests)

    def finish(
        self,
        lease: Lease,
        result: dict[str, Any],
        *,
        adapters: list[NewAdapter] | None = None,
        alias: str | None = None,
        files: list[ResultFile] | None = None,
    ) -> Job:
        """Succeed: the job, and its tenant's new adapters, result files and alias, in one transaction.

        Raises:
            LeaseLost: another attempt owns the job; nothing was written.
        """
        with self._db.write() as session:
            row = self._held(session, lease)
            now = self._db.now(session)
            final = next((adapter for adapter in adapters or [] if adapter.final), None)
            held = hold_alias(session, row.tenant, alias, now) if alias and final and final.published else None
            register_adapters(session, row.tenant, row.id, adapters or [], now)
            message = f"Job succeeded; new adapter {final.id}." if final else "Job succeeded."
            if held and final:
                hidden = move_alias(session, held, Routing.to(final.id), Mover.job(row.id), "The job succeeded.", now)
                message += _moved(held, hidden)
            stored = [_add_result(session, row, file) for file in files or []]
            row.result = {**result, "result_files": stored, "adapters": [adapter.id for adapter in adapters or []]}
            move(session, row, Verb.FINISH, now, NewEvent(message=message, data=result))
            return Job.model_validate(row)

    def quarantine(self, lease: Lease, adapter: NewAdapter) -> None:
        """Register an adapter whose certificates did not hold: it can be looked at, but neither asked nor aliased.

        Raises:
            LeaseLost: another attempt owns the job; nothing was written.
        """
        with self._db.write() as session:
            row = self._held(session, lease)
            register_adapters(session, row.tenant, row.id, [adapter], self._db.now(session))

    def fail(self, lease: Lease, error: MensError) -> Job:
        """End the attempt badly: queue the job again when the error is retryable and attempts are left, else fail it.

        Raises:
            LeaseLost: another attempt owns the job.
        """
        with self._db.write() as session:
            row = self._held(session, lease)
            _fail(session, row, error, self._db.now(session))
            return Job.model_validate(row)

    def stop(self, lease: Lease) -> None:
        """Confirm a cancel: the engine has ended.

        Raises:
            LeaseLost: another attempt owns the job.
        """
        with self._db.write() as session:
            now = self._db.now(session)
            move(session, self._held(session, lease), Verb.STOP, now, NewEvent(message="Job cancelled."))

    def confirm_pause(self, lease: Lease) -> None:
        """Confirm a pause: the engine has written a checkpoint and ended.

        Raises:
            LeaseLost: another attempt owns the job.
        """
        with self._db.write() as session:
            row, now = self._held(session, lease), self._db.now(session)
            cancelled = row.requested == "cancel"  # asked for while the engine was pausing
            verb = Verb.STOP if cancelled else Verb.PAUSE_CONFIRMED
            message = "Job cancelled." if cancelled else "Job paused with a checkpoint."
            move(session, row, verb, now, NewEvent(message=message))

    def release(self, lease: Lease, reason: str) -> None:
        """Give a job back because this worker stops; the attempt does not count as a failure.

        Raises:
            LeaseLost: another attempt owns the job.
        """
        with self._db.write() as session:
            now = self._db.now(session)
            event = NewEvent(level="warn", message=f"Given back to the queue: {reason}.")
            _requeue(session, self._held(session, lease), now, event)

    def sweep(self) -> list[str]:
        """Take back expired leases, then name the queued jobs that may be rung for, oldest first."""
        with self._db.write() as session:
            now = self._db.now(session)
            expired = select(JobRow).where(JobRow.state == State.RUNNING, JobRow.lease_expires_at < now)
            for row in session.scalars(expired.with_for_update(skip_locked=True)).all():
                _expire(session, row, now)
            ready = select(JobRow.id).where(
                JobRow.state == State.QUEUED, or_(JobRow.not_before.is_(None), JobRow.not_before <= now)
            )
            return list(session.scalars(ready.order_by(JobRow.created_at).limit(1000)))

    def _held(self, session: Session, lease: Lease) -> JobRow:
        row = job_row(session, lease.job.id, lock=True)
        if row.attempt != lease.token or row.state != State.RUNNING:
            raise LeaseLost(
                Code.LEASE_LOST,
                f"Attempt {lease.token} no longer owns the job {row.id} (now {row.state}, attempt {row.attempt}).",
                remedy="Nothing: the worker stops by itself and the current attempt goes on.",
            )
        return row


def _add_result(session: Session, row: JobRow, file: ResultFile) -> str:
    return add_file(session, row.tenant, file.filename, "fine-tune-results", file.bytes, file.sha256).id


def _moved(alias: AliasRow, hidden: str | None) -> str:
    hides = f" and hides {hidden}'s alias {alias.name} from {alias.tenant}, until it is deleted" if hidden else ""
    return f" The alias {alias.name} points to it{hides}."


def _fail(session: Session, row: JobRow, error: MensError, now: datetime) -> None:
    if not error.retryable:
        _fail_for_good(session, row, error, now)
        return
    row.failures += 1
    if row.failures >= MAX_FAILURES:
        last = f"The job failed {row.failures} times; the last time: {error.message}"
        remedy = error.remedy or "Read the job's events, mend the cause and create the job again."
        exhausted = JobFailed(Code.ATTEMPTS_EXHAUSTED, last, remedy=remedy, details={"last": error.as_dict()})
        _fail_for_good(session, row, exhausted, now)
        return
    delay = BACKOFF_SECONDS[min(row.failures, len(BACKOFF_SECONDS)) - 1]
    row.not_before = now + timedelta(seconds=delay)
    event = NewEvent(level="warn", message=f"{error} Trying again in {delay} s.", data={"error": error.as_dict()})
    _requeue(session, row, now, event)


def _requeue(session: Session, row: JobRow, now: datetime, event: NewEvent) -> None:
    """Back to the queue, unless the job's owner has asked for something else meanwhile."""
    verb = {"cancel": Verb.STOP, "pause": Verb.PAUSE_CONFIRMED}.get(row.requested or "", Verb.REQUEUE)
    move(session, row, verb, now, event)


def _fail_for_good(session: Session, row: JobRow, error: MensError, now: datetime) -> None:
    row.error = error.as_dict()
    move(session, row, Verb.FAIL, now, NewEvent(level="error", message=str(error), data={"error": row.error}))


def _expire(session: Session, row: JobRow, now: datetime) -> None:
    """A lease ran out: the worker is gone. What its owner had asked for is done on its behalf."""
    if row.requested == "cancel":
        move(session, row, Verb.STOP, now, NewEvent(message="Job cancelled; its worker had gone."))
        return
    if row.requested == "pause":
        move(session, row, Verb.PAUSE_CONFIRMED, now, NewEvent(message="Job paused; its worker had gone."))
        return
    error = JobFailed(
        Code.LEASE_EXPIRED,
        f"The worker {row.lease_owner} stopped answering in attempt {row.attempt}.",
        remedy="Look at that worker's log and machine; the job goes on from its last checkpoint.",
        retryable=True,
    )
    _fail(session, row, error, now)
