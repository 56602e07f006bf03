"""Job versions: whether a job has changed, for the event streams and the polls of one process.

Each poll of the database is one query for all jobs that are followed. So its cost is the same for one dashboard as for
a thousand, and zero without any.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from functools import partial

from anyio import CapacityLimiter, to_thread

from shared.database.connection import Database
from shared.database.jobs import JobVersion, job_versions
from shared.database.tenancy import TenantName, visible_to
from shared.errors import MensError

FOLLOWED_SECONDS = 30.0
"""Seconds for which a job is read after the last request about it."""
MAX_REQUESTED_JOBS = 5_000
"""Largest number of jobs that are read because of requests; for further jobs each request queries the database."""
MAX_MISSED_POLLS = 3
"""All versions count as unknown after this many polls without a response, plus one second."""

logger = logging.getLogger(__name__)


class JobVersions:
    """Follows jobs. Used in one event loop at a time.

    Args:
        database: read once per poll.
        poll_seconds: seconds between two reads; versions are at most this old, plus the duration of a read.
    """

    def __init__(self, database: Database, poll_seconds: float) -> None:
        self._database, self._poll_seconds = database, poll_seconds
        self._longest_age = MAX_MISSED_POLLS * poll_seconds + 1
        self._streams: Counter[str] = Counter()
        self._requested: dict[str, float] = {}
        self._forgotten: dict[str, float] = {}
        self._versions: Mapping[str, JobVersion] = {}
        self._read_at = 0.0
        self._polling: asyncio.Task[None] | None = None

    async def polls(self, job_id: str) -> AsyncIterator[int | None]:
        """Yield the job's version after each poll, whether it has changed or not; None if it is not known yet.

        Nothing is yielded while the database does not respond.
        """
        self._streams[job_id] += 1
        try:
            self._start()
            while True:
                polled = self._polled
                version = self._versions.get(job_id)
                yield version and version.version
                await polled.wait()
        finally:
            self._streams[job_id] -= 1
            self._streams += Counter()  # drops zeros

    def version(self, job_id: str, tenant: TenantName) -> JobVersion | None:
        """Return the version of a job that a tenant sees; None if the caller must query the database for it.

        The job is read from now on, so that the next call may know it.
        """
        now = time.monotonic()
        if job_id in self._requested or len(self._requested) < MAX_REQUESTED_JOBS:
            self._requested[job_id] = now
            self._start()
        version = self._versions.get(job_id)
        if version is None or now - self._read_at > self._longest_age:
            return None
        if self._read_at <= self._forgotten.get(job_id, 0.0):
            return None
        return version if version.tenant == tenant or version.tenant in visible_to(tenant) else None

    def forget(self, job_id: str) -> None:
        """Send the next request about a job to the database, because this process has just changed it."""
        self._forgotten[job_id] = time.monotonic()

    async def close(self) -> None:
        """End the polling."""
        if self._polling is not None:
            self._polling.cancel()
            await asyncio.gather(self._polling, return_exceptions=True)

    def _start(self) -> None:
        if self._polling is None or self._polling.done():
            self._limiter, self._polled = CapacityLimiter(1), asyncio.Event()
            # What was read before polling stopped may be any age.
            self._versions = {}
            self._polling = asyncio.create_task(self._poll())

    async def _poll(self) -> None:
        while followed := self._followed():
            began = time.monotonic()
            try:
                self._versions = await to_thread.run_sync(
                    partial(job_versions, self._database, followed), limiter=self._limiter
                )
                # From before the query, whose result may lack a change that was committed while it ran.
                self._read_at = began
                self._forgotten = {job: moment for job, moment in self._forgotten.items() if moment >= began}
                # In this order, as in `JobChanges`: a stream that waits again at once must wait for the next poll.
                polled, self._polled = self._polled, asyncio.Event()
                polled.set()
            except MensError as error:
                logger.warning("polls and event streams wait for the database: %s", error.message)
            await asyncio.sleep(self._poll_seconds)

    def _followed(self) -> list[str]:
        oldest = time.monotonic() - FOLLOWED_SECONDS
        self._requested = {job: moment for job, moment in self._requested.items() if moment > oldest}
        return list({*self._streams, *self._requested})
