"""Shadow traffic: copies of requests to an adapter that is only watched. It has no way to touch a caller.

A copy is sent when the caller already has the whole answer; what comes back is counted and thrown away. Only a few run at
once: a copy that finds no room is dropped, so a slow shadow never queues up work on the replicas.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Awaitable, Callable

from api.replica_client import Begun

MAX_COPIES = 4
"""Copies under way at once in one API process."""

Ask = Callable[[], Awaitable[Begun]]
logger = logging.getLogger(__name__)


class ShadowTraffic:
    """The copies that are under way, and how many were ``answered``, ``failed`` and ``dropped`` by (alias, adapter)."""

    def __init__(self, limit: int = MAX_COPIES) -> None:
        self._limit = limit
        self._under_way: set[asyncio.Task[None]] = set()
        self.counts: Counter[tuple[str, str, str]] = Counter()

    async def offer(self, alias: str, adapter: str, ask: Ask) -> None:
        """Begin a copy and return at once; without room it is dropped.

        Args:
            ask: sends the copy and gives the shadow's answer, its body still unread.
        """
        if len(self._under_way) >= self._limit:
            self.counts[alias, adapter, "dropped"] += 1
            logger.debug("shadow alias=%s adapter=%s dropped", alias, adapter)
            return
        task = asyncio.create_task(self._copy(alias, adapter, ask))
        self._under_way.add(task)
        task.add_done_callback(self._under_way.discard)

    async def close(self) -> None:
        """Give up what is under way."""
        tasks = list(self._under_way)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _copy(self, alias: str, adapter: str, ask: Ask) -> None:
        started = time.perf_counter()
        try:
            status = await _read(ask)
            outcome = "answered" if status < 400 else "failed"
        except Exception as error:  # whatever is wrong with a shadow is the shadow's affair
            status, outcome = 0, "failed"
            logger.warning("shadow alias=%s adapter=%s failed: %s", alias, adapter, error or type(error).__name__)
        self.counts[alias, adapter, outcome] += 1
        milliseconds = (time.perf_counter() - started) * 1000
        logger.info("shadow alias=%s adapter=%s status=%d ms=%.1f", alias, adapter, status, milliseconds)


async def _read(ask: Ask) -> int:
    """The status of the whole answer; its bytes are let go as they come."""
    answer = await ask()
    try:
        async for _ in answer:
            pass
    finally:
        answer.close()
    return answer.status
