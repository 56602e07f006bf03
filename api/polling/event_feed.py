"""Event feed: work that the streams of job events share, so that many of them cost other callers little.

A stream reads the database only when its job has changed (`api/polling/job_versions.py`), streams of one job share a
read, and all reads run in a few separate threads. The number of concurrent streams is limited per key and per
tenant.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from functools import cached_property
from typing import Any, TypeVar

from anyio import CapacityLimiter, to_thread

from shared.database.callers.key_records import Key
from shared.errors import Code, TooMany

# A pool of its own: streams that wait for the database must not occupy the threads of requests.
THREADS = 4
RETRY_SECONDS = 1
"""``Retry-After`` of a stream over the limit: a guess, because it is unknown when another will end."""
T = TypeVar("T")


class EventFeed:
    """Admits the event streams of one process and shares their reads. Used in one event loop at a time.

    Args:
        max_streams: largest number of concurrent streams of one key.
        max_tenant_streams: largest number of concurrent streams of all keys of a tenant.
    """

    def __init__(self, max_streams: int, max_tenant_streams: int) -> None:
        self._max_streams, self._max_tenant_streams = max_streams, max_tenant_streams
        self._streams: Counter[str] = Counter()
        self._reads: dict[Hashable, asyncio.Task[Any]] = {}

    @contextmanager
    def stream_of(self, key: Key) -> Iterator[None]:
        """Count one stream of a key, from before its response begins until it has ended.

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
            self._streams += Counter()  # drops zeros

    @property
    def open_streams(self) -> int:
        """Number of open streams; each counts for its key and for its tenant."""
        return self._streams.total() // 2

    async def read(self, what: Hashable, function: Callable[[], T]) -> T:
        """Return the result of a function that reads the database; concurrent streams with the same read share it.

        Args:
            what: identifies the read, including the version that it must contain.
            function: called in a thread.
        """
        reading: asyncio.Task[T] | None = self._reads.get(what)
        if reading is None:
            reading = self._reads[what] = asyncio.create_task(to_thread.run_sync(function, limiter=self._limiter))
            reading.add_done_callback(lambda _: self._reads.pop(what, None))
        # Shielded: a caller that leaves must not cancel the reading that others wait for.
        return await asyncio.shield(reading)

    @cached_property
    def _limiter(self) -> CapacityLimiter:
        return CapacityLimiter(THREADS)  # of the running loop
