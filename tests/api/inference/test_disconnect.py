"""Work goes on while its caller stays, and ends when the caller goes."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from starlette.types import Message

from api.presence import Presence


class Caller:
    """Stays until told to go; what it has sent before is read already."""

    def __init__(self) -> None:
        self.goes = asyncio.Event()

    async def __call__(self) -> Message:
        await self.goes.wait()
        return {"type": "http.disconnect"}


async def work(seconds: float = 0) -> int:
    await asyncio.sleep(seconds)
    return 7


def test_work_is_done_while_the_caller_stays() -> None:
    async def fails() -> int:
        await asyncio.sleep(0)
        raise TimeoutError("its own")

    async def test() -> None:
        presence = Presence(Caller())
        assert await presence.unless_gone(work()) == 7
        with pytest.raises(TimeoutError, match="its own"):
            await presence.unless_gone(fails())

    asyncio.run(test())


def test_work_is_given_up_when_the_caller_goes_and_may_tidy_up_first() -> None:
    trace: list[str] = []
    messages = iter(["http.request", "http.disconnect"])

    async def goes() -> Message:
        return {"type": next(messages)}

    async def waits() -> int:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            trace.append("tidied")
        return 7

    async def test() -> None:
        assert await Presence(goes).unless_gone(waits()) is None
        await asyncio.sleep(0)  # nothing is left that would cancel this

    asyncio.run(test())
    assert trace == ["tidied"]


def test_who_has_gone_between_two_works_gets_no_second_one() -> None:
    async def test() -> None:
        caller = Caller()
        presence = Presence(caller)
        assert await presence.unless_gone(work()) == 7
        caller.goes.set()
        await asyncio.sleep(0.01)
        assert await presence.unless_gone(work(30)) is None

    asyncio.run(test())


def test_nothing_is_left_of_one_that_is_forgotten() -> None:
    async def test() -> set[asyncio.Task[Any]]:
        presence = Presence(Caller())
        await presence.unless_gone(work())
        presence.forget()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        return asyncio.all_tasks() - {asyncio.current_task()}

    assert not asyncio.run(test())


def test_who_is_cancelled_otherwise_is_cancelled() -> None:
    async def test() -> None:
        task = asyncio.create_task(Presence(Caller()).unless_gone(work(30)))
        await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(test())


def test_who_is_cancelled_while_the_caller_goes_is_cancelled() -> None:
    async def test() -> None:
        caller = Caller()
        task = asyncio.create_task(Presence(caller).unless_gone(work(30)))
        await asyncio.sleep(0.01)
        caller.goes.set()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(test())


def test_work_that_heeds_no_cancellation_is_let_finish_and_leaves_none_behind() -> None:
    async def stubborn(caller: Caller) -> int:
        caller.goes.set()
        try:
            await asyncio.sleep(30)
        except asyncio.CancelledError:
            return 7
        return 0

    async def test() -> None:
        caller, task = Caller(), asyncio.current_task()
        assert task is not None
        assert await Presence(caller).unless_gone(stubborn(caller)) == 7
        assert task.cancelling() == 0
        async with asyncio.timeout(5):  # counts cancellations
            await asyncio.sleep(0)

    asyncio.run(test())


def test_a_caller_who_goes_at_the_end_leaves_no_cancellation_behind() -> None:
    """Whatever the two do first, whoever waited goes on undisturbed."""

    async def one(steps: int) -> int | None:
        caller = Caller()
        presence = Presence(caller)

        async def finishes() -> int:
            for step in range(4):
                if step == steps:
                    caller.goes.set()
                await asyncio.sleep(0)
            return 7

        result = await presence.unless_gone(finishes())
        for _ in range(5):
            await asyncio.sleep(0)
        return result

    assert {asyncio.run(one(steps)) for steps in range(5)} == {7, None}
