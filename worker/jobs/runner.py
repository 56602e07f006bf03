"""Runs the next job when a queue message arrives: claims it, does the work, and makes exactly one database write for
each way in which the attempt can end.
"""

from __future__ import annotations

import functools
import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import NamedTuple

from shared.artifacts.open_storage import open_storage
from shared.artifacts.storage import Storage
from shared.database.callers.keys import Keys
from shared.database.connection import Database
from shared.database.files.files import Files
from shared.database.files.uploads import Uploads
from shared.database.job_states import JobState
from shared.database.leases import Lease, Leases
from shared.database.queueing.queue_state import QueueReader
from shared.database.records import Job, Kind
from shared.errors import Code, JobFailed, LeaseLost, MensError, Unavailable
from shared.host import disk_errors
from shared.observability.log_context import log_ids
from shared.observability.tracing import span
from shared.queue import JobQueue
from shared.worker_registry import WorkerMachine, WorkerRegistry
from worker.jobs.adapter_import import run_import
from worker.jobs.attempt import Attempt, Stopped
from worker.jobs.child_process import ExitReason
from worker.jobs.evaluate import run_evaluate
from worker.jobs.finetune import run_finetune
from worker.jobs.heartbeat import LeaseKeeper
from worker.jobs.judge import run_judge
from worker.jobs.merge import run_merge
from worker.machine import describe_machine
from worker.metrics.counters import WorkerMetrics
from worker.run_folder import read_log_end
from worker.settings import WorkerSettings
from worker.watchdog.disks import DiskCheck

RUNNERS: dict[Kind, Callable[[Attempt], None]] = {
    Kind.FINETUNE: run_finetune,
    Kind.MERGE: run_merge,
    Kind.EVALUATE: run_evaluate,
    Kind.IMPORT: run_import,
    Kind.JUDGE: run_judge,
}
WRITE_RETRY_SECONDS = 2.0
UNEXPLAINED = frozenset({Code.INTERNAL_ERROR, Code.TRAINER_CRASHED})
"""Codes of errors that a disk fault may have caused."""
GPU_PAUSE_SECONDS = 60.0
"""Time for which a worker whose GPU is unusable takes no job, so that a healthy worker takes the job that was given
back.
"""
SUCCEEDED, FAILED, RETRIED, LOST = "succeeded", "failed", "retried", "lost"

logger = logging.getLogger(__name__)


class Ending(NamedTuple):
    """The end of an attempt.

    Attributes:
        outcome: label of the outcome in the metrics.
        write: the database write that ends it; does nothing if the runner's own transaction has written it, or the
            lease was lost.
        code: code of its error.
    """

    outcome: str
    write: Callable[[], object] = lambda: None
    code: str | None = None


@dataclass
class Worker:
    """A worker process: its settings, the database, the storage, the job queue.

    Attributes:
        gpus: GPUs that it gives to a job; 1 on a CPU.
        machines: machines of the live workers.
        stopping: set on a shutdown; the running job then returns to the queue, and no other job is claimed.
    """

    settings: WorkerSettings
    leases: Leases
    files: Files
    uploads: Uploads
    storage: Storage
    job_queue: JobQueue
    gpus: int = 1
    machines: Callable[[], Sequence[WorkerMachine]] = tuple
    metrics: WorkerMetrics = field(default_factory=WorkerMetrics)
    name: str = field(default_factory=lambda: f"{socket.gethostname()}:{os.getpid()}")
    stopping: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        self.disks = DiskCheck(self.settings.runs_dir, self.storage, self.metrics.disk_fault)
        self._pauses_until = 0.0

    def run_job(self, job_id: str) -> None:
        """Run the next job in the queue, whichever job the message was sent for: a message only means that a job is
        waiting.

        A message for which no job may run, such as a duplicate, is harmless. While the disks have a fault, the message
        waits here, so that this worker does not take another message from a healthy worker.
        """
        if self.stopping.wait(max(0.0, self._pauses_until - time.monotonic())):
            return
        if not self.disks.wait_until_sound(self.stopping):
            return
        lease = self.leases.claim_next(self.name, self.gpus)
        if lease is None:
            logger.info("the message of the job %s was dropped: no job can be claimed now", job_id)
            return
        ids = {"job_id": lease.job.id, "attempt": str(lease.token), "tenant": lease.job.tenant}
        with log_ids(**ids), span(f"attempt {lease.job.kind}", lease.traceparent, ids):
            logger.info("the job %s begins attempt %s", lease.job.id, lease.token)
            self._run(lease)
        # The messages of jobs that waited for this one were consumed by workers that found nothing to do.
        with suppress(Unavailable):
            if waiting := self.leases.may_run(lease.job.tenant):
                self.job_queue.enqueue(waiting)

    def _run(self, lease: Lease) -> None:
        """Do the work, and write how the attempt ended."""
        # The keeper has ended when this returns: no heartbeat can follow the end that is written below.
        ending = self._work(lease)
        # While the database is unavailable, try again. After the lease's time the control worker takes the job back anyway.
        deadline = time.monotonic() + self.settings.lease_seconds
        while True:
            try:
                self._count(lease.job.kind, ending, ending.write())
                return
            except LeaseLost as error:
                self.metrics.attempt_ended(lease.job.kind, LOST)
                logger.warning("%s", error)
                return
            except Unavailable as error:
                if time.monotonic() > deadline:
                    raise
                logger.warning("%s", error)
                time.sleep(WRITE_RETRY_SECONDS)

    def sweep(self, *, enqueue: bool = True) -> list[str]:
        """Delete expired files and uploads, take back expired leases and the keys of their attempts, and enqueue every
        job that is ready; return the ids of those jobs.
        """
        self._delete_expired()
        started = time.monotonic()
        ready = self.leases.sweep(self.metrics.expired)
        # After the leases, so that it finds the keys of the attempts that have just been ended.
        Keys(self.leases.database).revoke_abandoned()
        # Before the messages are sent: a job that a worker claims at once would have no estimate to compare with.
        QueueReader(self.leases.database).note_estimates(len(self.machines()), self.gpus)
        enqueued = [job_id for job_id in ready if enqueue and self.job_queue.enqueue(job_id)]
        self.metrics.swept(time.monotonic() - started, len(enqueued))
        return enqueued

    def _delete_expired(self) -> None:
        for stored in (self.files, self.uploads):
            try:
                stored.delete_expired(self.storage.delete_blob)
            except (OSError, Unavailable):
                # An unavailable storage must not prevent leases from being taken back; the next sweep tries again.
                logger.exception("expired files could not be deleted")

    def _count(self, kind: Kind, ending: Ending, written: object) -> None:
        """Count the attempt by the job's state in the database: a failed attempt may have requeued the job, or left it
        succeeded.
        """
        outcome = ending.outcome
        if outcome == FAILED and isinstance(written, Job) and written.state is not JobState.FAILED:
            outcome = SUCCEEDED if written.state is JobState.SUCCEEDED else RETRIED
        self.metrics.attempt_ended(kind, outcome, ending.code)

    def _stopped(self, lease: Lease, reason: ExitReason, requested: str | None) -> Ending:
        if reason is ExitReason.CANCELLED:
            return Ending("cancelled", lambda: self.leases.stop(lease))
        if requested == "pause":
            return Ending("paused", lambda: self.leases.confirm_pause(lease))
        return Ending("released", lambda: self.leases.release(lease, "the worker stops"))

    def _work(self, lease: Lease) -> Ending:
        """Do the work; return how the attempt ends."""
        with LeaseKeeper(self.leases, lease, self.settings.heartbeat_seconds) as keeper:
            attempt = Attempt(
                self.settings, self.leases, self.storage, lease, keeper, self.stopping.is_set, self.metrics
            )
            try:
                with disk_errors():
                    RUNNERS[lease.job.kind](attempt)
            except Stopped as stopped:
                return self._stopped(lease, stopped.reason, keeper.requested)
            except LeaseLost as error:
                logger.warning("%s", error)
                return Ending(LOST)
            except MensError as error:
                logger.warning("the job %s failed: %s", lease.job.id, error)
                return self._failed(attempt, error)
            except Exception as error:
                # A bug fails its job with a code, and the worker takes the next one.
                logger.exception("the job %s failed because of a bug", lease.job.id)
                bug = JobFailed(
                    Code.INTERNAL_ERROR,
                    f"The worker hit an unexpected {type(error).__name__}: {error}",
                    remedy="Read the worker's log and report it.",
                )
                return self._failed(attempt, bug)
            finally:
                attempt.end()
        return Ending(SUCCEEDED)

    def _failed(self, attempt: Attempt, error: MensError) -> Ending:
        """Return the ending of a failed attempt; a disk fault replaces an unexplained error. A job that requires a GPU
        that this machine lacks is given back.
        """
        cause = (error.code in UNEXPLAINED and self.disks.find_fault()) or error
        if self._is_for_another_machine(cause):
            cause = JobFailed(cause.code, cause.message, remedy=cause.remedy, details=cause.details, retryable=True)
        if cause.code in (Code.GPU_UNUSABLE, Code.GPU_MEMORY_HELD):
            self._pauses_until = time.monotonic() + GPU_PAUSE_SECONDS
            logger.error("this worker takes no job for %d s: %s", GPU_PAUSE_SECONDS, cause)
        log = read_log_end(attempt.run_dir)
        return Ending(FAILED, functools.partial(self.leases.fail, attempt.lease, cause, log), str(cause.code))

    def _is_for_another_machine(self, error: MensError) -> bool:
        """Return whether the job fails only on this machine: its GPU is unusable, or only another worker has the
        required GPU.
        """
        if error.code is Code.GPU_REQUIRED:
            return any(machine.device == "cuda" for machine in self.machines())
        return error.code is Code.GPU_UNUSABLE


def make_worker(settings: WorkerSettings, job_queue: JobQueue) -> Worker:
    """Return a worker on the configured database and storage."""
    database = Database(settings.database_url)
    leases = Leases(database, settings.lease_seconds)
    storage, gpus = open_storage(settings), max(1, describe_machine(settings.trainer_processes).devices)
    machines = WorkerRegistry(settings.broker_url).machines
    return Worker(settings, leases, Files(database), Uploads(database), storage, job_queue, gpus, machines)
