"""Rate limits of API keys: requests per minute, requests in flight at once, tokens per minute. All API processes count
together (docs/usage.md).
"""

from __future__ import annotations

import asyncio
import logging
import math
import uuid
from collections import defaultdict
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from functools import partial
from types import MappingProxyType, TracebackType
from typing import Any, Self

from api.errors import limit_headers
from api.inference.rate_limits.stores import (
    HOLD_SECONDS,
    LimitDecision,
    LimitedAccount,
    LimitedRequest,
    LimitReached,
    SharedStore,
    ValkeyStore,
)
from shared.database.callers.key_records import Key
from shared.database.tenancy import SHARED, UNLIMITED, KeyLimits
from shared.errors import Code, TooMany

# A third, so that a slot outlives two lost renewals.
RENEW_SECONDS = HOLD_SECONDS / 3
PAUSES = (0.02, 0.08, 0.2)
"""Seconds between tries for a slot, which may be free in a moment: a caller that has read a whole response, or has
disconnected from it, can send its next request before the slot of the last one is released."""
SLOT_WAIT_SECONDS = 1
"""``Retry-After`` of a request that found no slot: a guess, because it is unknown when one will be free."""
logger = logging.getLogger(__name__)


class Admission:
    """An admitted request. Its holder must release it, however the request ends.

    Attributes:
        headers: headers for the response: the state of the key's limits.
        spend: counts the tokens of the request, which are known when its response has ended.
    """

    def __init__(
        self,
        headers: Mapping[str, str] = MappingProxyType({}),
        release: Callable[[], Awaitable[None]] | None = None,
        spend: Callable[[int], None] = lambda _: None,
    ) -> None:
        self.headers = headers
        self.spend = spend
        self._release = release

    async def release(self) -> None:
        """Release the slot, even if this is cancelled; the second call does nothing."""
        release, self._release = self._release, None
        if release:
            await release()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.release()


FREE = Admission()
"""Admission of a key without limits."""


class RateLimiter:
    """Admits requests to models.

        admission = await limiter.admit(key)     # after the body is read, before it is validated
        headers.update(admission.headers)        # headers of the response
        await admission.release()                # at the end; for a stream, before its end is sent

    Args:
        store: counts requests and holds slots.
        pauses: seconds between tries for a slot.
        renew_seconds: how often held slots are renewed.
        tenant_limits: limits of each tenant except ``shared``, for all of its keys together.
    """

    def __init__(
        self,
        store: SharedStore,
        *,
        pauses: Sequence[float] = PAUSES,
        renew_seconds: float = RENEW_SECONDS,
        tenant_limits: KeyLimits = UNLIMITED,
    ) -> None:
        self._store = store
        self._tenant_limits = tenant_limits
        self._pauses = pauses
        self._renew_seconds = renew_seconds
        self._held: set[LimitedRequest] = set()
        self._renewing: asyncio.Task[None] | None = None
        self._background: set[asyncio.Task[None]] = set()

    async def admit(self, key: Key) -> Admission:
        """Count a request and take its slot. A key without limits costs nothing.

        Raises:
            TooMany: ``RATE_LIMITED`` or ``CONCURRENCY_LIMITED``.
        """
        accounts = self._accounts(key)
        if not accounts:
            return FREE
        request = LimitedRequest(uuid.uuid4().hex, accounts)
        try:
            verdict = await self._store.acquire(request)
            # A few tries here cost less than a retry by the client.
            for pause in self._pauses:
                if verdict.refusal is not LimitReached.SLOTS:
                    break
                await asyncio.sleep(pause)
                verdict = await self._store.acquire(request)
        except asyncio.CancelledError:  # the store may already have taken the slot
            self._release(request)
            raise
        account = accounts[verdict.account]
        state = _limit_state(account, verdict)
        if verdict.refusal:
            who = f"key {key.name!r}" if account.name == key.id else f"tenant {key.tenant!r}"
            raise _too_many(who, account, verdict.refusal, state)
        if account.name != key.id:  # the headers show the key's own limits
            state = {}
        spend = partial(self._spend, request)
        if not request.holders:
            return Admission(limit_headers(state), spend=spend)
        self._held.add(request)
        if self._renewing is None or self._renewing.done():
            self._renewing = asyncio.create_task(self._renew())
        # Shielded: a request that is cancelled while it waits for the release must not cancel it.
        return Admission(limit_headers(state), lambda: asyncio.shield(self._release(request)), spend)

    async def count(self, key: Key, action: str, per_minute: int | None) -> None:
        """Count an action that the key's tenant may perform a limited number of times per minute; ``shared`` is not
        limited.

        Args:
            key: the caller's key.
            action: plural noun, e.g. ``uploads``.
            per_minute: None: no limit.

        Raises:
            TooMany: ``RATE_LIMITED``.
        """
        if per_minute is None or key.tenant == SHARED:
            return
        account = LimitedAccount(f"tenant:{key.tenant}:{action}", per_minute, None)
        verdict = await self._store.acquire(LimitedRequest("", (account,)))
        if verdict.refusal:
            wait = max(math.ceil(verdict.wait), 1)
            raise TooMany(
                Code.RATE_LIMITED,
                f"The tenant {key.tenant!r} has reached its limit of {per_minute} {action} per minute.",
                remedy=f"Try again in {wait} s.",
                details={"retry_after_seconds": wait},
            )

    async def close(self) -> None:
        """Wait for the releases and counts in flight, and close the connections."""
        if self._renewing:
            self._renewing.cancel()
        await asyncio.gather(*self._background, return_exceptions=True)
        await self._store.close()

    def _accounts(self, key: Key) -> tuple[LimitedAccount, ...]:
        """Return the accounts of the key and its tenant that have limits."""
        accounts: tuple[LimitedAccount, ...] = ()
        limits = key.requests_per_minute, key.concurrent_requests, key.tokens_per_minute
        if any(limit is not None for limit in limits):
            accounts = (LimitedAccount(key.id, *limits),)
        if self._tenant_limits != UNLIMITED and key.tenant != SHARED:
            most = self._tenant_limits
            limits = most.requests_per_minute, most.concurrent_requests, most.tokens_per_minute
            accounts += (LimitedAccount(f"tenant:{key.tenant}", *limits),)
        return accounts

    def _spend(self, request: LimitedRequest, tokens: int) -> None:
        """Count tokens in a separate task, so that the caller does not wait."""
        if tokens and request.spenders:
            self._in_background(self._spend_each(request, tokens))

    async def _spend_each(self, request: LimitedRequest, tokens: int) -> None:
        for account in request.spenders:
            await self._store.spend(account, tokens)

    def _release(self, request: LimitedRequest) -> asyncio.Task[None]:
        """Release a slot in a separate task, which is not cancelled with the request."""
        self._held.discard(request)
        return self._in_background(self._release_each(request))

    def _in_background(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        # The loop itself has only a weak reference to a task.
        self._background.add(task)
        task.add_done_callback(self._background.discard)
        return task

    async def _release_each(self, request: LimitedRequest) -> None:
        for account in request.holders:
            await self._store.release(account, request.slot)

    async def _renew(self) -> None:
        """Renew the held slots repeatedly until none is held."""
        while self._held:
            await asyncio.sleep(self._renew_seconds)
            # One call for each account, however many of its requests are in flight.
            slots: dict[str, list[str]] = defaultdict(list)
            for request in self._held:
                for account in request.holders:
                    slots[account].append(request.slot)
            for account, names in slots.items():
                await self._store.renew(account, names)


def make_limiter(broker_url: str, tenant_limits: KeyLimits = UNLIMITED) -> RateLimiter:
    """Return a limiter that shares its counts with all processes on the same broker, if that is a single Valkey or
    Redis.
    """
    try:
        return RateLimiter(SharedStore(ValkeyStore(broker_url)), tenant_limits=tenant_limits)
    except ValueError as error:
        logger.warning("the broker cannot store limits, so each API process limits keys on its own: %s", error)
        return RateLimiter(SharedStore(None), tenant_limits=tenant_limits)


def _limit_state(account: LimitedAccount, verdict: LimitDecision) -> dict[str, Any]:
    """Return an account's limits and what remains of them, for error details and headers."""
    state: dict[str, Any] = {}
    if account.requests_per_minute is not None:
        state["requests_per_minute"] = account.requests_per_minute
        state["remaining_requests"] = max(account.requests_per_minute - verdict.used, 0)
        state["reset_seconds"] = round(verdict.reset, 3)
    if account.concurrent_requests is not None:
        state["concurrent_requests"] = account.concurrent_requests
    if account.tokens_per_minute is not None:
        state["tokens_per_minute"] = account.tokens_per_minute
        state["remaining_tokens"] = max(account.tokens_per_minute - verdict.spent, 0)
        state["reset_tokens_seconds"] = round(verdict.spent_reset, 3)
    if verdict.refusal:
        state["limit"] = "tokens" if verdict.refusal is LimitReached.TOKENS else "requests"
    if verdict.refusal in (LimitReached.RATE, LimitReached.TOKENS):
        state["retry_after_seconds"] = max(math.ceil(verdict.wait), 1)
    elif verdict.refusal is LimitReached.SLOTS:
        state["retry_after_seconds"] = SLOT_WAIT_SECONDS
    return state


def _too_many(who: str, account: LimitedAccount, refusal: LimitReached, state: dict[str, Any]) -> TooMany:
    if refusal is LimitReached.TOKENS:
        message = f"The {who} has reached its limit of {account.tokens_per_minute} tokens per minute."
        return TooMany(
            Code.RATE_LIMITED, message, remedy=f"Try again in {state['retry_after_seconds']} s.", details=state
        )
    if refusal is LimitReached.RATE:
        code, limit, unit = Code.RATE_LIMITED, account.requests_per_minute, "per minute"
        remedy = f"Try again in {state['retry_after_seconds']} s."
    else:
        code, limit, unit = Code.CONCURRENCY_LIMITED, account.concurrent_requests, "in flight at once"
        remedy = "Try again when one of them has finished."
    requests = "1 request" if limit == 1 else f"{limit} requests"
    message = f"The {who} has reached its limit of {requests} to models {unit}."
    return TooMany(code, message, remedy=remedy, details=state)
