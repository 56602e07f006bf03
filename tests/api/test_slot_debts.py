"""Slots that are owed: tried again until they are taken, not for longer than they are held, and not without end.

Against a real Valkey: tests/api/test_limits.py.
"""

from __future__ import annotations

import asyncio

import pytest
from redis.exceptions import TimeoutError as ValkeyTimeoutError

import api.slot_debts
from api.slot_debts import SlotDebts


class Broker:
    """Takes slots back, unless it is away."""

    def __init__(self) -> None:
        self.away = True
        self.asked: list[str] = []
        self.has: list[str] = []

    async def give_back(self, _key_id: str, slot: str) -> None:
        self.asked.append(slot)
        if self.away:
            raise ValkeyTimeoutError
        self.has.append(slot)


def test_tried_again_until_it_is_taken() -> None:
    async def owe() -> None:
        broker = Broker()
        debts = SlotDebts(broker.give_back, hold=60, retry=0.01)
        for slot in ("a", "b"):
            debts.owe("key", slot)
        await asyncio.sleep(0.05)
        assert set(broker.asked) == {"a"}, "one that does not answer is not asked for the rest"
        broker.away = False
        await asyncio.sleep(0.05)
        assert broker.has == ["a", "b"]
        debts.owe("key", "c")  # the task that paid the others has ended
        await asyncio.sleep(0.05)
        assert broker.has == ["a", "b", "c"]

    asyncio.run(owe())


def test_a_slot_that_is_free_by_itself_is_owed_no_more() -> None:
    async def owe() -> None:
        broker = Broker()
        debts = SlotDebts(broker.give_back, hold=0.03, retry=0.01)
        debts.owe("key", "a")
        await asyncio.sleep(0.1)
        tries = len(broker.asked)
        await asyncio.sleep(0.05)
        assert (broker.has, len(broker.asked)) == ([], tries)
        assert len(asyncio.all_tasks()) == 1

    asyncio.run(owe())


def test_a_slot_that_was_taken_again_is_left_to_who_has_it() -> None:
    async def owe() -> None:
        broker = Broker()
        debts = SlotDebts(broker.give_back, hold=60, retry=0.01)
        for slot in ("a", "b"):
            debts.owe("key", slot)
        debts.settle("a")
        debts.settle("never owed")
        broker.away = False
        await asyncio.sleep(0.05)
        assert broker.has == ["b"]

    asyncio.run(owe())


def test_no_more_than_so_many_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api.slot_debts, "MOST", 2)

    async def owe() -> None:
        broker = Broker()
        debts = SlotDebts(broker.give_back, hold=60, retry=0.01)
        for slot in ("a", "b", "c"):
            debts.owe("key", slot)
        broker.away = False
        await asyncio.sleep(0.05)
        assert broker.has == ["a", "b"]

    asyncio.run(owe())
