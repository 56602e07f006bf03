"""Event feed: what the streams of job events share, so that many of them cost others little.

Each poll is one query for all jobs that are followed in this process; a stream reads the database only when its job has changed,
streams of one job read it together, and all of them in a few threads of their own. A key may have so many streams at once, and so
may a tenant with all of its keys.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncIterator, Callable, Hashable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeVar

from anyio import CapacityLimiter, to_thread

from shared.database.connection import Database
from shared.database.jobs import job_versions
from shared.database.keys import Key
from shared.errors import Code, MensError, TooMany

THREADS = 4
RETRY_SECONDS = 1
"""``Retry-After`` of a stream over the limit: a guess, because it is unknown when another will end."""
T = TypeVar("T")
logger = logging.getLogger(__name__)


class EventFeed:
    """Follows jobs for the event streams of one process. Used in one event loop at a time.

    Args:
        database: read for versions of jobs.
        poll_seconds: between two reads.
        max_streams: of one key at once.
        max_tenant_streams: of all keys of a tenant at once.
    """

    def __init__(self, database: Database, poll_seconds: float, max_streams: int, max_tenant_streams: int) -> None:
        self._database = database
        self._poll_seconds = poll_seconds
        self._max_streams, self._max_tenant_streams = max_streams, max_tenant_streams
        self._streams: Counter[str] = Counter()
        self._followed: Counter[str] = Counter()
        self._versions: Mapping[str, int] = {}
        self._reads: dict[Hashable, asyncio.Task[Any]] = {}
        self._polling: asyncio.Task[None] | None = None

    @contextmanager
    def stream_of(self, key: Key) -> Iterator[None]:
        """One stream of a key, from before its response begins until it has ended.

        Raises:
            TooMany: ``CONCURRENCY_LIMITED``.
        """
        tenant = f"tenant:{key.tenant}"
        for account, limit, who in (
            (key.id, self._max_streams, f"key {key.name!r}"),
            (tenant, self._max_tenant_streams, f"tenant {key.tenant!r}"),
        ):
            if self._streams[account] >= limit:
                raise TooMany(
                    Code.CONCURRENCY_LIMITED,
                    f"The {who} has reached its limit of {limit} event streams at once.",
                    remedy="Close one of them, or poll GET /v1/jobs/{job_id}.",
                    details={"retry_after_seconds": RETRY_SECONDS},
                )
        self._streams.update((key.id, tenant))
        try:
            yield
        finally:
            self._streams.subtract((key.id, tenant))
            self._streams += Counter()  # drops what is zero

    @property
    def open_streams(self) -> int:
        """Streams that are open now; each counts for its key and for its tenant."""
        return self._streams.total() // 2

    async def versions(self, job_id: str) -> AsyncIterator[int | None]:
        """The job's version after each poll, whether it has changed or not; None: it is not known yet.

        While the database does not answer there is none.
        """
        self._followed[job_id] += 1
        try:
            if self._polling is None or self._polling.done():
                self._limiter, self._polled = CapacityLimiter(THREADS), asyncio.Event()
                self._polling = asyncio.create_task(self._poll())
            while True:
                polled = self._polled
                yield self._versions.get(job_id)
                await polled.wait()
        finally:
            self._followed[job_id] -= 1
            self._followed += Counter()

    async def read(self, what: Hashable, function: Callable[[], T]) -> T:
        """The result of a function that reads the database; streams that want the same at the same moment share it.

        Args:
            what: it reads, with the version that has to be in it.
            function: called in a thread.
        """
        reading: asyncio.Task[T] | None = self._reads.get(what)
        if reading is None:
            reading = self._reads[what] = asyncio.create_task(to_thread.run_sync(function, limiter=self._limiter))
            reading.add_done_callback(lambda _: self._reads.pop(what, None))
        return await asyncio.shield(reading)

    async def close(self) -> None:
        """End the polling."""
        if self._polling is not None:
            self._polling.cancel()
            await asyncio.gather(self._polling, return_exceptions=True)

    async def _poll(self) -> None:
        while self._followed:
            await asyncio.sleep(self._poll_seconds)
            read = partial(job_versions, self._database, list(self._followed))
            try:
                self._versions = await to_thread.run_sync(read, limiter=self._limiter)
            except MensError as error:
                logger.warning("event streams wait for the database: %s", error.message)
            polled, self._polled = self._polled, asyncio.Event()
            polled.set()
