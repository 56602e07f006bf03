"""Turns of requests that read large amounts of data: a tenant has one turn at a time, so that its requests do not delay
those of other tenants.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from typing import TypeVar

from anyio import CapacityLimiter, move_on_after, to_thread

from shared.errors import Code, TooMany

Result = TypeVar("Result")
# Each reading keeps a processor busy, which chats need too.
READINGS_AT_ONCE = 2
READINGS_OF_A_TENANT = 1
WAIT_SECONDS = 20.0


class TenantTurns:
    """Turns for one kind of reading.

    Args:
        readings: plural noun phrase, e.g. ``rows of files``.
    """

    def __init__(self, readings: str) -> None:
        self._readings = readings
        self._all = CapacityLimiter(READINGS_AT_ONCE)
        self._of_tenant: defaultdict[str, CapacityLimiter] = defaultdict(lambda: CapacityLimiter(READINGS_OF_A_TENANT))

    async def run(self, tenant: str, work: Callable[[], Result]) -> Result:
        """Do a tenant's reading in a thread, when it is its turn.

        Raises:
            TooMany: ``CONCURRENCY_LIMITED``.
        """
        with move_on_after(WAIT_SECONDS) as waiting:
            # The tenant's turn first: a request that waits for its own tenant must not hold a turn that others could
            # use.
            async with self._of_tenant[tenant], self._all:
                # From here on the reading's own limits apply; the wait is over.
                waiting.deadline = float("inf")
                # A limiter of its own: the two above bound the number, and the pool's threads stay free for other
                # routes.
                return await to_thread.run_sync(work, limiter=CapacityLimiter(1))
        raise TooMany(
            Code.CONCURRENCY_LIMITED,
            f"Other {self._readings} have been read for {WAIT_SECONDS:g} s, so this request did not get its turn.",
            remedy="Try again in a moment.",
            details={"retry_after_seconds": 1},
        )
