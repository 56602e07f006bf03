"""The job ledger, as the people who ask for jobs use it: submit, look, cancel, pause, resume.

What the worker does to a job is in `shared/lease.py`; which verb is allowed when, in `shared/jobstate.py`.
"""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from datetime import datetime
from typing import Any

from sqlalchemy import ColumnElement, Select, func, select
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from shared.db import Database
from shared.deletion import keep_for_merge
from shared.errors import Code, Conflict, NotFound
from shared.job import Event, Job, Kind, MemoryAccuracy, NewEvent, Submission, new_id
from shared.jobstate import FINAL, State, Verb, next_state
from shared.lookup import storable
from shared.tables import EventRow, JobRow
from shared.tenancy import SHARED, TenantName, check_owner, visible_to

JOB_ID_PREFIX = "ftjob"
MAX_MESSAGE_CHARS = 2000


class Ledger:
    """The ledger as a tenant sees it: its own jobs, and those of ``shared``. Each verb is one transaction."""

    def __init__(self, database: Database, tenant: TenantName = SHARED) -> None:
        self._db = database
        self._tenant = tenant
        self._tenants = visible_to(tenant)

    def of(self, tenant: TenantName) -> Ledger:
        """The ledger as another tenant sees it."""
        return Ledger(self._db, tenant)

    def submit(self, submission: Submission) -> tuple[Job, bool]:
        """Queue a job of the tenant. With an idempotency key the same request gives the same job; keys are the tenant's own.

        Returns:
            the job, and whether this call made it.

        Raises:
            Conflict: ``IDEMPOTENCY_CONFLICT``: the key was used with another request.
            NotFound: ``ADAPTER_NOT_FOUND``: the adapter to merge was deleted meanwhile.
        """
        if replayed := self._replayed(submission):
            return replayed, False
        try:
            with self._db.write() as session:
                if submission.kind is Kind.MERGE and (digest := submission.plan.get("adapter_digest")):
                    keep_for_merge(session, self._tenant, digest)
                row = _new_row(submission, self._tenant, self._db.now(session))
                session.add(row)
                session.flush()
                record(session, row, row.created_at, NewEvent(message="Job created and queued."))
                return Job.model_validate(row), True
        except IntegrityError:  # two requests with one key at the same moment: the other one won
            if replayed := self._replayed(submission):
                return replayed, False
            raise

    def get(self, job_id: str) -> Job:
        """Raises:
        NotFound: ``JOB_NOT_FOUND``.
        """
        with self._db.read() as session:
            return Job.model_validate(self._row(session, job_id))

    def list_jobs(
        self,
        *,
        after: str | None = None,
        limit: int = 20,
        kind: Kind | None = None,
        labels: dict[str, str] | None = None,
    ) -> list[Job]:
        """A page of jobs, newest first. One more than ``limit`` means there is more."""
        query = select(JobRow).where(JobRow.tenant.in_(self._tenants)).order_by(JobRow.id.desc())
        if after:
            query = query.where(JobRow.id < after)
        if kind:
            query = query.where(JobRow.kind == kind)
        for key, value in (labels or {}).items():
            query = query.where(self._has_label(storable(key), storable(value)))
        with self._db.read() as session:
            return [Job.model_validate(row) for row in session.scalars(query.limit(limit + 1))]

    def preflight(self, job_id: str) -> dict[str, Any]:
        """What was found before the job trained; see `shared/preflight.py`.

        Raises:
            NotFound: ``JOB_NOT_FOUND``.
        """
        with self._db.read() as session:
            return self._row(session, job_id).preflight

    def memory_accuracy(self) -> list[MemoryAccuracy]:
        """The error of the memory estimates so far, by kind of device."""
        errors: dict[str, list[float]] = defaultdict(list)
        with self._db.read() as session:
            for result in session.scalars(self._results()):
                if memory := result.get("memory"):
                    predicted = memory["predicted_bytes"]
                    errors[memory["device"]].append((memory["peak_bytes"] - predicted) / predicted)
        return [memory_accuracy(device, found) for device, found in sorted(errors.items())]

    def training_rate(self, base_model: str) -> float | None:
        """Tokens per second of the last job that tuned a base here; None when none has."""
        query = self._results().where(JobRow.base_model == base_model)
        with self._db.read() as session:
            result = session.scalar(query.order_by(JobRow.id.desc()).limit(1))
        return (result or {}).get("tokens_per_second")

    def cancel(self, job_id: str) -> Job:
        """Cancel at once what is not running; ask a running job's worker to stop.

        Raises:
            NotFound: ``JOB_NOT_FOUND``. Forbidden: ``TENANT_FORBIDDEN``. Conflict: ``JOB_STATE_CONFLICT``: it is over, or
                already being cancelled.
        """
        return self._request(job_id, Verb.CANCEL, "cancel")

    def pause(self, job_id: str) -> Job:
        """Pause at once what is queued; ask a running job's worker to write a checkpoint and stop.

        Raises:
            NotFound: ``JOB_NOT_FOUND``. Forbidden: ``TENANT_FORBIDDEN``. Conflict: ``JOB_STATE_CONFLICT``.
        """
        return self._request(job_id, Verb.PAUSE, "pause")

    def resume(self, job_id: str) -> Job:
        """Queue a paused job again; it goes on from its last checkpoint.

        Raises:
            NotFound: ``JOB_NOT_FOUND``. Forbidden: ``TENANT_FORBIDDEN``. Conflict: ``JOB_STATE_CONFLICT``.
        """
        with self._db.write() as session:
            row = self._own_row(session, job_id)
            now = self._db.now(session)
            move(session, row, Verb.RESUME, now, NewEvent(message="Job resumed and queued."))
            return Job.model_validate(row)

    def events(self, job_id: str, *, after: int = 0, limit: int = 100) -> list[Event]:
        """Events of a job with ``seq`` above ``after``, oldest first."""
        query = self._events(job_id).where(EventRow.seq > after)
        with self._db.read() as session:
            return [Event.model_validate(row) for row in session.scalars(query.order_by(EventRow.seq).limit(limit))]

    def recent_events(self, job_id: str, *, before: int | None = None, limit: int = 20) -> list[Event]:
        """Events of a job with ``seq`` under ``before``, newest first. One more than ``limit`` means there is more."""
        query = self._events(job_id)
        if before is not None:
            query = query.where(EventRow.seq < before)
        with self._db.read() as session:
            rows = session.scalars(query.order_by(EventRow.seq.desc()).limit(limit + 1))
            return [Event.model_validate(row) for row in rows]

    def _row(self, session: Session, job_id: str, *, lock: bool = False) -> JobRow:
        row = job_row(session, job_id, lock=lock)
        if row.tenant not in self._tenants:
            raise _unknown(job_id)
        return row

    def _own_row(self, session: Session, job_id: str) -> JobRow:
        row = self._row(session, job_id, lock=True)
        check_owner(f"The job {job_id}", row.tenant, self._tenant)
        return row

    def _events(self, job_id: str) -> Select[EventRow]:
        seen = select(JobRow.id).where(JobRow.id == job_id, JobRow.tenant.in_(self._tenants))
        return select(EventRow).where(EventRow.job_id.in_(seen))

    def _results(self) -> Select[dict[str, Any]]:
        return select(JobRow.result).where(
            JobRow.tenant.in_(self._tenants), JobRow.kind == Kind.FINETUNE, JobRow.state == State.SUCCEEDED
        )

    def _request(self, job_id: str, verb: Verb, request: str) -> Job:
        with self._db.write() as session:
            row = self._own_row(session, job_id)
            state = next_state(row.id, State(row.state), verb)
            if state is State.RUNNING and row.requested in ("cancel", request):
                raise Conflict(
                    Code.JOB_STATE_CONFLICT,
                    f"The job {job_id} was already asked to {row.requested}.",
                    remedy="Wait for its worker to stop; the job's events say when it has.",
                )
            now = self._db.now(session)
            event = NewEvent(message=f"Asked to {request}." if state is State.RUNNING else f"Job {state}.")
            move(session, row, verb, now, event)
            row.requested = request if state is State.RUNNING else None
            return Job.model_validate(row)

    def _has_label(self, key: str, value: str) -> ColumnElement[bool]:
        if not self._db.is_sqlite:
            label: ColumnElement[bool] = JobRow.labels[key].as_string() == value
            return label
        pair = func.json_each(JobRow.labels).table_valued("key", "value")  # a JSON path would have to be quoted
        return select(pair.c.key).where(pair.c.key == key, pair.c.value == value).exists()

    def _replayed(self, submission: Submission) -> Job | None:
        if submission.idempotency_key is None:
            return None
        query = select(JobRow).where(
            JobRow.tenant == self._tenant, JobRow.idempotency_key == submission.idempotency_key
        )
        with self._db.read() as session:
            row = session.scalar(query)
            if row is not None and row.request_digest != submission.request_digest:
                raise Conflict(
                    Code.IDEMPOTENCY_CONFLICT,
                    f"The Idempotency-Key was already used by the job {row.id} with another request.",
                    remedy="Use a new key for a new request.",
                    param="Idempotency-Key",
                )
            return None if row is None else Job.model_validate(row)


def memory_accuracy(device: str, errors: list[float]) -> MemoryAccuracy:
    """Median, 95th percentile and worst of the relative errors of one kind of device."""
    absolute = sorted(map(abs, errors))
    return MemoryAccuracy(
        device=device,
        jobs=len(errors),
        median_error=statistics.median(errors),
        p95_absolute_error=absolute[math.ceil(0.95 * len(absolute)) - 1],
        worst_error=max(errors, key=abs),
    )


def job_row(session: Session, job_id: str, *, lock: bool = False) -> JobRow:
    """A job's row, locked for this transaction when asked.

    Raises:
        NotFound: ``JOB_NOT_FOUND``.
    """
    row = session.get(JobRow, job_id, with_for_update=lock)
    if row is None:
        raise _unknown(job_id)
    return row


def move(session: Session, row: JobRow, verb: Verb, now: datetime, *events: NewEvent) -> None:
    """Take a verb: the state machine decides, times and events are written with it.

    Raises:
        Conflict: ``JOB_STATE_CONFLICT``.
    """
    state = next_state(row.id, State(row.state), verb)
    row.state = state
    if state is not State.RUNNING:
        row.stage = row.requested = row.lease_owner = row.lease_expires_at = None
    if state in FINAL:
        row.finished_at = now
    row.version += 1
    record(session, row, now, *events)


def record(session: Session, row: JobRow, now: datetime, *events: NewEvent) -> None:
    """Append events to a job whose row this transaction holds, so that ``seq`` is also the order of commit."""
    for event in events:
        fields: dict[str, Any] = event.model_dump()
        fields["message"] = storable(fields["message"])[:MAX_MESSAGE_CHARS]
        session.add(EventRow(job_id=row.id, created_at=now, **fields))
    session.flush()


def _unknown(job_id: str) -> NotFound:
    return NotFound(Code.JOB_NOT_FOUND, f"There is no job {job_id!r}.", remedy="List them: GET /v1/jobs.")


def _new_row(submission: Submission, tenant: TenantName, now: datetime) -> JobRow:
    return JobRow(
        id=new_id(JOB_ID_PREFIX),
        tenant=tenant,
        state=str(State.QUEUED),
        created_at=now,
        progress={},
        result={},
        attempt=0,
        failures=0,
        version=1,
        **submission.model_dump(mode="json") | {"labels": _without_nul(submission.labels)},
    )


def _without_nul(labels: dict[str, Any]) -> dict[str, Any]:
    return {storable(key): storable(value) if isinstance(value, str) else value for key, value in labels.items()}
