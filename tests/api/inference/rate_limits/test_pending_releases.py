"""Pending releases are retried until they succeed, but not for longer than the slots are held, and their number is
limited.

For a real Valkey, see tests/api/inference/rate_limits/test_without_valkey.py.
"""

from __future__ import annotations

import asyncio

import pytest
from redis.exceptions import TimeoutError as ValkeyTimeoutError

import api.inference.rate_limits.pending_releases
from api.inference.rate_limits.pending_releases import PendingReleases
from tests.support.waiting import eventually_true


class Broker:
    """Releases slots, unless it is away."""

    def __init__(self) -> None:
        self.away = True
        self.tried: list[str] = []
        self.released: list[str] = []

    async def release(self, _key_id: str, slot: str) -> None:
        self.tried.append(slot)
        if self.away:
            raise ValkeyTimeoutError
        self.released.append(slot)


def test_release_is_tried_until_it_succeeds() -> None:
    async def check() -> None:
        broker = Broker()
        pending = PendingReleases(broker.release, hold=60, retry=0.01)
        for slot in ("a", "b"):
            pending.add("key", slot)
        await eventually_true(lambda: len(broker.tried) > 2)
        assert set(broker.tried) == {"a"}, "while the first release fails, the rest is not tried"
        broker.away = False
        await eventually_true(lambda: broker.released == ["a", "b"])
        await eventually_true(lambda: len(asyncio.all_tasks()) == 1)
        pending.add("key", "c")  # the task that released the others has ended
        await eventually_true(lambda: broker.released == ["a", "b", "c"])

    asyncio.run(check())


def test_release_of_a_slot_that_has_expired_is_dropped() -> None:
    async def check() -> None:
        broker = Broker()
        pending = PendingReleases(broker.release, hold=0.03, retry=0.01)
        pending.add("key", "a")
        await eventually_true(lambda: len(asyncio.all_tasks()) == 1, what="nothing is pending")
        tries = len(broker.tried)
        await asyncio.sleep(0.05)
        assert (broker.released, len(broker.tried)) == ([], tries)

    asyncio.run(check())


def test_removed_slot_is_not_released() -> None:
    async def check() -> None:
        broker = Broker()
        pending = PendingReleases(broker.release, hold=60, retry=0.01)
        for slot in ("a", "b"):
            pending.add("key", slot)
        pending.remove("key", "a")
        pending.remove("key", "never added")
        broker.away = False
        await eventually_true(lambda: len(asyncio.all_tasks()) == 1, what="nothing is pending")
        assert broker.released == ["b"]

    asyncio.run(check())


def test_releases_over_the_maximum_are_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api.inference.rate_limits.pending_releases, "MAX_PENDING", 2)

    async def check() -> None:
        broker = Broker()
        pending = PendingReleases(broker.release, hold=60, retry=0.01)
        for slot in ("a", "b", "c"):
            pending.add("key", slot)
        broker.away = False
        await eventually_true(lambda: len(asyncio.all_tasks()) == 1, what="nothing is pending")
        assert broker.released == ["a", "b"]

    asyncio.run(check())
