"""Jobs, with the operations of callers: submit, get, list, cancel, pause, resume.

The operations of workers are in `leases.py`; which verb is allowed in which state, in `job_states.py`.
"""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Collection, Sequence
from datetime import datetime
from typing import Any, NamedTuple

from sqlalchemy import Row, Select, select
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from shared.database.audit.actors import current_actor
from shared.database.connection import Database
from shared.database.deletions import adapter_needed_by, keep_for_job, keep_models_for_job, models_of
from shared.database.evaluation.runs import add_run
from shared.database.job_states import FINAL, JobState, Verb, next_state
from shared.database.lists.job_filter import ALL_JOBS, JobFilter
from shared.database.lists.pages import page_of_rows
from shared.database.lists.state_counts import count_states
from shared.database.lists.summaries import JobSummary, list_summaries
from shared.database.queueing.gpu_time import gpu_hold, seconds_like, settle_hold
from shared.database.queueing.quotas import check_quota
from shared.database.records import Event, Job, Kind, MemoryAccuracy, NewEvent, Submission, new_id
from shared.database.tables.base import insert_rows
from shared.database.tables.jobs import AttemptLogRow, EventRow, JobRow
from shared.database.tables.storable import storable
from shared.database.tenancy import SHARED, TenantName, check_owner, visible_to
from shared.database.webhooks.outbox import add_end_of_job
from shared.errors import Code, Conflict, NotFound
from shared.observability.tracing import current_traceparent

JOB_ID_PREFIX = "ftjob"
# The column's length: PostgreSQL refuses a longer string, and the attempt would fail because of an event.
MAX_MESSAGE_CHARS = 2000
LAST_RESULTS = 20
"""Number of most recent results that are searched for a measured speed."""


class TrainingRate(NamedTuple):
    """A measured speed of training, and the job in which it was measured.

    Attributes:
        other_seconds: seconds that this job took in addition to its training, for loading, evaluation and publishing;
            None unless one attempt did all of it.
    """

    tokens_per_second: float
    job: str
    other_seconds: float | None = None


class AttemptLog(NamedTuple):
    """The end of a failed attempt's log."""

    attempt: int
    text: str


class Jobs:
    """Jobs as a tenant sees them: its own, and those of ``shared``. Each operation runs in one transaction."""

    def __init__(self, database: Database, tenant: TenantName = SHARED) -> None:
        self._db = database
        self._tenant = tenant
        self._tenants = visible_to(tenant)

    def of(self, tenant: TenantName) -> Jobs:
        """Return the jobs as another tenant sees them."""
        return Jobs(self._db, tenant)

    def submit(self, submission: Submission) -> tuple[Job, bool]:
        """Queue a job of the tenant. With an idempotency key the same request returns the same job; keys are the
        tenant's own.

        Returns:
            the job, and whether this call created it.

        Raises:
            Conflict: ``IDEMPOTENCY_CONFLICT``: the key was used with another request.
        """
        if replayed := self._replayed(submission):
            return replayed, False
        labels = {
            storable(key): storable(value) if isinstance(value, str) else value
            for key, value in submission.labels.items()
        }
        try:
            with self._db.write() as session:
                now = self._db.now(session)
                expected = submission.expected_seconds
                if expected is None:
                    expected = seconds_like(session, submission.kind, submission.base_model)
                check_quota(session, self._tenant, gpu_hold(submission.max_gpu_minutes, expected, 1), now)
                if digest := adapter_needed_by(submission.kind, submission.plan):
                    keep_for_job(session, self._tenant, digest)
                if submission.kind == Kind.EVALUATE:
                    keep_models_for_job(session, self._tenant, models_of(submission.plan))
                row = JobRow(
                    id=new_id(JOB_ID_PREFIX),
                    tenant=self._tenant,
                    state=str(JobState.QUEUED),
                    created_at=now,
                    created_by=current_actor().key_name,
                    queued_at=now,
                    changed_at=now,
                    progress={},
                    result={},
                    attempt=0,
                    failures=0,
                    version=1,
                    traceparent=current_traceparent(),
                    **submission.model_dump(mode="json", exclude={"eval_id", "run_name", "events"})
                    | {"labels": labels, "expected_seconds": expected},
                )
                session.add(row)
                session.flush()
                if submission.eval_id:
                    add_run(session, row, submission.eval_id, submission.run_name)
                add_events(
                    session, row, row.created_at, NewEvent(message="Job created and queued."), *submission.events
                )
                return Job.model_validate(row), True
        except IntegrityError:
            # Two requests with one key at the same moment: the other one was committed first.
            if replayed := self._replayed(submission):
                return replayed, False
            raise

    def get(self, job_id: str) -> Job:
        """Return a job by its id.

        Raises:
            NotFound: ``JOB_NOT_FOUND``.
        """
        with self._db.read() as session:
            return Job.model_validate(self._row(session, job_id))

    def list(self, which: JobFilter = ALL_JOBS, *, after: str | None = None, limit: int = 20) -> Sequence[Job]:
        """Return a page of jobs, newest first; one more than ``limit`` if more follow.

        Args:
            which: the jobs of the list.
            after: id of the last job of the page before.
            limit: the page's size.
        """
        query = select(JobRow).where(*which.conditions(is_sqlite=self._db.is_sqlite))
        if after:
            query = query.where(JobRow.id < after)
        with self._db.read() as session:
            rows = page_of_rows(session, query, JobRow, self._tenants, limit, newest_first=True)
            return [Job.model_validate(row) for row in rows]

    def summaries(
        self, which: JobFilter = ALL_JOBS, *, after: str | None = None, limit: int = 20
    ) -> Sequence[JobSummary]:
        """Return a page of summaries, as :meth:`list` returns jobs."""
        return list_summaries(self._db, self._tenant, which, after, limit)

    def count_states(self, which: JobFilter = ALL_JOBS) -> dict[JobState, int]:
        """Return the number of jobs in each state."""
        return count_states(self._db, self._tenant, which)

    def preflight(self, job_id: str) -> dict[str, Any]:
        """Return the job's preflight record; see `shared/preflight/pipeline.py`.

        Raises:
            NotFound: ``JOB_NOT_FOUND``.
        """
        with self._db.read() as session:
            return self._row(session, job_id).preflight

    def log(self, job_id: str, attempt: int | None = None) -> AttemptLog | None:
        """Return the end of the log of an attempt: the given one, or the last attempt that has a log; None if no log
        was kept.

        Raises:
            NotFound: ``JOB_NOT_FOUND``: also for a job that other tenants see, because a log may quote rows.
        """
        query = select(AttemptLogRow).where(AttemptLogRow.job_id == job_id).order_by(AttemptLogRow.attempt.desc())
        if attempt is not None:
            query = query.where(AttemptLogRow.attempt == attempt)
        with self._db.read() as session:
            if self._row(session, job_id).tenant != self._tenant:
                raise _unknown(job_id)
            row = session.scalar(query.limit(1))
            return None if row is None else AttemptLog(row.attempt, row.text)

    def memory_accuracy(self) -> Sequence[MemoryAccuracy]:
        """Return the errors of the memory estimates so far, by kind of device."""
        errors: dict[str, list[float]] = defaultdict(list)
        with self._db.read() as session:
            for result in session.scalars(self._results()):
                if memory := result.get("memory"):
                    predicted = memory["predicted_bytes"]
                    errors[memory["device"]].append((memory["peak_bytes"] - predicted) / predicted)
        return [memory_accuracy(device, of_device) for device, of_device in sorted(errors.items())]

    def training_rate(self, base_model: str) -> TrainingRate | None:
        """Return the speed of the last job that tuned a base on this installation; None if no job has a speed."""
        columns = (JobRow.id, JobRow.attempt, JobRow.started_at, JobRow.finished_at)
        query = self._results().add_columns(*columns).where(JobRow.base_model == base_model)
        with self._db.read() as session:
            rows = session.execute(query.order_by(JobRow.id.desc()).limit(LAST_RESULTS)).all()
        # A job whose last attempt had no step left has no speed.
        row = next((row for row in rows if row.result.get("tokens_per_second")), None)
        return TrainingRate(row.result["tokens_per_second"], row.id, _other_seconds(row)) if row else None

    def cancel(self, job_id: str) -> Job:
        """Cancel a job immediately if it is not running; otherwise request that its worker stops.

        Raises:
            NotFound: ``JOB_NOT_FOUND``.
            Conflict: ``JOB_STATE_CONFLICT``: it has finished, or is already being cancelled.
        """
        return self._request(job_id, Verb.CANCEL, "cancel")

    def pause(self, job_id: str) -> Job:
        """Pause a queued job immediately; for a running job, request that its worker writes a checkpoint and stops.

        Raises:
            NotFound: ``JOB_NOT_FOUND``.
            Conflict: ``JOB_STATE_CONFLICT``.
        """
        return self._request(job_id, Verb.PAUSE, "pause")

    def resume(self, job_id: str) -> Job:
        """Queue a paused job again; it continues from its last checkpoint.

        Raises:
            NotFound: ``JOB_NOT_FOUND``.
        """
        with self._db.write() as session:
            row = self._own_row(session, job_id)
            next_state(row.id, JobState(row.state), Verb.RESUME)
            now = self._db.now(session)
            check_quota(session, row.tenant, gpu_hold(row.max_gpu_minutes, row.expected_seconds, 1), now)
            row.queued_at = now
            transition(session, row, Verb.RESUME, now, NewEvent(message="Job resumed and queued.", data=_by_caller()))
            return Job.model_validate(row)

    def set_priority(self, job_id: str, priority: int) -> Job:
        """Change the priority of a job that has not finished; it takes effect the next time that the job waits.

        Raises:
            NotFound: ``JOB_NOT_FOUND``.
            Conflict: ``JOB_STATE_CONFLICT``: it has finished.
        """
        with self._db.write() as session:
            row = self._own_row(session, job_id)
            if JobState(row.state) in FINAL:
                raise Conflict(
                    Code.JOB_STATE_CONFLICT,
                    f"The job {job_id} is {row.state}, so its priority no longer matters.",
                    remedy="Its outcome is final; create a new job instead.",
                )
            if row.priority != priority:
                message = f"Priority changed from {row.priority} to {priority}."
                row.priority = priority
                now = self._db.now(session)
                count_change(row, now)
                add_events(session, row, now, NewEvent(message=message))
            return Job.model_validate(row)

    def events(self, job_id: str, *, after: int = 0, limit: int = 100) -> Sequence[Event]:
        """Return events of a job with ``seq`` above ``after``, oldest first."""
        query = self._events(job_id).where(EventRow.seq > after)
        with self._db.read() as session:
            return [Event.model_validate(row) for row in session.scalars(query.order_by(EventRow.seq).limit(limit))]

    def recent_events(self, job_id: str, *, before: int | None = None, limit: int = 20) -> Sequence[Event]:
        """Return a job's events with ``seq`` under ``before``, newest first; one more than ``limit`` if more follow."""
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
            JobRow.tenant.in_(self._tenants), JobRow.kind == Kind.FINETUNE, JobRow.state == JobState.SUCCEEDED
        )

    def _request(self, job_id: str, verb: Verb, request: str) -> Job:
        with self._db.write() as session:
            row = self._own_row(session, job_id)
            state = next_state(row.id, JobState(row.state), verb)
            if state is JobState.RUNNING and row.requested in ("cancel", request):
                raise Conflict(
                    Code.JOB_STATE_CONFLICT,
                    f"A {row.requested} of the job {job_id} was already requested.",
                    remedy="Wait until its worker stops; the job's events show when.",
                )
            now = self._db.now(session)
            event = NewEvent(
                message=f"{request.capitalize()} requested." if state is JobState.RUNNING else f"Job {state}.",
                data=_by_caller(),
            )
            transition(session, row, verb, now, event)
            row.requested = request if state is JobState.RUNNING else None
            return Job.model_validate(row)

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


class JobVersion(NamedTuple):
    """A job's version, which changes with every write to it or its events; its tenant; whether it is queued."""

    version: int
    tenant: TenantName
    is_queued: bool


def job_versions(database: Database, job_ids: Collection[str]) -> dict[str, JobVersion]:
    """Return the versions of jobs of any tenant; missing jobs are left out."""
    query = select(JobRow.id, JobRow.version, JobRow.tenant, JobRow.state).where(JobRow.id.in_(job_ids))
    with database.read() as session:
        return {
            row.id: JobVersion(row.version, row.tenant, row.state == JobState.QUEUED) for row in session.execute(query)
        }


def memory_accuracy(device: str, errors: list[float]) -> MemoryAccuracy:
    """Return the median, 95th percentile and worst of the relative memory errors of one kind of device."""
    absolute = sorted(map(abs, errors))
    return MemoryAccuracy(
        device=device,
        jobs=len(errors),
        median_error=statistics.median(errors),
        p95_absolute_error=absolute[math.ceil(0.95 * len(absolute)) - 1],
        worst_error=max(errors, key=abs),
    )


def job_row(session: Session, job_id: str, *, lock: bool = False) -> JobRow:
    """Return a job's row; ``lock`` locks it until the transaction ends.

    Raises:
        NotFound: ``JOB_NOT_FOUND``.
    """
    row = session.get(JobRow, job_id, with_for_update=lock)
    if row is None:
        raise _unknown(job_id)
    return row


def transition(session: Session, row: JobRow, verb: Verb, now: datetime, *events: NewEvent) -> None:
    """Apply a verb to a job's row, which this transaction holds: state, times and events are written together."""
    state = next_state(row.id, JobState(row.state), verb)
    # In the transaction that ends the attempt, so that its GPU time is neither lost nor counted twice.
    if row.state == JobState.RUNNING and state is not JobState.RUNNING:
        settle_hold(session, row, state, now)
    row.state = state
    # A job that does not run has no worker, so its lease and requests to the worker end.
    if state is not JobState.RUNNING:
        row.stage = row.requested = row.lease_owner = row.lease_expires_at = None
    if state in FINAL:
        row.finished_at = now
        add_end_of_job(session, row, state, now)
    count_change(row, now)
    add_events(session, row, now, *events)


def count_change(row: JobRow, now: datetime) -> None:
    """Give a job's row, which this transaction holds, a new version."""
    row.version += 1
    row.changed_at = now


def add_events(session: Session, row: JobRow, now: datetime, *events: NewEvent) -> None:
    """Append events to a job whose row this transaction holds, so that ``seq`` is also the order of commit."""
    if events:
        insert_rows(session, EventRow, [_event_values(row, event, now) for event in events])


def _event_values(row: JobRow, event: NewEvent, now: datetime) -> dict[str, Any]:
    message = storable(event.message)[:MAX_MESSAGE_CHARS]
    return {"job_id": row.id, "created_at": now, **event.model_dump(exclude={"message"}), "message": message}


def _by_caller() -> dict[str, str]:
    """Return the data of an event that a caller caused: the name of the request's key, if there is a request."""
    name = current_actor().key_name
    return {} if name is None else {"by": name}


def _unknown(job_id: str) -> NotFound:
    return NotFound(Code.JOB_NOT_FOUND, f"The job {job_id!r} does not exist.", remedy="List them: GET /v1/jobs.")


def _other_seconds(row: Row[Any]) -> float | None:
    """Return the seconds of a job that were not training; see :class:`TrainingRate`."""
    tokens = row.result.get("trained_tokens")
    if row.attempt != 1 or not tokens or row.started_at is None or row.finished_at is None:
        return None
    whole = (row.finished_at - row.started_at).total_seconds()
    return max(0.0, float(whole - tokens / row.result["tokens_per_second"]))
