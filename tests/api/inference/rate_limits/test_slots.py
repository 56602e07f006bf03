"""Concurrent requests: API processes share a key's slots on a real Valkey."""

from __future__ import annotations

import asyncio

import pytest

from api.inference.rate_limits.limiter import RateLimiter
from api.inference.rate_limits.stores import (
    LimitDecision,
    LimitedRequest,
    SharedStore,
    ValkeyStore,
)
from shared.errors import Code
from tests.support.rate_limits import SLOTS, key, limiter, refused, run
from tests.support.valkey import Valkey
from tests.support.waiting import eventually_true

pytestmark = pytest.mark.network


def test_two_processes_share_slots(valkey: Valkey) -> None:
    async def check() -> None:
        one, other = limiter(valkey.url), limiter(valkey.url)
        first, second = await one.admit(key(slots=2)), await other.admit(key(slots=2))
        assert dict(first.headers) == {}
        for each in (one, other):
            assert (await refused(each, key(slots=2))).code is Code.CONCURRENCY_LIMITED
        await first.release()
        await first.release()
        async with await other.admit(key(slots=2)):
            await refused(one, key(slots=2))
        third = await one.admit(key(slots=2))
        await second.release()
        await third.release()
        assert valkey.client().zcard("mens:limits:{key-a}:slots") == 0
        await one.close()
        await other.close()

    run(check)


def test_slots_of_dead_process_expire(valkey: Valkey) -> None:
    async def check() -> None:
        dead, other = limiter(valkey.url, hold=4, renew_seconds=60), limiter(valkey.url, hold=4)
        await dead.admit(key(slots=1))  # never renewed, as if its process was dead
        await refused(other, key(slots=1))
        await asyncio.sleep(4.5)
        await (await other.admit(key(slots=1))).release()
        await other.close()
        await dead.close()

    run(check)


def test_slots_of_live_process_do_not_expire(valkey: Valkey) -> None:
    async def check() -> None:
        one, client = limiter(valkey.url, hold=60, renew_seconds=0.3), valkey.client()
        held = await one.admit(key(slots=1))
        [(slot, end)] = client.zrange(SLOTS, 0, -1, withscores=True)
        client.zadd(SLOTS, {slot: end - 50_000})  # as 50 s later
        client.expire(SLOTS, 10)
        await eventually_true(lambda: client.zscore(SLOTS, slot) >= end, what="it is renewed")
        await eventually_true(lambda: client.ttl(SLOTS) > 10)
        await refused(one, key(slots=1))
        await held.release()
        await asyncio.sleep(0.5)  # renewing brings back none that was released
        assert client.zcard(SLOTS) == 0
        await one.close()

    run(check)


def test_slot_that_is_released_in_a_moment_is_waited_for(valkey: Valkey) -> None:
    async def check() -> None:
        one = RateLimiter(SharedStore(ValkeyStore(valkey.url)), pauses=(0.02,) * 500)
        first = await one.admit(key(slots=1))
        second = asyncio.create_task(one.admit(key(slots=1)))
        await asyncio.sleep(0.05)
        assert not second.done()
        await first.release()
        await (await second).release()
        await one.close()

    run(check)


class SlowStore(SharedStore):
    """Is cancelled when it has taken the slot."""

    def __init__(self, valkey: ValkeyStore) -> None:
        super().__init__(valkey)
        self.taken = asyncio.Event()

    async def acquire(self, request: LimitedRequest) -> LimitDecision:
        verdict = await super().acquire(request)
        self.taken.set()
        await asyncio.sleep(60)
        return verdict


def test_cancelled_caller_holds_no_slot(valkey: Valkey) -> None:
    async def cancel() -> None:
        store = SlowStore(ValkeyStore(valkey.url))
        slow, quick = RateLimiter(store, pauses=()), limiter(valkey.url)
        begun = asyncio.Event()

        async def in_flight() -> None:
            async with await quick.admit(key(slots=9)):
                begun.set()
                await asyncio.sleep(60)

        tasks = [asyncio.create_task(slow.admit(key(slots=9))), asyncio.create_task(in_flight())]
        await store.taken.wait()
        await begun.wait()
        assert valkey.client().zcard("mens:limits:{key-a}:slots") == 2
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await slow.close()  # waits for the releases in flight
        await quick.close()

    run(cancel)
    assert valkey.client().zcard("mens:limits:{key-a}:slots") == 0
