"""The job queue: Celery messages that carry a job id and nothing else.

The database row is the source of truth. The control worker enqueues a lost message again, and a duplicate finds the job
already claimed. So messages are acknowledged on receipt, and no broker setting can run a job twice.
"""

from __future__ import annotations

import logging
import time
from datetime import UTC, datetime, timedelta
from json import JSONDecodeError
from typing import Any

from celery import Celery
from celery.schedules import schedule
from kombu.exceptions import OperationalError
from kombu.transport import TRANSPORT_ALIASES, redis, virtual

JOBS_QUEUE = "mens.jobs"
CONTROL_QUEUE = "mens.control"
RUN_JOB = "mens.run_job"
SWEEP = "mens.sweep"
REMOVE_DELETED = "mens.remove_deleted"
APPLY_RETENTION = "mens.apply_retention"
CERTIFY_BASES = "mens.certify_bases"
DELIVER_WEBHOOKS = "mens.deliver_webhooks"
CONTROL_TASKS = (SWEEP, REMOVE_DELETED, APPLY_RETENTION, CERTIFY_BASES, DELIVER_WEBHOOKS)

logger = logging.getLogger(__name__)


class MalformedEntry(ValueError):
    """An entry of a queue that is not a message."""


class CheckedMessage(virtual.Message):
    """A message whose envelope is checked, because kombu does not check the entries of a queue."""

    def __init__(self, payload: Any, channel: Any = None, **more: Any) -> None:
        try:
            super().__init__(payload, channel, **more)
        except Exception as error:
            # The codecs raise errors of any class on a damaged entry.
            raise MalformedEntry(str(error)) from error


class Channel(redis.Channel):
    """A channel that drops malformed entries. With kombu's own channel, such an entry would crash every worker that
    receives it.
    """

    Message = CheckedMessage

    def _brpop_read(self, **options: Any) -> Any:
        try:
            return super()._brpop_read(**options)
        except (JSONDecodeError, UnicodeDecodeError, MalformedEntry) as error:
            logger.warning("dropped a malformed entry of the job queue: %s", error)
            return True


class Transport(redis.Transport):
    """kombu's transport with this channel."""

    Channel = Channel


def make_celery(broker_url: str) -> Celery:
    """Make the Celery application, configured in the same way for senders and receivers of messages."""
    # kombu finds a transport by the URL's scheme.
    TRANSPORT_ALIASES.update(dict.fromkeys(("redis", "rediss"), f"{__name__}:Transport"))
    celery = Celery("mens", broker=broker_url)
    celery.conf.update(
        # A job's result is in its row.
        task_ignore_result=True,
        # A lost message costs one sweep; a message that is delivered twice finds the job claimed (decision 0001).
        task_acks_late=False,
        task_default_queue=JOBS_QUEUE,
        task_routes={RUN_JOB: {"queue": JOBS_QUEUE}, **{task: {"queue": CONTROL_QUEUE} for task in CONTROL_TASKS}},
        accept_content=["json"],
        broker_connection_retry_on_startup=True,
        # A worker waits indefinitely for its broker.
        broker_connection_max_retries=None,
        # A request that submits a job waits for the broker no longer than this; the control worker enqueues lost messages.
        broker_transport_options={
            "socket_connect_timeout": 2,
            "socket_timeout": 10,
            "socket_keepalive": True,
            "max_retries": 0,
        },
        # The process has configured its own log format already.
        worker_hijack_root_logger=False,
        # Without a schedule file, because its times would come from a different clock.
        beat_scheduler="celery.beat:Scheduler",
    )
    return celery


def monotonic_now() -> datetime:
    """Return the start of the epoch plus the machine's uptime: a time that clock changes do not affect."""
    return datetime.fromtimestamp(time.monotonic(), UTC)


def every(seconds: float) -> dict[str, Any]:
    """Return the fields of a task in beat's schedule: it is due at the start and then at this interval, in seconds.

    Beat's own schedules compare clock times: if the clock were set back an hour, no task would be due for an hour.
    """
    last_run_at = monotonic_now() - timedelta(seconds=seconds)
    return {
        "schedule": schedule(seconds, nowfun=monotonic_now),
        "last_run_at": last_run_at,
        # A message that has waited for an interval is replaced by the next one: a stopped worker must not find a heap
        # of them.
        "options": {"expires": seconds},
    }


class JobQueue:
    """Sends the messages of queued jobs to the workers."""

    def __init__(self, celery: Celery) -> None:
        self._celery = celery

    def enqueue(self, job_id: str) -> bool:
        """Send the message of a queued job.

        Returns:
            False when the broker did not accept the message. This is not an error: the control worker enqueues the job again.
        """
        try:
            self._celery.send_task(RUN_JOB, args=[job_id], retry=False)
        except (OperationalError, OSError) as error:
            logger.warning(
                "the broker did not accept the message of the job %s (%s); the control worker will enqueue it again",
                job_id,
                error,
            )
            return False
        return True
