"""The disconnect watcher: work is cancelled when its caller disconnects, and only then."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from starlette.types import Message

from api.inference.disconnect import DisconnectWatcher


class FakeCaller:
    """The ``receive`` of a caller who disconnects once ``disconnects`` is set; its body is read already."""

    def __init__(self) -> None:
        self.disconnects = asyncio.Event()

    async def __call__(self) -> Message:
        await self.disconnects.wait()
        return {"type": "http.disconnect"}


async def work(seconds: float = 0) -> int:
    await asyncio.sleep(seconds)
    return 7


def test_work_ends_by_itself_while_the_caller_stays() -> None:
    async def fails() -> int:
        await asyncio.sleep(0)
        raise TimeoutError("its own")

    async def test() -> None:
        disconnect = DisconnectWatcher(FakeCaller())
        assert await disconnect.run_until_disconnect(work()) == 7
        with pytest.raises(TimeoutError, match="its own"):
            await disconnect.run_until_disconnect(fails())

    asyncio.run(test())


def test_disconnect_cancels_the_work_which_may_clean_up() -> None:
    trace: list[str] = []
    messages = iter(["http.request", "http.disconnect"])

    async def receive() -> Message:
        return {"type": next(messages)}

    async def waits() -> int:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            trace.append("cleaned up")
        return 7

    async def test() -> None:
        assert await DisconnectWatcher(receive).run_until_disconnect(waits()) is None
        await asyncio.sleep(0)  # nothing is left that would cancel this

    asyncio.run(test())
    assert trace == ["cleaned up"]


def test_disconnect_between_two_works_cancels_the_second() -> None:
    async def test() -> None:
        caller = FakeCaller()
        disconnect = DisconnectWatcher(caller)
        assert await disconnect.run_until_disconnect(work()) == 7
        caller.disconnects.set()
        await asyncio.sleep(0.01)
        assert await disconnect.run_until_disconnect(work(30)) is None

    asyncio.run(test())


def test_stopped_watcher_leaves_no_task() -> None:
    async def test() -> set[asyncio.Task[Any]]:
        disconnect = DisconnectWatcher(FakeCaller())
        await disconnect.run_until_disconnect(work())
        disconnect.stop()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        return asyncio.all_tasks() - {asyncio.current_task()}

    assert not asyncio.run(test())


def test_cancellation_from_elsewhere_is_raised() -> None:
    async def test() -> None:
        task = asyncio.create_task(DisconnectWatcher(FakeCaller()).run_until_disconnect(work(30)))
        await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(test())


def test_cancellation_during_a_disconnect_is_raised() -> None:
    async def test() -> None:
        caller = FakeCaller()
        task = asyncio.create_task(DisconnectWatcher(caller).run_until_disconnect(work(30)))
        await asyncio.sleep(0.01)
        caller.disconnects.set()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(test())


def test_work_that_ignores_its_cancellation_returns_its_result() -> None:
    async def stubborn(caller: FakeCaller) -> int:
        caller.disconnects.set()
        try:
            await asyncio.sleep(30)
        except asyncio.CancelledError:
            return 7
        return 0

    async def test() -> None:
        caller, task = FakeCaller(), asyncio.current_task()
        assert task is not None
        assert await DisconnectWatcher(caller).run_until_disconnect(stubborn(caller)) == 7
        assert task.cancelling() == 0
        async with asyncio.timeout(5):  # would count a cancellation that is left
            await asyncio.sleep(0)

    asyncio.run(test())


def test_disconnect_at_the_end_leaves_no_cancellation_behind() -> None:
    """Whichever ends first, the work or the watch, the task that waited is not cancelled later."""

    async def one(steps: int) -> int | None:
        caller = FakeCaller()
        disconnect = DisconnectWatcher(caller)

        async def finishes() -> int:
            for step in range(4):
                if step == steps:
                    caller.disconnects.set()
                await asyncio.sleep(0)
            return 7

        result = await disconnect.run_until_disconnect(finishes())
        for _ in range(5):
            await asyncio.sleep(0)
        return result

    assert {asyncio.run(one(steps)) for steps in range(5)} == {7, None}
