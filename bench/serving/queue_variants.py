"""The worker that ``python -m bench.queue`` measures: ``celery -A bench.serving.queue_variants worker``.

It is the product's own Celery application, with two additions: a task that only reports when it runs (the bare round
trip), and merge jobs that report when their runner starts and then succeed.
"""

from __future__ import annotations

import time

from redis import Redis

from bench.serving.queue_names import PING, STARTED
from shared.database.records import Kind
from worker.app import app, settings
from worker.jobs.attempt import Attempt
from worker.jobs.runner import RUNNERS

_redis = Redis.from_url(settings.broker_url)


@app.task(name=PING, shared=False)
def ping() -> None:
    """Record when this runs."""
    _redis.rpush(STARTED, time.monotonic_ns())


def _start(attempt: Attempt) -> None:
    now = time.monotonic_ns()
    attempt.leases.finish(attempt.lease, {})
    # Only now, so that the next job does not wait for the end of this job.
    _redis.rpush(STARTED, now)


RUNNERS[Kind.MERGE] = _start
