"""Tokens per minute: shared by API processes on a real Valkey, and counted when an answer has ended."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from api.inference.rate_limits.limiter import RateLimiter
from api.inference.rate_limits.stores import (
    LimitedAccount,
    LimitedRequest,
    LimitReached,
    ProcessStore,
    SharedStore,
)
from cli.standalone.ports import free_port
from shared.database.callers.key_records import Key
from shared.database.tenancy import KeyLimits
from shared.errors import Code
from tests.support.rate_limits import key, limiter, refused, run
from tests.support.valkey import Valkey

pytestmark = pytest.mark.network


async def spend(limiter: RateLimiter, key: Key, tokens: int) -> Mapping[str, str]:
    """Send one request whose answer has this many tokens; return its headers."""
    admission = await limiter.admit(key)
    admission.spend(tokens)
    await asyncio.gather(*limiter._background)
    return admission.headers


def test_two_processes_share_the_tokens_per_minute(valkey: Valkey) -> None:
    async def check() -> None:
        one, other, limited = limiter(valkey.url), limiter(valkey.url), key(tokens=100)
        first, second = await spend(one, limited, 60), await spend(other, limited, 60)
        left = "x-ratelimit-remaining-tokens"
        assert (first["x-ratelimit-limit-tokens"], first[left], second[left]) == ("100", "100", "40")
        assert second["x-ratelimit-reset-tokens"].endswith("s")
        error = await refused(one, limited)
        assert (error.code, error.details["limit"], error.details["remaining_tokens"]) == (
            Code.RATE_LIMITED,
            "tokens",
            0,
        )
        assert 1 <= error.details["retry_after_seconds"] <= 60
        assert "100 tokens per minute" in error.message
        await one.admit(key(tokens=100, name="key-b"))
        await one.admit(key(rate=5))  # the same key without that limit
        await one.close()
        await other.close()

    run(check)


def test_tokens_of_all_keys_of_a_tenant_count_together() -> None:
    async def check() -> None:
        one = RateLimiter(SharedStore(None), pauses=(), tenant_limits=KeyLimits(tokens_per_minute=10))
        await spend(one, key(name="key-a"), 10)
        assert "tenant 'acme'" in (await refused(one, key(name="key-b"))).message
        await one.close()

    run(check)


def test_request_is_admitted_when_its_tokens_have_left_the_window(valkey: Valkey) -> None:
    async def check() -> None:
        one, limited = limiter(valkey.url, window=4), key(tokens=5)
        await spend(one, limited, 7)
        error = await refused(one, limited)
        await asyncio.sleep(error.details["retry_after_seconds"])
        await one.admit(limited)
        await one.close()

    run(check)


def test_tokens_count_in_the_process_while_valkey_is_away() -> None:
    async def check() -> None:
        one, limited = limiter(f"redis://127.0.0.1:{free_port()}/0"), key(tokens=5)
        await spend(one, limited, 5)
        await refused(one, limited)
        await one.close()

    run(check)


@given(steps=st.lists(st.tuples(st.floats(0, 40, allow_nan=False), st.integers(0, 9)), min_size=1, max_size=30))
def test_wait_for_tokens_is_exact(steps: list[tuple[float, int]]) -> None:
    now = 0.0
    store, request = ProcessStore(lambda: now), LimitedRequest("slot", (LimitedAccount("k", None, None, 10),))

    async def check() -> None:
        nonlocal now
        for pause, tokens in steps:
            now += pause
            verdict = await store.acquire(request)
            if verdict.refusal is None:
                await store.spend("k", tokens)
                continue
            assert verdict.refusal is LimitReached.TOKENS
            free = now + verdict.wait
            now = free - 0.01
            assert (await store.acquire(request)).refusal is LimitReached.TOKENS
            now = free + 0.001
            assert (await store.acquire(request)).refusal is None

    asyncio.run(check())
