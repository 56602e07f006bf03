"""Jobs, with the operations of workers (claim a job, keep the lease, report, and end the attempt) and of the control worker.

The attempt number is the fencing token. Every write here carries it and is refused once another attempt has begun, so a
worker that was taken for dead cannot change a job it lost.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Literal

from sqlalchemy import bindparam, or_, select, update
from sqlalchemy.orm import Session

from shared.database.adapters import NewAdapter, register_adapters
from shared.database.attempt_failures import LONGEST_DELAY_SECONDS, expire_attempt, fail_attempt, keep_log, requeue
from shared.database.callers.key_records import Key
from shared.database.callers.keys import add_attempt_key
from shared.database.change_counter import hold_queue
from shared.database.connection import Database
from shared.database.deletions import reserve_adapters
from shared.database.evaluation.items import NewItem, add_items
from shared.database.evaluation.runs import EvalRun, open_run
from shared.database.gates.receipts import NewReceipt, StoredReceipt, add_receipt
from shared.database.job_results import JUDGED_FOR, ResultFile, complete_result
from shared.database.job_states import JobState, Stage, Verb
from shared.database.jobs import add_events, count_change, job_row, transition
from shared.database.lists.job_series import store_chunks
from shared.database.names.aliases import lock_alias
from shared.database.names.move_evidence import WITH_EVIDENCE, Terms, standing
from shared.database.names.publication import publish_to_alias
from shared.database.queueing.gpu_time import NOTHING_SPENT, Spent, begin_hold, settle_abandoned, spent_on
from shared.database.queueing.queue_state import read_claimable
from shared.database.records import PARTS_WITH_TEXT, Job, NewEvent
from shared.database.tables.jobs import JobRow, TenantQuotaRow
from shared.database.tenancy import Role, TenantName
from shared.database.webhooks.outbox import add_checkpoints
from shared.errors import Code, LeaseLost, MensError
from shared.job_series import SeriesChunk
from shared.scheduling.fair_queue import FairQueue

CLOCK_SLACK = timedelta(seconds=5)
"""Largest assumed difference between the times of the clock that two concurrent transactions have read."""
UNLOCKED = select(JobRow).where(JobRow.id == bindparam("job_id")).with_for_update(skip_locked=True)
# A locked row is being claimed by another worker: waiting would only show that it is gone.


@dataclass(frozen=True, slots=True)
class Lease:
    """The right to write one job, until it expires.

    Attributes:
        gpus: number of GPUs that the attempt occupies.
        spent: time used by earlier attempts.
    """

    job: Job
    token: int
    gpus: int = 1
    spent: Spent = NOTHING_SPENT
    traceparent: str | None = None


class Leases:
    """Operations of the worker and of the control worker on jobs; each runs in one transaction."""

    def __init__(self, database: Database, lease_seconds: float) -> None:
        self._db = database
        self._lease = timedelta(seconds=lease_seconds)

    def claim_next(self, worker: str, gpus: int = 1) -> Lease | None:
        """Claim the next queued job by the rule of the queue (`shared/scheduling/fair_queue.py`), and hold its GPU
        time.

        Args:
            worker: the worker's name.
            gpus: number of GPUs that it gives to a job.

        Returns:
            None when no job may be taken now.
        """
        with self._db.write() as session:
            # One claim at a time: two workers that read the same queue could together exceed a quota.
            hold_queue(session)
            now = self._db.now(session)
            queue = FairQueue(read_claimable(session, now, gpus))
            while job := queue.next(now.timestamp()):
                if (row := _ready_row(session, job.id, now)) is not None:
                    return self._begin(session, row, worker, gpus, now)
                # Another transaction has the row, or has changed it since the queue was read. Waiting for it would stop
                # all claims, so the next job is tried.
                queue.drop(job)
            return None

    def claim(self, job_id: str, worker: str, gpus: int = 1) -> Lease | None:
        """Claim one queued job, whatever its place in the queue and its tenant's quota.

        Returns:
            None when it cannot be taken: claimed, locked, finished, or waiting for its retry time.
        """
        with self._db.write() as session:
            now = self._db.now(session)
            row = _ready_row(session, job_id, now)
            return self._begin(session, row, worker, gpus, now) if row is not None else None

    def may_run(self, tenant: TenantName) -> str | None:
        """Return a queued job whose tenant has a limit of running jobs, because it may have waited for the job that has
        just ended.
        """
        limited = select(TenantQuotaRow.tenant).where(
            TenantQuotaRow.tenant == tenant, TenantQuotaRow.running_jobs.is_not(None)
        )
        with self._db.read() as session:
            if session.scalar(limited) is None:
                return None
            waiting = select(JobRow.id).where(JobRow.tenant == tenant, JobRow.state == JobState.QUEUED)
            return session.scalar(waiting.order_by(JobRow.created_at, JobRow.id).limit(1))

    def heartbeat(self, lease: Lease) -> Literal["cancel", "pause"] | None:
        """Extend the lease; return the pending request of the job's owner.

        Raises:
            LeaseLost: another attempt owns the job.
        """
        with self._db.write() as session:
            row = self._held(session, lease)
            # By the database's clock, which the sweep also uses: clocks of workers may differ.
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
        series: Sequence[SeriesChunk] = (),
    ) -> None:
        """Write a stage, progress, a preflight record, events and chunks of series.

        Raises:
            LeaseLost: another attempt owns the job.
        """
        with self._db.write() as session:
            row = self._held(session, lease)
            row.stage = stage or row.stage
            row.progress = {**row.progress, **(progress or {})}
            if preflight is not None:
                # Parts that only the submission knew stay: the sources of the contract's values, and notes, e.g. on the
                # alias's policy.
                notes = dict.fromkeys([*row.preflight.get("notes", []), *preflight.get("notes", [])])
                row.preflight = row.preflight | preflight | {"notes": list(notes)}
            now = self._db.now(session)
            count_change(row, now)
            add_events(session, row, now, *events)
            store_chunks(session, row.id, lease.token, series)

    def keep_adapters(self, lease: Lease, digests: list[str]) -> None:
        """Reserve the adapters that the job is about to store: the same content is not removed until the job has
        finished.

        Raises:
            LeaseLost: another attempt owns the job.
        """
        with self._db.write() as session:
            reserve_adapters(session, self._held(session, lease), digests)

    @property
    def database(self) -> Database:
        """The database that contains the jobs."""
        return self._db

    def mint_key(self, lease: Lease, role: Role) -> tuple[Key, str]:
        """Create a key of the job's tenant for this attempt; return it with its secret.

        Raises:
            LeaseLost: another attempt owns the job.
        """
        with self._db.write() as session:
            return add_attempt_key(session, self._held(session, lease), role)

    def open_run(self, lease: Lease, eval_id: str, name: str, plan: dict[str, Any]) -> EvalRun:
        """Open the eval run that is part of the job's work; returns the run of an earlier attempt, if any.

        Raises:
            LeaseLost: another attempt owns the job.
            NotFound: ``EVAL_NOT_FOUND``.
        """
        with self._db.write() as session:
            return open_run(session, self._held(session, lease), eval_id, name, plan, self._db.now(session))

    def store_items(self, lease: Lease, run_id: str, items: list[NewItem], totals: dict[str, Any]) -> None:
        """Store results of a run's items, with the totals up to them.

        Raises:
            LeaseLost: another attempt owns the job; nothing was stored.
        """
        with self._db.write() as session:
            self._held(session, lease)
            add_items(session, run_id, items, totals, self._db.now(session))

    def finish(
        self,
        lease: Lease,
        result: dict[str, Any],
        *,
        adapters: list[NewAdapter] | None = None,
        alias: str | None = None,
        files: list[ResultFile] | None = None,
        terms: Terms = WITH_EVIDENCE,
    ) -> Job:
        """Finish a job with success: its state, and its tenant's new adapters, result files and alias, in one
        transaction.

        If the adapter does not satisfy the alias's policy, the alias is not moved; the job still succeeds, and its
        result says why under ``alias``.

        Raises:
            LeaseLost: another attempt owns the job; nothing was written.
        """
        with self._db.write() as session:
            row = self._held(session, lease)
            now = self._db.now(session)
            final = next((adapter for adapter in adapters or [] if adapter.final), None)
            # Before the adapters' rows are locked: see `lock_alias`.
            moved = lock_alias(session, row.tenant, alias, now) if alias and final and final.published else None
            before = standing(session, moved) if moved else None
            _register(session, row, adapters or [], now)
            message = f"Job succeeded; new adapter {final.id}." if final else "Job succeeded."
            if moved and before and final:
                published = publish_to_alias(session, moved, before, final.id, row.id, now, terms)
                message += published.message
                result = result | {"alias": published.result()}
                add_events(session, row, now, *published.warnings())
            row.result = complete_result(session, row, result, adapters or [], files or [])
            data = {name: value for name, value in result.items() if name not in PARTS_WITH_TEXT}
            transition(session, row, Verb.FINISH, now, NewEvent(message=message, data=data))
            return Job.model_validate(row)

    def publish(
        self,
        lease: Lease,
        adapters: list[NewAdapter],
        result: dict[str, Any],
        *,
        alias: str,
        files: list[ResultFile] | None = None,
    ) -> None:
        """Register published adapters before the job has ended, so that the API serves them for their evaluation.

        From now on the job does not fail: if judging does not finish, the job succeeds without a receipt.

        Args:
            lease: lease of the job that made them.
            adapters: its result and checkpoints.
            result: the job's result so far, which gates on training read.
            alias: alias for which they are judged.
            files: files that the job produced.

        Raises:
            LeaseLost: another attempt owns the job; nothing was written.
        """
        with self._db.write() as session:
            row = self._held(session, lease)
            now = self._db.now(session)
            _register(session, row, adapters, now)
            # Judging gets all attempts of its own. A later attempt publishes again, but keeps the count of failed
            # judgements.
            if not row.result:
                row.failures = 0
            row.result = complete_result(session, row, result | {JUDGED_FOR: alias}, adapters, files or [])
            count_change(row, now)

    def now(self) -> datetime:
        """Return the time by the database's clock."""
        with self._db.read() as session:
            return self._db.now(session)

    def add_receipt(self, lease: Lease, receipt: NewReceipt) -> StoredReceipt:
        """Store the receipt of a judged adapter.

        Raises:
            LeaseLost: another attempt owns the job; nothing was written.
        """
        with self._db.write() as session:
            row = self._held(session, lease)
            return add_receipt(session, row.tenant, row.id, receipt, self._db.now(session))

    def register(self, lease: Lease, adapter: NewAdapter, *events: NewEvent) -> None:
        """Register an adapter while its job still runs: a certified checkpoint, or one whose certificates failed. The
        latter's record can be read, but it can be neither used nor aliased.

        Raises:
            LeaseLost: another attempt owns the job; nothing was written.
        """
        with self._db.write() as session:
            row, now = self._held(session, lease), self._db.now(session)
            _register(session, row, [adapter], now)
            if events:
                count_change(row, now)
                add_events(session, row, now, *events)

    def fail(self, lease: Lease, error: MensError, log: str = "") -> Job:
        """End the attempt with an error: queue the job again if the error is retryable and attempts are left, else fail
        it.

        Args:
            lease: the attempt's lease.
            error: the reason.
            log: the end of the attempt's log.

        Raises:
            LeaseLost: another attempt owns the job.
        """
        with self._db.write() as session:
            row = self._held(session, lease)
            if log:
                keep_log(session, row, log)
            fail_attempt(session, row, error, self._db.now(session))
            return Job.model_validate(row)

    def keep_log(self, lease: Lease, text: str) -> None:
        """Store the end of the attempt's log with the job, replacing an earlier one.

        Raises:
            LeaseLost: another attempt owns the job.
        """
        with self._db.write() as session:
            keep_log(session, self._held(session, lease), text)

    def stop(self, lease: Lease) -> None:
        """Confirm a cancel: the trainer has ended.

        Raises:
            LeaseLost: another attempt owns the job.
        """
        with self._db.write() as session:
            now = self._db.now(session)
            transition(session, self._held(session, lease), Verb.STOP, now, NewEvent(message="Job cancelled."))

    def confirm_pause(self, lease: Lease) -> None:
        """Confirm a pause: the trainer has written a checkpoint and ended.

        Raises:
            LeaseLost: another attempt owns the job.
        """
        with self._db.write() as session:
            row, now = self._held(session, lease), self._db.now(session)
            # A cancel may have been requested while the trainer was pausing.
            cancelled = row.requested == "cancel"
            verb = Verb.STOP if cancelled else Verb.PAUSE_CONFIRMED
            message = "Job cancelled." if cancelled else "Job paused with a checkpoint."
            transition(session, row, verb, now, NewEvent(message=message))

    def release(self, lease: Lease, reason: str) -> None:
        """Return a job to the queue because this worker stops; the attempt does not count as a failure.

        Raises:
            LeaseLost: another attempt owns the job.
        """
        with self._db.write() as session:
            now = self._db.now(session)
            event = NewEvent(level="warn", message=f"Returned to the queue: {reason}.")
            requeue(session, self._held(session, lease), now, event)

    def sweep(self, on_expired: Callable[[str], None] = lambda _: None) -> list[str]:
        """End attempts whose lease has expired; return the queued jobs that may be enqueued again, oldest first.

        Args:
            on_expired: called with the kind of each job whose attempt is ended.
        """
        with self._db.write() as session:
            now = self._db.now(session)
            self._correct_future_times(session, now)
            expired = select(JobRow).where(JobRow.state == JobState.RUNNING, JobRow.lease_expires_at < now)
            # A locked row is being written by a worker that still runs, or by another control worker.
            for row in session.scalars(expired.with_for_update(skip_locked=True)).all():
                expire_attempt(session, row, now)
                on_expired(row.kind)
            settle_abandoned(session, now)
            ready = select(JobRow.id).where(
                JobRow.state == JobState.QUEUED, or_(JobRow.not_before.is_(None), JobRow.not_before <= now)
            )
            return list(session.scalars(ready.order_by(JobRow.created_at, JobRow.id).limit(1000)))

    def _correct_future_times(self, session: Session, now: datetime) -> None:
        """Shorten leases and delays that were written before the clock was set back, so that they end after their usual
        time.
        """
        lease_end, due = now + self._lease, now + timedelta(seconds=LONGEST_DELAY_SECONDS)
        held = update(JobRow).where(JobRow.state == JobState.RUNNING, JobRow.lease_expires_at > lease_end + CLOCK_SLACK)
        session.execute(held.values(lease_expires_at=lease_end))
        waiting = update(JobRow).where(JobRow.state == JobState.QUEUED, JobRow.not_before > due + CLOCK_SLACK)
        session.execute(waiting.values(not_before=now))

    def _begin(self, session: Session, row: JobRow, worker: str, gpus: int, now: datetime) -> Lease:
        row.attempt += 1
        row.lease_owner, row.lease_expires_at = worker, now + self._lease
        row.started_at = row.started_at or now
        row.error = None
        event = NewEvent(message=f"Attempt {row.attempt} started.", data={"attempt": row.attempt, "worker": worker})
        spent = spent_on(session, row.id) if row.attempt > 1 else NOTHING_SPENT
        begin_hold(session, row, gpus, now)
        transition(session, row, Verb.CLAIM, now, event)
        return Lease(Job.model_validate(row), row.attempt, gpus, spent, row.traceparent)

    def _held(self, session: Session, lease: Lease) -> JobRow:
        # Checked under the row's lock, so that no other attempt can begin before this transaction ends.
        row = job_row(session, lease.job.id, lock=True)
        if row.attempt != lease.token or row.state != JobState.RUNNING:
            raise LeaseLost(
                Code.LEASE_LOST,
                f"Attempt {lease.token} no longer owns the job {row.id} (now {row.state}, attempt {row.attempt}).",
                remedy="No action is needed: the worker stops and the current attempt continues.",
            )
        return row


def _ready_row(session: Session, job_id: str, now: datetime) -> JobRow | None:
    """Return a queued job's row, locked; None if it is not queued, not ready, or being claimed or cancelled now."""
    row = session.scalar(UNLOCKED, {"job_id": job_id})
    is_ready = row is not None and row.state == JobState.QUEUED and not (row.not_before and row.not_before > now)
    return row if is_ready else None


def _register(session: Session, job: JobRow, adapters: list[NewAdapter], now: datetime) -> None:
    """Register a job's adapters, and announce its checkpoints that can be called from now on."""
    final = {adapter.id for adapter in adapters if adapter.final}
    callable_now = register_adapters(session, job.tenant, job.id, adapters, now)
    add_checkpoints(session, job, [adapter_id for adapter_id in callable_now if adapter_id not in final], now)
