"""Limits of a key: requests a minute, and requests under way at once. All API processes count together (docs/usage.md)."""

from __future__ import annotations

import asyncio
import logging
import math
import uuid
from collections import defaultdict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from types import MappingProxyType, TracebackType
from typing import Any, Self

from api.limit_stores import HOLD_SECONDS, Ask, Refusal, SharedStore, ValkeyStore, Verdict
from shared.errors import Code, TooMany
from shared.keys import Key

RENEW_SECONDS = HOLD_SECONDS / 3
PAUSES = (0.02, 0.08, 0.2)
"""A slot may be free in a moment: a caller that has all of an answer, or left it, can be here before it is given back."""
SLOT_WAIT_SECONDS = 1
"""``Retry-After`` of a request that found no slot: a guess, for nobody knows when one will be free."""

logger = logging.getLogger(__name__)


class Admission:
    """A request that may go on. Whoever has it leaves it in the end, however that comes.

    Attributes:
        headers: for the answer: how the key stands.
    """

    def __init__(
        self, headers: Mapping[str, str] = MappingProxyType({}), leave: Callable[[], Awaitable[None]] | None = None
    ) -> None:
        self.headers = headers
        self._leave = leave

    async def leave(self) -> None:
        """Give the slot back; the second time does nothing. It is given back even if this is cancelled."""
        leave, self._leave = self._leave, None
        if leave:
            await leave()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.leave()


FREE = Admission()
"""Of a key without limits."""


class Limiter:
    """Admits requests to models.

        admission = await limiter.admit(key)     # first of all, before the body is read
        headers.update(admission.headers)        # of the answer
        await admission.leave()                  # in the end; for a stream, before its end is sent

    Args:
        store: counts and holds slots.
        pauses: seconds between looks for a slot.
        renew_seconds: how often held slots are renewed.
    """

    def __init__(
        self, store: SharedStore, *, pauses: Sequence[float] = PAUSES, renew_seconds: float = RENEW_SECONDS
    ) -> None:
        self._store = store
        self._pauses = pauses
        self._renew_seconds = renew_seconds
        self._held: set[Ask] = set()
        self._renewing: asyncio.Task[None] | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def admit(self, key: Key) -> Admission:
        """Count a request. A key without limits costs nothing.

        Raises:
            TooMany: ``RATE_LIMITED`` or ``CONCURRENCY_LIMITED``.
        """
        if key.requests_per_minute is None and key.concurrent_requests is None:
            return FREE
        ask = Ask(key.id, uuid.uuid4().hex, key.requests_per_minute, key.concurrent_requests)
        try:
            verdict = await self._take(ask)
        except asyncio.CancelledError:  # the slot may be taken already
            self._give_back(ask)
            raise
        standing = _standing(ask, verdict)
        if verdict.refusal:
            raise _too_many(key, verdict, standing)
        if ask.concurrent_requests is None:
            return Admission(limit_headers(standing))
        self._hold(ask)
        return Admission(limit_headers(standing), lambda: asyncio.shield(self._give_back(ask)))

    async def close(self) -> None:
        """Wait for what is being given back, and close the connections."""
        if self._renewing:
            self._renewing.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._store.close()

    async def _take(self, ask: Ask) -> Verdict:
        """Look a few times for a slot: a client's retry costs more."""
        for pause in self._pauses:
            verdict = await self._store.take(ask)
            if verdict.refusal is not Refusal.SLOTS:
                return verdict
            await asyncio.sleep(pause)
        return await self._store.take(ask)

    def _hold(self, ask: Ask) -> None:
        self._held.add(ask)
        if self._renewing is None or self._renewing.done():
            self._renewing = asyncio.create_task(self._renew())

    def _give_back(self, ask: Ask) -> asyncio.Task[None]:
        """In a task of its own, which no cancelled caller ends."""
        self._held.discard(ask)
        task = asyncio.create_task(self._store.give_back(ask.key_id, ask.slot))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _renew(self) -> None:
        """Renew what is held, until nothing is."""
        while self._held:
            await asyncio.sleep(self._renew_seconds)
            slots: dict[str, list[str]] = defaultdict(list)
            for ask in self._held:
                slots[ask.key_id].append(ask.slot)
            for key_id, names in slots.items():
                await self._store.renew(key_id, names)


def make_limiter(broker_url: str) -> Limiter:
    """A limiter that shares its counts with all that have the same broker, if that is Valkey or Redis by itself."""
    try:
        return Limiter(SharedStore(ValkeyStore(broker_url)))
    except ValueError as error:
        logger.warning("the broker cannot hold limits, so each API process limits keys for itself: %s", error)
        return Limiter(SharedStore(None))


def limit_headers(standing: Mapping[str, Any]) -> dict[str, str]:
    """Headers that say how a key stands: OpenAI's three for keys with requests a minute, and when to come again.

    Args:
        standing: ``details`` of a :class:`TooMany`.
    """
    headers = {}
    if "requests_per_minute" in standing:
        headers["x-ratelimit-limit-requests"] = str(standing["requests_per_minute"])
        headers["x-ratelimit-remaining-requests"] = str(standing["remaining_requests"])
        headers["x-ratelimit-reset-requests"] = _duration(standing["reset_seconds"])
    if "retry_after_seconds" in standing:
        headers["Retry-After"] = str(standing["retry_after_seconds"])
    return headers


def _standing(ask: Ask, verdict: Verdict) -> dict[str, Any]:
    standing: dict[str, Any] = {}
    if ask.requests_per_minute is not None:
        standing["requests_per_minute"] = ask.requests_per_minute
        standing["remaining_requests"] = max(ask.requests_per_minute - verdict.used, 0)
        standing["reset_seconds"] = round(verdict.reset, 3)
    if ask.concurrent_requests is not None:
        standing["concurrent_requests"] = ask.concurrent_requests
    if verdict.refusal is Refusal.RATE:
        standing["retry_after_seconds"] = max(math.ceil(verdict.wait), 1)
    elif verdict.refusal is Refusal.SLOTS:
        standing["retry_after_seconds"] = SLOT_WAIT_SECONDS
    return standing


def _too_many(key: Key, verdict: Verdict, standing: dict[str, Any]) -> TooMany:
    if verdict.refusal is Refusal.RATE:
        return TooMany(
            Code.RATE_LIMITED,
            f"The key {key.name!r} may ask models {_times(key.requests_per_minute)} a minute, and has.",
            remedy=f"Try again in {standing['retry_after_seconds']} s.",
            details=standing,
        )
    return TooMany(
        Code.CONCURRENCY_LIMITED,
        f"The key {key.name!r} may have {_requests(key.concurrent_requests)} to models under way at once, and has.",
        remedy="Try again when one of them has ended.",
        details=standing,
    )


def _times(number: int | None) -> str:
    return "once" if number == 1 else f"{number} times"


def _requests(number: int | None) -> str:
    return "1 request" if number == 1 else f"{number} requests"


def _duration(seconds: float) -> str:
    """As OpenAI writes it: 1m30s, 0.25s."""
    minutes, rest = divmod(seconds, 60)
    return (f"{minutes:.0f}m" if minutes else "") + f"{rest:.3f}".rstrip("0").rstrip(".") + "s"
