"""Readiness: whether the database responds, and which workers take no job; read once for all callers.

Callers of /ready need no key, so all of them together use only two threads, which do not belong to the pool.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cached_property
from typing import Generic, TypeVar

from anyio import CapacityLimiter, to_thread

from shared.errors import Code, Unavailable
from shared.worker_registry import WorkerMachine

T = TypeVar("T")
MAX_AGE_SECONDS = 1.0
"""Largest age of a result, counted from the start of its reading."""
ANSWER_SECONDS = 1.5
"""Longest time of a whole answer of /ready: probes wait longer than this, so that they see the 503 and its code."""
DATABASE_SECONDS = 5.0
"""Longest time of a query on a slow machine: until then the previous success counts."""
WORKERS_SECONDS = 0.5
"""Longest time that an answer waits for the workers' reports; after it, the reports of the previous reading are used.
"""


class SharedReading(Generic[T]):
    """A result that all callers of one process share while it is fresh. Used in one event loop at a time.

    Args:
        read: returns or raises the result, in a separate thread.
        clock: seconds since any moment.
    """

    def __init__(self, read: Callable[[], T], clock: Callable[[], float]) -> None:
        self._read = read
        self._clock = clock
        self._reading: asyncio.Task[T] | None = None
        self._reading_began = 0.0
        self._succeeded_before = False

    async def result(self) -> T:
        """Return a fresh result, or raise it."""
        now, reading = self._clock(), self._reading
        if reading is None or (reading.done() and now - self._reading_began >= MAX_AGE_SECONDS):
            self._succeeded_before = reading is not None and not reading.cancelled() and reading.exception() is None
            reading = self._reading = asyncio.create_task(to_thread.run_sync(self._read, limiter=self._limiter))
            self._reading_began = now
        # Shielded: a probe that gives up must not cancel the reading that others wait for.
        return await asyncio.shield(reading)

    def is_late(self, seconds: float) -> bool:
        """Return whether the reading in progress has taken this long, or the reading before it did not succeed."""
        return not self._succeeded_before or self._clock() - self._reading_began >= seconds

    @cached_property
    def _limiter(self) -> CapacityLimiter:
        return CapacityLimiter(1)  # of the running loop


class Readiness:
    """State of the database and of the workers as one process knows it. Used in one event loop at a time.

    Args:
        ping: queries the database, and raises ``Unavailable``.
        machines: returns the machines of the live workers.
        clock: seconds since any moment.
    """

    def __init__(
        self,
        ping: Callable[[], None],
        machines: Callable[[], Sequence[WorkerMachine]],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._database = SharedReading(ping, clock)
        self._machines = SharedReading(machines, clock)
        self._last_machines: Sequence[WorkerMachine] = ()

    async def check(self, until: float) -> None:
        """Check that the database responds.

        Args:
            until: when the answer is due, by the running loop's clock.

        Raises:
            Unavailable: ``DATABASE_UNAVAILABLE``.
        """
        try:
            async with asyncio.timeout_at(until):
                await self._database.result()
        except TimeoutError:
            if not self._database.is_late(DATABASE_SECONDS):
                return
            raise Unavailable(
                Code.DATABASE_UNAVAILABLE,
                "The database does not respond.",
                remedy="Check that it is running and reachable; the same request can succeed later.",
            ) from None

    async def faulty_machines(self, until: float) -> list[WorkerMachine]:
        """Return the machines of the workers that take no job because of a fault.

        Args:
            until: when the answer is due, as in :meth:`check`.
        """
        # Too late: answer with the machines as they were last read.
        with suppress(TimeoutError):
            async with asyncio.timeout_at(min(until, asyncio.get_running_loop().time() + WORKERS_SECONDS)):
                self._last_machines = await self._machines.result()
        return [machine for machine in self._last_machines if machine.fault]
