"""Readiness: whether the database responds, checked once for all callers.

Callers of /ready need no key, so whatever their number, they use one thread, which does not belong to the pool.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from functools import cached_property

from anyio import CapacityLimiter, to_thread

MAX_AGE_SECONDS = 1.0
"""Largest age of a result, counted from the start of the database check."""


class Readiness:
    """State of the database as one process knows it. Used in one event loop at a time.

    Args:
        ping: queries the database, and raises ``Unavailable``.
        clock: seconds since any moment.
    """

    def __init__(self, ping: Callable[[], None], clock: Callable[[], float] = time.monotonic) -> None:
        self._ping = ping
        self._clock = clock
        self._asked: asyncio.Task[None] | None = None
        self._asked_at = 0.0

    async def check(self) -> None:
        """Raises:
        Unavailable: ``DATABASE_UNAVAILABLE``.
        """
        now, asked = self._clock(), self._asked
        if asked is None or (asked.done() and now - self._asked_at >= MAX_AGE_SECONDS):
            asked = self._asked = asyncio.create_task(to_thread.run_sync(self._ping, limiter=self._limiter))
            self._asked_at = now
        await asyncio.shield(asked)

    @cached_property
    def _limiter(self) -> CapacityLimiter:
        return CapacityLimiter(1)  # of the running loop
