"""Runs a job that a doorbell named: claim, work, and turn every ending into one write of the ledger."""

from __future__ import annotations

import functools
import logging
import os
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from shared.db import Database
from shared.errors import Code, JobFailed, LeaseLost, MensError, Unavailable
from shared.job import Kind
from shared.lease import Lease, LeaseLedger
from shared.queue import Doorbell
from shared.registry import Registry
from shared.storage import Storage
from worker.attempt import Attempt, Stopped
from worker.engine import Ending
from worker.finetune import run_finetune
from worker.lease_keeper import LeaseKeeper
from worker.merge_job import run_merge
from worker.settings import WorkerSettings

RUNNERS: dict[Kind, Callable[[Attempt], None]] = {Kind.FINETUNE: run_finetune, Kind.MERGE: run_merge}
WRITE_RETRY_SECONDS = 2.0

logger = logging.getLogger(__name__)


@dataclass
class Worker:
    """What a worker process has at hand."""

    settings: WorkerSettings
    ledger: LeaseLedger
    registry: Registry
    storage: Storage
    doorbell: Doorbell
    name: str = field(default_factory=lambda: f"{socket.gethostname()}:{os.getpid()}")
    stopping: threading.Event = field(default_factory=threading.Event)

    def run_job(self, job_id: str) -> None:
        """Run the job if it is there to be taken; a bell for a job that is not is harmless."""
        if self.stopping.is_set():
            return
        lease = self.ledger.claim(job_id, self.name)
        if lease is None:
            logger.info("the job %s is not there to be taken", job_id)
            return
        logger.info("the job %s begins attempt %s", job_id, lease.token)
        ending = self._work(lease)
        try:
            self._write(ending)
        except LeaseLost as error:
            logger.warning("%s", error)

    def sweep(self, *, ring: bool = True) -> list[str]:
        """Delete expired files, take back expired leases, and ring for every job that is ready; the jobs rung for."""
        self.registry.delete_expired_files(self.storage.delete_blob)
        ready = self.ledger.sweep()
        return [job_id for job_id in ready if ring and self.doorbell.ring(job_id)]

    def _work(self, lease: Lease) -> Callable[[], object]:
        """Do the work; returns the ledger write that ends the attempt."""
        with LeaseKeeper(self.ledger, lease, self.settings.heartbeat_seconds) as keeper:
            attempt = Attempt(self.settings, self.ledger, self.storage, lease, keeper, self.stopping.is_set)
            try:
                RUNNERS[lease.job.kind](attempt)
            except Stopped as stopped:
                return self._stopped(lease, stopped.ending, keeper.requested)
            except LeaseLost as error:
                logger.warning("%s", error)
                return lambda: None
            except MensError as error:
                logger.warning("the job %s failed: %s", lease.job.id, error)
                return functools.partial(self.ledger.fail, lease, error)
            except Exception as error:
                logger.exception("the job %s met a bug", lease.job.id)
                return functools.partial(self.ledger.fail, lease, _bug(error))
        return lambda: None

    def _stopped(self, lease: Lease, ending: Ending, requested: str | None) -> Callable[[], object]:
        if ending is Ending.CANCELLED:
            return lambda: self.ledger.stop(lease)
        if requested == "pause":
            return lambda: self.ledger.confirm_pause(lease)
        return lambda: self.ledger.release(lease, "the worker stops")

    def _write(self, write: Callable[[], object]) -> None:
        """Write, and go on trying while the database is away: after that the sweeper takes the job back."""
        deadline = time.monotonic() + self.settings.lease_seconds
        while True:
            try:
                write()
                return
            except Unavailable as error:
                if time.monotonic() > deadline:
                    raise
                logger.warning("%s", error)
                time.sleep(WRITE_RETRY_SECONDS)


def make_worker(settings: WorkerSettings, doorbell: Doorbell) -> Worker:
    """A worker on the configured database and storage."""
    database = Database(settings.database_url)
    ledger = LeaseLedger(database, settings.lease_seconds)
    return Worker(settings, ledger, Registry(database), Storage(settings.storage_dir), doorbell)


def _bug(error: Exception) -> JobFailed:
    return JobFailed(
        Code.INTERNAL_ERROR,
        f"The worker met an unexpected {type(error).__name__}: {error}",
        remedy="Read the worker's log and report it.",
    )
