"""Keys with limits, and limiters on a real Valkey."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime

import pytest

from api.inference.rate_limits.limiter import RateLimiter
from api.inference.rate_limits.stores import (
    SharedStore,
    ValkeyStore,
)
from shared.database.callers.key_records import Key
from shared.database.tenancy import Role
from shared.errors import TooMany

SLOTS = "mens:limits:{key-a}:slots"
"""Valkey's key for the slots of :func:`key`."""


def key(rate: int | None = None, slots: int | None = None, name: str = "key-a", tokens: int | None = None) -> Key:
    return Key(
        id=name,
        name=name,
        tenant="acme",
        role=Role.VIEWER,
        requests_per_minute=rate,
        concurrent_requests=slots,
        tokens_per_minute=tokens,
        created_at=datetime.now(UTC),
        revoked_at=None,
    )


def limiter(
    url: str, *, window: int = 60, hold: int = 60, renew_seconds: float = 20, away_seconds: float = 10
) -> RateLimiter:
    """The limiter of one API process, which refuses without waiting."""
    store = SharedStore(ValkeyStore(url, window, hold), away_seconds)
    return RateLimiter(store, pauses=(), renew_seconds=renew_seconds)


async def refused(limiter: RateLimiter, key: Key) -> TooMany:
    with pytest.raises(TooMany) as caught:
        await limiter.admit(key)
    return caught.value


def run(test: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(test())  # type: ignore[arg-type]
