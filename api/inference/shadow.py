"""Shadow traffic: copies of requests to an adapter that is only watched, without affecting the caller's response.

A copy is sent when the caller already has the whole response; the copy's response is counted and thrown away. Only a few
copies run at once: one that finds no room is dropped, so a slow shadow never queues up work on the replicas.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Awaitable, Callable

from api.inference.replicas.client import ReplicaResponse

MAX_COPIES = 4
"""Copies in flight at once in one API process."""

SendCopy = Callable[[], Awaitable[ReplicaResponse]]
logger = logging.getLogger(__name__)


class ShadowTraffic:
    """The copies in flight, and how many were ``answered``, ``failed`` and ``dropped`` by (alias, adapter)."""

    def __init__(self, limit: int = MAX_COPIES) -> None:
        self._limit = limit
        self._in_flight: set[asyncio.Task[None]] = set()
        self.counts: Counter[tuple[str, str, str]] = Counter()

    async def offer(self, alias: str, adapter: str, send_copy: SendCopy) -> None:
        """Begin a copy and return at once; without room it is dropped.

        Args:
            send_copy: sends the copy and returns the shadow's response, its body still unread.
        """
        if len(self._in_flight) >= self._limit:
            self.counts[alias, adapter, "dropped"] += 1
            logger.debug("shadow alias=%s adapter=%s dropped", alias, adapter)
            return
        task = asyncio.create_task(self._copy(alias, adapter, send_copy))
        self._in_flight.add(task)
        task.add_done_callback(self._in_flight.discard)

    async def close(self) -> None:
        """Cancel the copies in flight."""
        tasks = list(self._in_flight)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _copy(self, alias: str, adapter: str, send_copy: SendCopy) -> None:
        started, status, outcome = time.perf_counter(), 0, "failed"
        try:
            response = await send_copy()
            try:
                async for _ in response:  # the bytes are thrown away as they come
                    pass
            finally:
                response.close()
            status, outcome = response.status, "answered" if response.status < 400 else "failed"
        except Exception as error:  # a fault of a shadow must not reach the caller's request
            logger.warning("shadow alias=%s adapter=%s failed: %s", alias, adapter, error or type(error).__name__)
        self.counts[alias, adapter, outcome] += 1
        milliseconds = (time.perf_counter() - started) * 1000
        logger.info("shadow alias=%s adapter=%s status=%d ms=%.1f", alias, adapter, status, milliseconds)
