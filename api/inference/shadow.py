"""Shadow traffic: copies of requests, sent to an adapter that is only observed, without affecting the caller's
response.

A copy is sent once the caller has the whole response. Its response is counted and discarded; if the alias's shadow
names an eval, it is first judged against the caller's (`api/shadow_judge.py`). Only a few copies run at once: a copy
without a free place is dropped, so a slow shadow never queues up work on the replicas.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Protocol

from api.inference.judged_copies import MAX_ANSWER_BYTES, JudgedCopy
from api.inference.replicas.client import ReplicaResponse
from shared.database.gates.shadow_comparisons import ShadowPair

MAX_COPIES = 4
"""Copies in flight at once in one API process, including while they are judged."""

SendCopy = Callable[[], Awaitable[ReplicaResponse]]
logger = logging.getLogger(__name__)


class Judge(Protocol):
    """Judges copies against the callers' answers."""

    def has_decided(self, tenant: str, pair: ShadowPair) -> bool:
        """Return whether a pair is known to be decided, so that nothing more is copied for it."""

    async def judge(self, copy: JudgedCopy, answer: bytes | None) -> None:
        """Judge and count one copy; ``answer`` is the shadow's; None if it did not answer."""

    async def close(self) -> None:
        """Store the counts that are not stored yet."""


class ShadowTraffic:
    """The copies in flight, and how many were ``answered``, ``failed`` and ``dropped`` by (alias, adapter).

    Args:
        judge: judges copies whose shadow names an eval; None: they are discarded unread.
        limit: copies in flight at once.
    """

    def __init__(self, judge: Judge | None = None, limit: int = MAX_COPIES) -> None:
        self.judge = judge
        self._limit = limit
        self._in_flight: set[asyncio.Task[None]] = set()
        self.counts: Counter[tuple[str, str, str]] = Counter()

    async def offer(self, alias: str, adapter: str, send_copy: SendCopy, judged: JudgedCopy | None = None) -> None:
        """Start a copy and return at once; if too many are in flight, it is dropped.

        Args:
            send_copy: sends the copy and returns the shadow's response, its body still unread.
            judged: the request and answer that it is judged against; None: it is not judged.
        """
        if len(self._in_flight) >= self._limit:
            self.counts[alias, adapter, "dropped"] += 1
            logger.debug("shadow alias=%s adapter=%s dropped", alias, adapter)
            return
        task = asyncio.create_task(self._copy(alias, adapter, send_copy, judged))
        # The loop itself has only a weak reference to a task.
        self._in_flight.add(task)
        task.add_done_callback(self._in_flight.discard)

    async def close(self) -> None:
        """Cancel the copies in flight, and store the judged counts."""
        tasks = list(self._in_flight)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self.judge:
            await self.judge.close()

    async def _copy(self, alias: str, adapter: str, send_copy: SendCopy, judged: JudgedCopy | None) -> None:
        started, status, outcome = time.perf_counter(), 0, "failed"
        answer: bytes | None = None
        try:
            response = await send_copy()
            try:
                read = await _read(response, MAX_ANSWER_BYTES if judged else 0)
            finally:
                response.close()
            status = response.status
            if status < 400:
                outcome, answer = "answered", read
        except Exception as error:  # a fault of a shadow must not reach the caller's request
            logger.warning("shadow alias=%s adapter=%s failed: %s", alias, adapter, error or type(error).__name__)
        self.counts[alias, adapter, outcome] += 1
        milliseconds = (time.perf_counter() - started) * 1000
        logger.info("shadow alias=%s adapter=%s status=%d ms=%.1f", alias, adapter, status, milliseconds)
        if judged and self.judge:
            await self.judge.judge(judged, answer)


async def _read(response: ReplicaResponse, limit: int) -> bytes | None:
    """Read a response's body up to a limit; a longer one is discarded as it arrives, and None returned."""
    kept: list[bytes] = []
    size = 0
    async for chunk in response:
        size += len(chunk)
        if size <= limit:
            kept.append(chunk)
    return b"".join(kept) if size <= limit else None
