"""The Celery application: ``celery -A worker.app worker``. The entry point of the tier, so it reads the environment.

A task runs in a thread and does nothing heavy itself: the trainer is a child process. So the worker keeps responding to
the broker while a job trains, and one thread, one job and one GPU belong together. The control worker is started with a
thread for each of its tasks (``--concurrency 5``): deletions and certificates wait for replicas, webhooks for their
receivers, retention for disks, and the sweep of dead jobs must not wait for any of them.
"""

from __future__ import annotations

import functools
import logging
import os
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from shared.garbage_collection import without_collections

with without_collections():
    from celery.signals import beat_embedded_init, setup_logging, worker_ready, worker_shutdown, worker_shutting_down

    from shared.database.connection import Database
    from shared.errors import InvalidRequest
    from shared.host import exit_with_parent
    from shared.observability.logs import configure_logging
    from shared.observability.metrics_listener import listen
    from shared.observability.tracing import start_tracing, stop_tracing
    from shared.queue import (
        APPLY_RETENTION,
        CERTIFY_BASES,
        CONTROL_QUEUE,
        DELIVER_WEBHOOKS,
        JOBS_QUEUE,
        REMOVE_DELETED,
        RUN_JOB,
        SWEEP,
        JobQueue,
        every,
        make_celery,
    )
    from shared.retention.checkpoints import remove_abandoned_checkpoints
    from shared.retention.cleanup import RetentionRunner
    from shared.settings import read_settings
    from shared.worker_registry import WorkerRegistry
    from worker.adapter_removal import AdapterRemover, make_adapter_remover
    from worker.jobs.base_certificates import BaseCertifier, make_base_certifier
    from worker.jobs.runner import Worker, make_worker
    from worker.machine import MachineReporter
    from worker.settings import WorkerSettings
    from worker.webhooks.dispatcher import WebhookDispatcher, make_webhook_dispatcher

settings = read_settings(WorkerSettings)
app = make_celery(settings.broker_url)
app.conf.update(
    worker_pool="threads",
    worker_concurrency=1,
    # A message stays in the queue until a thread is free, so that another worker can take it.
    worker_disable_prefetch=True,
    worker_send_task_events=False,
    # The lease decides who owns a job, not the connection to the broker.
    worker_cancel_long_running_tasks_on_connection_loss=False,
    # A message expires when the next one is sent, so a restarted control worker finds one message of each kind and no
    # backlog.
    beat_schedule={
        task: {"task": task, **every(seconds)}
        for task, seconds in (
            (SWEEP, settings.sweep_seconds),
            (REMOVE_DELETED, settings.sweep_seconds),
            (CERTIFY_BASES, settings.sweep_seconds),
            (APPLY_RETENTION, settings.retention_seconds),
            (DELIVER_WEBHOOKS, settings.webhook_seconds),
        )
    },
)


@functools.cache
def worker() -> Worker:
    """Return the process's worker, created on first use."""
    return make_worker(settings, JobQueue(app))


@functools.cache
def adapter_remover() -> AdapterRemover:
    """Return the process's remover of deleted adapters, created on first use."""
    return make_adapter_remover(settings)


@functools.cache
def base_certifier() -> BaseCertifier:
    """Return the process's certifier of merged models, created on first use."""
    return make_base_certifier(settings)


@functools.cache
def webhook_dispatcher() -> WebhookDispatcher:
    """Return the process's dispatcher of webhooks, created on first use."""
    return make_webhook_dispatcher(settings, worker().stopping, worker().metrics.attempted_webhook)


@functools.cache
def retention_runner() -> RetentionRunner:
    """Return the process's runner of the retention policy, created on first use."""
    return RetentionRunner(Database(settings.database_url), settings)


def one_at_a_time(task: Callable[[], None]) -> Callable[[], None]:
    """Make a task return immediately if it is already running, so that it never occupies the thread of another control
    task.
    """
    running = threading.Lock()

    @functools.wraps(task)
    def run() -> None:
        if running.acquire(blocking=False):
            try:
                task()
            finally:
                running.release()

    return run


@app.task(name=RUN_JOB, shared=False)
def run_job(job_id: str) -> None:
    """Run the job that a queue message names."""
    worker().run_job(job_id)


@app.task(name=SWEEP, shared=False)
@one_at_a_time
def sweep() -> None:
    """Delete expired files and uploads, take back jobs with an expired lease, and enqueue jobs without a message."""
    # While messages wait for a worker, more of them would only pile up.
    worker().sweep(enqueue=queued_messages() == 0)


@app.task(name=REMOVE_DELETED, shared=False)
@one_at_a_time
def remove_deleted() -> None:
    """Carry out deletions of adapters, as far as possible now."""
    worker().metrics.removed_adapters(len(adapter_remover().run_round()))


@app.task(name=CERTIFY_BASES, shared=False)
@one_at_a_time
def certify_bases() -> None:
    """Measure the replicas of merged models that were started since their last measurement."""
    base_certifier().run_round()


@app.task(name=DELIVER_WEBHOOKS, shared=False)
@one_at_a_time
def deliver_webhooks() -> None:
    """Send the webhooks that are due."""
    webhook_dispatcher().run_round()


@app.task(name=APPLY_RETENTION, shared=False)
@one_at_a_time
def apply_retention() -> None:
    """Delete what the retention policy selects, and stored checkpoints that no job needs."""
    for removed in retention_runner().apply():
        worker().metrics.retention_removed(removed.what, removed.bytes)
    remove_abandoned_checkpoints(worker().leases.database, worker().storage)


def queued_messages() -> int:
    """Return the number of messages in the job queue that no worker has taken yet."""
    with app.connection_for_read() as connection, connection.channel() as channel:
        return int(channel.queue_declare(JOBS_QUEUE, passive=False).message_count)


@functools.cache
def machine_reporter() -> MachineReporter:
    """Return the reporter that sends this machine's description to the API; it is created on first use."""
    return MachineReporter(
        WorkerRegistry(settings.broker_url),
        worker().name,
        settings.trainer_processes,
        settings.sandbox,
        fault=lambda: worker().disks.fault,
        runs_dir=worker().disks.runs_dir,
        gpu_share=settings.trainer_gpu_share,
    )


@worker_ready.connect
def be_observable(**_: Any) -> None:
    """Start metrics and traces of this process if they are configured. On failure the worker logs the error and
    continues.
    """
    try:
        start_tracing(settings.otlp_endpoint, "mens-worker")
        listen(worker().metrics.registry, settings)
    except InvalidRequest as error:
        logging.getLogger(__name__).error("%s", error)  # noqa: TRY400  it says what to do, and where it was says nothing


@worker_ready.connect
def report_machine(sender: Any, **_: Any) -> None:
    """Report the hardware of a worker that takes jobs; the control worker trains nothing and reports nothing."""
    if JOBS_QUEUE in sender.app.amqp.queues.consume_from:
        machine_reporter().start()


@worker_ready.connect
def clean_this_machine(sender: Any, **_: Any) -> None:
    """Remove old run folders from the disk of a worker that takes jobs, which the control worker may not see."""
    if JOBS_QUEUE in sender.app.amqp.queues.consume_from:
        threading.Thread(target=_clean_repeatedly, name="retention", daemon=True).start()


def _clean_repeatedly() -> None:
    while not worker().stopping.wait(settings.retention_seconds):
        try:
            for removed in retention_runner().apply_on_this_machine():
                worker().metrics.retention_removed(removed.what, removed.bytes)
        except Exception:
            # The thread must continue after any error, or this machine's disk fills.
            logging.getLogger(__name__).exception("retention on this machine failed and will be retried")


@worker_shutdown.connect
def send_last_spans(**_: Any) -> None:
    """Send the spans that have not been exported yet."""
    stop_tracing()


@worker_shutting_down.connect
def stop_worker(**_: Any) -> None:
    """On a warm shutdown, let the running job write a checkpoint and return to the queue."""
    worker().stopping.set()
    if machine_reporter.cache_info().currsize:
        machine_reporter().stop()


@beat_embedded_init.connect
def exit_beat_with_worker(**_: Any) -> None:
    """Make the embedded beat, which is a separate process, end with the worker that started it."""
    exit_with_parent(os.getppid())


@worker_ready.connect
def end_with_beat(sender: Any, **_: Any) -> None:
    """End the worker when its embedded beat has died, so that its supervisor starts both again.

    Celery does not monitor that process. Without beat, nothing is swept, resumed or deleted, although the worker itself
    passes every check.
    """
    if (beat := sender.controller.beat) is not None:
        threading.Thread(target=_exit_after, args=(beat.pid,), name="beat-watch", daemon=True).start()


def _exit_after(child: int) -> None:
    # Celery reaps the child when it stops it. The child closes every descriptor, so its sentinel would report nothing.
    with suppress(ChildProcessError):
        os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)
    if not worker().stopping.is_set():
        logging.getLogger(__name__).critical("The scheduler's process has ended, so this worker stops too.")
        # Ended at once, as by a kill: a task may delay an orderly shutdown for minutes, and each task can be repeated.
        os._exit(1)


@setup_logging.connect
def set_up_logging(**_: Any) -> None:
    """Log one record per line to stderr, without colours; stdout is not redirected."""
    configure_logging(settings.log_format, logging.INFO)
    # These loggers report each message of the schedule three times, several times a minute, and on a slow machine its
    # expiry too. A task logs its own work.
    for name in ("celery.beat", "celery.worker.strategy", "celery.app.trace", "celery.worker.request"):
        logging.getLogger(name).setLevel(logging.WARNING)


__all__ = ["CONTROL_QUEUE", "JOBS_QUEUE", "app"]
