"""Long reads: one at a time for each tenant, concurrently for different tenants, and an error for a caller that waits
too long.
"""

from __future__ import annotations

import asyncio
import threading

import anyio
import pytest

from api.data_view import tenant_turns
from api.data_view.tenant_turns import READINGS_AT_ONCE, TenantTurns
from shared.errors import Code, TooMany


class Readings:
    """Readings that last until they are let go."""

    def __init__(self) -> None:
        self.running, self.most, self.gate = 0, 0, threading.Event()

    def read(self) -> str:
        self.running += 1
        self.most = max(self.most, self.running)
        assert self.gate.wait(10)
        self.running -= 1
        return "read"


async def begun(readings: Readings, number: int) -> None:
    for _ in range(1000):
        if readings.running == number:
            return
        await anyio.sleep(0.01)
    raise AssertionError


def test_tenant_reads_once_at_a_time_and_delays_no_other() -> None:
    turns, readings, answers = TenantTurns("rows of files"), Readings(), list[str]()

    async def read(tenant: str) -> None:
        answers.append(await turns.run(tenant, readings.read))

    async def test() -> None:
        async with anyio.create_task_group() as tasks:
            for _ in range(3):
                tasks.start_soon(read, "acme")
            await begun(readings, 1)
            await anyio.sleep(0.1)
            assert readings.running == 1
            tasks.start_soon(read, "other")
            await begun(readings, 2)
            tasks.start_soon(read, "third")
            await anyio.sleep(0.1)
            readings.gate.set()

    asyncio.run(test())
    assert (answers, readings.most) == (["read"] * 5, READINGS_AT_ONCE)


def test_reading_that_waits_too_long_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tenant_turns, "WAIT_SECONDS", 0.1)
    turns, readings = TenantTurns("rows of files"), Readings()

    async def test() -> None:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(turns.run, "acme", readings.read)
            await begun(readings, 1)
            with pytest.raises(TooMany, match="Other rows of files") as refused:
                await turns.run("acme", readings.read)
            assert refused.value.code is Code.CONCURRENCY_LIMITED
            readings.gate.set()

    asyncio.run(test())
