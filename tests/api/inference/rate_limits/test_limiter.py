"""The rate limiter: API processes share a key's requests per minute on a real Valkey, and refused callers get the right
response.
"""

from __future__ import annotations

import asyncio
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from api.errors import error_response
from api.inference.rate_limits.limiter import FREE, RateLimiter
from api.inference.rate_limits.stores import (
    LimitedAccount,
    LimitedRequest,
    LimitReached,
    ProcessStore,
    SharedStore,
    ValkeyStore,
)
from shared.database.tenancy import SHARED, KeyLimits
from shared.errors import Code, TooMany
from tests.support.rate_limits import key, limiter, refused, run
from tests.support.valkey import Valkey

pytestmark = pytest.mark.network


def test_two_processes_share_the_requests_per_minute(valkey: Valkey) -> None:
    async def check() -> None:
        one, other = limiter(valkey.url), limiter(valkey.url)
        left = [
            (await each.admit(key(4))).headers["x-ratelimit-remaining-requests"] for each in (one, other, other, one)
        ]
        assert left == ["3", "2", "1", "0"]
        for each in (one, other):
            assert (await refused(each, key(4))).code is Code.RATE_LIMITED
        await one.admit(key(4, name="key-b"))  # a key's limits are its own
        await one.close()
        await other.close()

    run(check)


def test_hundred_concurrent_requests_do_not_exceed_the_slots(valkey: Valkey) -> None:
    async def check() -> None:
        processes = [limiter(valkey.url) for _ in range(4)]
        admissions = [each.admit(key(rate=10, slots=7)) for each in processes for _ in range(25)]
        results = await asyncio.gather(*admissions, return_exceptions=True)
        codes = [result.code for result in results if isinstance(result, TooMany)]
        assert (len(codes), set(codes)) == (
            93,
            {Code.CONCURRENCY_LIMITED},
        )  # a refused one does not count towards the rate
        assert sum(map(int, valkey.client().hvals("mens:limits:{key-a}:requests"))) == 7
        for each in processes:
            await each.close()

    run(check)


def test_request_after_retry_after_is_admitted(valkey: Valkey) -> None:
    async def check() -> None:
        one = limiter(valkey.url, window=4)
        for _ in range(2):
            await one.admit(key(1))
            error = await refused(one, key(1))
            assert 1 <= error.details["retry_after_seconds"] <= 4
            await asyncio.sleep(error.details["retry_after_seconds"])
        await one.close()

    run(check)


@given(
    rate=st.integers(1, 5),
    steps=st.lists(st.floats(0, 40, allow_nan=False), min_size=1, max_size=40),
)
def test_rate_is_never_exceeded_and_wait_is_exact(rate: int, steps: list[float]) -> None:
    now = 0.0
    store = ProcessStore(lambda: now)
    admitted: list[float] = []

    async def check() -> None:
        nonlocal now
        for step in steps:
            now += step
            verdict = await store.acquire(LimitedRequest("slot", (LimitedAccount("k", rate, None),)))
            counting = [moment for moment in admitted if int(moment) > int(now) - 60]
            if verdict.refusal is None:
                admitted.append(now)
                assert verdict.used == len(counting) + 1 <= rate
            else:
                assert len(counting) == rate == verdict.used
                wait = math.ceil(verdict.wait)
                assert 1 <= wait <= 60
                later = [moment for moment in counting if int(moment) > int(now + wait) - 60]
                assert len(later) < rate
                sooner = [moment for moment in counting if int(moment) > int(now + wait - 1) - 60]
                assert len(sooner) == rate or int(now + wait - 1) == int(now)

    run(check)


def test_valkey_and_process_stores_return_the_same_verdicts(valkey: Valkey) -> None:
    """The same requests, in the same order, get the same verdicts."""

    async def check() -> None:
        stores = [ValkeyStore(valkey.url), ProcessStore()]
        for number, (rate, slots) in enumerate(
            [(3, 2), (3, 2), (3, 2), (3, 5), (3, 5), (1, 5), (None, 3), (None, 9), (9, None)]
        ):
            verdicts = [
                await store.acquire(LimitedRequest(f"slot-{number}", (LimitedAccount("k", rate, slots),)))
                for store in stores
            ]
            refusals = [verdict.refusal for verdict in verdicts]
            assert refusals[0] is refusals[1], number
            if rate is not None:
                assert verdicts[0].used == verdicts[1].used
            if refusals[0] is LimitReached.RATE:
                assert all(30 <= verdict.wait <= verdict.reset <= 60 for verdict in verdicts)
            if number == 2:
                assert refusals == [LimitReached.SLOTS, LimitReached.SLOTS]
                for store in stores:
                    await store.release("k", "slot-0")
                    await store.release("k", "slot-0")
        await stores[0].close()

    run(check)


@pytest.mark.parametrize(
    ("limits", "message"),
    [
        ({"rate": 1}, "1 request to models per minute"),
        ({"rate": 2}, "2 requests to models per minute"),
        ({"slots": 1}, "1 request to models in flight at once"),
        ({"slots": 2}, "2 requests to models in flight at once"),
    ],
)
def test_refusal_message_names_the_limit(limits: dict[str, int], message: str) -> None:
    async def check() -> None:
        one = RateLimiter(SharedStore(None), pauses=())
        for _ in range(max(limits.values())):
            await one.admit(key(**limits))
        assert (await refused(one, key(**limits))).message == f"The key 'key-a' has reached its limit of {message}."

    run(check)


def test_headers_of_responses_and_refusals() -> None:
    async def admit() -> tuple[dict[str, str], TooMany, TooMany]:
        one = RateLimiter(SharedStore(None), pauses=())
        admission = await one.admit(key(2, slots=1))
        return dict(admission.headers), await refused(one, key(2, slots=1)), await refused(one, key(1))

    async def check() -> None:
        headers, slots, rate = await admit()
        assert headers["x-ratelimit-limit-requests"] == "2"
        assert headers["x-ratelimit-remaining-requests"] == "1"
        assert headers["x-ratelimit-reset-requests"] == "1m0s" or headers["x-ratelimit-reset-requests"].startswith(
            "59."
        )
        response = error_response(slots)
        assert (response.status_code, response.headers["retry-after"]) == (429, "1")
        assert response.headers["x-ratelimit-remaining-requests"] == "1"
        response = error_response(rate)
        assert response.status_code == 429
        assert response.headers["retry-after"] in ("59", "60")
        assert response.headers["x-ratelimit-remaining-requests"] == "0"
        assert b'"type":"rate_limit_error"' in bytes(response.body)
        assert b'"code":"RATE_LIMITED"' in bytes(response.body)
        assert "x-should-retry" not in response.headers

    run(check)


@pytest.mark.parametrize("is_shared", [True, False])
def test_key_and_tenant_are_charged_together_or_not_at_all(valkey: Valkey, is_shared: bool) -> None:
    limits = KeyLimits(requests_per_minute=3, concurrent_requests=2)

    async def check() -> None:
        store = SharedStore(ValkeyStore(valkey.url)) if is_shared else SharedStore(None)
        one = RateLimiter(store, pauses=(), tenant_limits=limits)
        first = await one.admit(key(2, name="key-a"))
        assert first.headers["x-ratelimit-remaining-requests"] == "1"
        second = await one.admit(key(name="key-b"))  # a key without limits of its own
        assert not second.headers
        by_slots = await refused(one, key(2, name="key-a"))
        assert (by_slots.code, "tenant 'acme'" in by_slots.message) == (Code.CONCURRENCY_LIMITED, True)
        await first.release()
        third = await one.admit(key(2, name="key-a"))
        assert third.headers["x-ratelimit-remaining-requests"] == "0", "the refused one was not charged"
        await second.release()
        by_rate = await refused(one, key(9, name="key-c"))
        assert (by_rate.code, "tenant 'acme'" in by_rate.message) == (Code.RATE_LIMITED, True)
        await third.release()
        if is_shared:
            assert valkey.client().zcard("mens:limits:{tenant:acme}:slots") == 0
        await one.close()

    run(check)


def test_shared_has_no_limits_of_a_tenant() -> None:
    async def check() -> None:
        one = RateLimiter(SharedStore(None), pauses=(), tenant_limits=KeyLimits(requests_per_minute=1))
        free = key().model_copy(update={"tenant": SHARED})
        assert [await one.admit(free) for _ in range(3)] == [FREE] * 3

    run(check)
