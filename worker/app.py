"""The Celery application: ``celery -A worker.app worker``. The entry point of the tier, so it reads the environment.

A task runs in a thread and does nothing heavy itself: the engine is a child process. So the worker goes on answering the
broker while a job trains, and one thread, one job and one GPU belong together. The control worker is started with a thread
for each of its duties (``--concurrency 3``): a removal waits for replicas, retention for disks, and dead jobs for neither.
"""

from __future__ import annotations

import functools
import logging
import os
import threading
from collections.abc import Callable
from typing import Any

from celery.signals import beat_embedded_init, setup_logging, worker_shutting_down

from shared.db import Database
from shared.housekeeping import Housekeeping
from shared.lifeline import die_with_parent
from shared.queue import (
    APPLY_RETENTION,
    CONTROL_QUEUE,
    JOBS_QUEUE,
    REMOVE_DELETED,
    RUN_JOB,
    SWEEP,
    Doorbell,
    make_celery,
)
from shared.settings import read_settings
from worker.removal import Removal, make_removal
from worker.run import Worker, make_worker
from worker.settings import WorkerSettings

settings = read_settings(WorkerSettings)
app = make_celery(settings.broker_url)
app.conf.update(
    worker_pool="threads",
    worker_concurrency=1,
    worker_disable_prefetch=True,
    worker_send_task_events=False,
    worker_cancel_long_running_tasks_on_connection_loss=False,
    beat_schedule={
        task: {"task": task, "schedule": seconds, "options": {"expires": seconds}}
        for task, seconds in (
            (SWEEP, settings.sweep_seconds),
            (REMOVE_DELETED, settings.sweep_seconds),
            (APPLY_RETENTION, settings.retention_seconds),
        )
    },
)


@functools.cache
def worker() -> Worker:
    """The process's one worker, made on first use."""
    return make_worker(settings, Doorbell(app))


@functools.cache
def removal() -> Removal:
    """The process's own, made on first use."""
    return make_removal(settings)


@functools.cache
def housekeeping() -> Housekeeping:
    """The process's own, made on first use."""
    return Housekeeping(Database(settings.database_url), settings)


def one_at_a_time(duty: Callable[[], None]) -> Callable[[], None]:
    """A duty that is left to whoever is at it already: it never has two threads, so each of the others finds its own."""
    at_it = threading.Lock()

    @functools.wraps(duty)
    def run() -> None:
        if at_it.acquire(blocking=False):
            try:
                duty()
            finally:
                at_it.release()

    return run


@app.task(name=RUN_JOB)  # type: ignore[untyped-decorator]
def run_job(job_id: str) -> None:
    """Answer a doorbell."""
    worker().run_job(job_id)


@app.task(name=SWEEP)  # type: ignore[untyped-decorator]
@one_at_a_time
def sweep() -> None:
    """Take back what has expired; ring for jobs that nobody is being rung for."""
    worker().sweep(ring=pending_bells() == 0)


@app.task(name=REMOVE_DELETED)  # type: ignore[untyped-decorator]
@one_at_a_time
def remove_deleted() -> None:
    """Carry deletions out, as far as that goes now."""
    removal().round()


@app.task(name=APPLY_RETENTION)  # type: ignore[untyped-decorator]
@one_at_a_time
def apply_retention() -> None:
    """Remove what may go by the retention policy."""
    housekeeping().apply()


def pending_bells() -> int:
    """Bells that no worker has taken yet. While there are some, ringing again would only pile up more."""
    with app.connection_for_read() as connection, connection.channel() as channel:
        return int(channel.queue_declare(JOBS_QUEUE, passive=False).message_count)


@worker_shutting_down.connect  # type: ignore[untyped-decorator]
def give_jobs_back(**_: Any) -> None:
    """On a warm shutdown the running job writes a checkpoint and goes back to the queue."""
    worker().stopping.set()


@beat_embedded_init.connect  # type: ignore[untyped-decorator]
def beat_dies_with_worker(**_: Any) -> None:
    """The embedded beat is a process of its own; it must not outlive the worker that started it."""
    die_with_parent(os.getppid())


@setup_logging.connect  # type: ignore[untyped-decorator]
def log_plainly(**_: Any) -> None:
    """One line per record on stderr, nothing coloured, nothing redirected."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")


__all__ = ["CONTROL_QUEUE", "JOBS_QUEUE", "app"]
