"""Slots that were given back while Valkey did not answer: it is told as soon as it does."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

from redis.exceptions import RedisError

RETRY_SECONDS = 1.0
MOST = 10_000
"""Debts that are kept, so that a long absence fills no memory; a slot beyond them is free when its hold is over."""

GiveBack = Callable[[str, str], Awaitable[None]]


class SlotDebts:
    """Gives slots back until that succeeds, in a task that is there only while something is owed.

    A slot's name is its request's own, so giving one back late or twice frees nobody else's.

    Args:
        give_back: takes a key's id and a slot; raises ``RedisError`` or ``OSError`` while Valkey does not answer.
        hold: seconds after which a slot is free by itself, and owed no more.
        retry: seconds between two tries.
    """

    def __init__(self, give_back: GiveBack, *, hold: float, retry: float = RETRY_SECONDS) -> None:
        self._give_back = give_back
        self._hold = hold
        self._retry = retry
        self._owed: dict[str, tuple[str, float]] = {}
        self._paying: asyncio.Task[None] | None = None

    def owe(self, key_id: str, slot: str) -> None:
        """Have a slot given back soon."""
        if len(self._owed) < MOST:
            self._owed[slot] = (key_id, time.monotonic() + self._hold)
        if self._paying is None or self._paying.done():
            self._paying = asyncio.create_task(self._pay())

    def settle(self, slot: str) -> None:
        """A slot is not owed any more: it was taken again, and will be given back by who has it."""
        self._owed.pop(slot, None)

    async def close(self) -> None:
        """Try once more, and no longer."""
        if self._paying:
            self._paying.cancel()
        await self._try()

    async def _pay(self) -> None:
        while self._owed:
            await asyncio.sleep(self._retry)
            await self._try()

    async def _try(self) -> None:
        """Give back what is owed, the oldest first, up to the first that Valkey does not take."""
        for slot, (key_id, until) in list(self._owed.items()):
            if time.monotonic() < until:
                try:
                    await self._give_back(key_id, slot)
                except (RedisError, OSError):
                    return
            self._owed.pop(slot, None)
