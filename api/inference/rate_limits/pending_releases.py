"""Pending releases: slots that were released while Valkey did not respond, released there as soon as it does."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

from redis.exceptions import RedisError

RETRY_SECONDS = 1.0
MAX_PENDING = 10_000
"""Largest number of releases that are kept, so that a long outage does not fill the memory; the slot of any further
release becomes free when its hold expires.
"""

Release = Callable[[str, str], Awaitable[None]]


class PendingReleases:
    """Releases slots until that succeeds, in a task that runs only while a release is pending.

    A slot's name belongs to one request, so releasing one late or twice frees no other request's slot.

    Args:
        release: takes an account's name and a slot; raises ``RedisError`` or ``OSError`` while Valkey does not answer.
        hold: seconds after which a slot expires, and its release is no longer pending.
        retry: seconds between two tries.
    """

    def __init__(self, release: Release, *, hold: float, retry: float = RETRY_SECONDS) -> None:
        self._release = release
        self._hold = hold
        self._retry = retry
        self._pending: dict[tuple[str, str], float] = {}
        self._retrying: asyncio.Task[None] | None = None

    def add(self, account: str, slot: str) -> None:
        """Release a slot soon."""
        # Further ones end by themselves, because they are not renewed.
        if len(self._pending) < MAX_PENDING:
            self._pending[account, slot] = time.monotonic() + self._hold
        if self._retrying is None or self._retrying.done():
            self._retrying = asyncio.create_task(self._keep_trying())

    def remove(self, account: str, slot: str) -> None:
        """Drop a slot's release: the slot was taken again, and its new holder will release it."""
        self._pending.pop((account, slot), None)

    async def close(self) -> None:
        """Try one last time."""
        if self._retrying:
            self._retrying.cancel()
        await self._try()

    async def _keep_trying(self) -> None:
        while self._pending:
            await asyncio.sleep(self._retry)
            await self._try()

    async def _try(self) -> None:
        """Release the pending slots, oldest first, up to the first that Valkey does not accept."""
        # A copy, because requests add and remove releases while this waits for Valkey.
        for (account, slot), until in list(self._pending.items()):
            if time.monotonic() < until:
                try:
                    await self._release(account, slot)
                except (RedisError, OSError):
                    # Valkey does not answer: each further try would wait for the same timeout.
                    return
            self._pending.pop((account, slot), None)
