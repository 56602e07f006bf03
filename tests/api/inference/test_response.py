"""An answer on its way: passed on piece by piece, accounted for once, closed however it ends."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from typing import Any, cast

import pytest
from starlette.types import Message

from api.answer import Answer, PassedOn
from api.limits import Admission
from api.presence import Presence
from api.replica_client import Begun, BrokenOff
from api.taps import Tap
from shared.usage import Amount

PIECES = [b"one", b"two", b"three"]


class Trace(list[str]):
    """What happened, in order."""


class Upper(Tap):
    """Holds the second piece back until the end."""

    def __init__(self, trace: Trace) -> None:
        super().__init__(lambda _: trace.append("counted"))
        self._held = b""

    def __call__(self, chunk: bytes) -> bytes:
        if chunk == PIECES[1]:
            self._held = chunk
            return b""
        return chunk.upper()

    def end(self) -> bytes:
        return self._held

    def amount(self) -> Amount:
        return Amount(requests=1)


class Source:
    """A replica's answer."""

    status = 200
    headers = {"content-type": "text/event-stream", "x-request-id": "r"}

    def __init__(self, trace: Trace, ends: Callable[[], Any] = lambda: None) -> None:
        self._trace, self._ends = trace, ends
        self._pieces = iter(PIECES)

    async def read_some(self) -> bytes:
        if piece := next(self._pieces, None):
            return piece
        if (waits := self._ends()) is not None:
            await waits
        return b""

    def close(self) -> None:
        self._trace.append("closed")


async def stay() -> Message:
    await asyncio.Event().wait()
    raise AssertionError


def answer(trace: Trace, ends: Callable[[], Any] = lambda: None, receive: Callable[[], Any] = stay) -> Answer:
    async def left() -> None:
        trace.append("left")

    async def copied() -> None:
        trace.append("copied")

    admission = Admission({"x-ratelimit-limit-requests": "5"}, left)
    source = cast("Begun", Source(trace, ends))
    return Answer(source, Upper(trace), admission, Presence(receive), adapter="a@1", then=copied)


def sent(response: PassedOn, trace: Trace) -> list[Message]:
    messages: list[Message] = []

    async def send(message: Message) -> None:
        messages.append(message)
        trace.append((message.get("body") or message["type"].encode()).decode())

    asyncio.run(response({"type": "http"}, stay, send))
    return messages


def test_the_pieces_and_then_the_accounts() -> None:
    trace = Trace()
    start, *_, last = sent(PassedOn(answer(trace)), trace)
    assert trace == [
        "http.response.start", "ONE", "THREE", "two", "left", "copied", "http.response.body", "closed", "counted",
    ]  # fmt: skip
    assert dict(start["headers"]) == {
        b"content-type": b"text/event-stream",
        b"x-request-id": b"r",
        b"x-ratelimit-limit-requests": b"5",
        b"x-mens-adapter": b"a@1",
    }
    assert not last.get("more_body")


def test_another_shape() -> None:
    trace = Trace()
    made = answer(trace)

    async def lines() -> AsyncIterator[bytes]:
        async for piece in made:
            yield piece + b"!"

    start, *_ = sent(PassedOn(made, lines(), {"content-type": "application/x-ndjson"}), trace)
    assert trace[1:4] == ["ONE!", "THREE!", "two!"]
    assert trace[-2:] == ["closed", "counted"]
    assert dict(start["headers"])[b"content-type"] == b"application/x-ndjson"


def breaks() -> None:
    raise BrokenOff("gone")


def test_the_last_event_of_a_stream_that_breaks_off_is_the_error() -> None:
    trace = Trace()
    *_, last = sent(PassedOn(answer(trace, breaks)), trace)
    assert trace[:3] == ["http.response.start", "ONE", "THREE"]
    assert trace[3:-1] == ["closed", "counted", "left"], "no copy, and the next request finds its slot"
    before, event, after = last["body"].split(b"\n\n")
    assert (before, after, last.get("more_body", False)) == (b"", b"", False), "what was under way is ended"
    error = json.loads(event.removeprefix(b"data: "))["error"]
    assert (error["code"], error["type"], error["mens"]["retryable"]) == ("SERVING_FAILED", "server_error", True)


def test_an_answer_that_breaks_off_is_never_ended_for_the_caller() -> None:
    trace = Trace()
    sent(PassedOn(answer(trace, breaks), headers={"content-type": "application/json"}), trace)
    assert trace == ["http.response.start", "ONE", "THREE", "closed", "counted", "left"], "no end, no copy"


def test_a_caller_who_goes_ends_it() -> None:
    trace, may_go = Trace(), asyncio.Event()

    async def goes() -> Message:
        await may_go.wait()
        return {"type": "http.disconnect"}

    def hangs() -> Any:
        may_go.set()
        return asyncio.Event().wait()

    sent(PassedOn(answer(trace, hangs, goes)), trace)
    assert trace == ["http.response.start", "ONE", "THREE", "closed", "counted", "left"]


def test_an_answer_that_nobody_reads_is_closed_once() -> None:
    trace = Trace()
    unread = answer(trace)
    asyncio.run(unread.aclose())
    assert trace == ["closed", "counted", "left"]


def test_a_count_that_fails_gives_the_slot_back_all_the_same() -> None:
    trace = Trace()
    unread = answer(trace)

    def fails() -> None:
        raise ValueError("a bug")

    unread._tap.close = fails  # type: ignore[method-assign]
    with pytest.raises(ValueError, match="a bug"):
        asyncio.run(unread.aclose())
    assert trace == ["closed", "left"]
