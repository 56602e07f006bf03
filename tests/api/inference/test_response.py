"""A proxied response is forwarded piece by piece, counted once, and closed however it ends."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from typing import Any, cast

import pytest
from starlette.types import Message

from api.inference.disconnect import DisconnectWatcher
from api.inference.rate_limits.limiter import Admission
from api.inference.replicas.client import ReplicaDisconnected, ReplicaResponse
from api.inference.response import ProxiedResponse
from api.inference.usage.taps import Tap
from shared.database.usage import Amount

PIECES = [b"one", b"two", b"three"]


class Trace(list[str]):
    """What happened, in order."""


class UpperCaseTap(Tap):
    """A tap that returns upper case, and holds the second piece back until the end."""

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


class FakeUpstream:
    """A replica's response."""

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


def proxied(trace: Trace, ends: Callable[[], Any] = lambda: None, receive: Callable[[], Any] = stay) -> ProxiedResponse:
    async def released() -> None:
        trace.append("released")

    async def copied() -> None:
        trace.append("copied")

    admission = Admission(release=released)
    upstream = cast("ReplicaResponse", FakeUpstream(trace, ends))
    return ProxiedResponse(
        upstream, UpperCaseTap(trace), admission, DisconnectWatcher(receive), adapter="a@1", on_complete=copied
    )


def sent(response: ProxiedResponse, trace: Trace) -> list[Message]:
    messages: list[Message] = []

    async def send(message: Message) -> None:
        messages.append(message)
        trace.append((message.get("body") or message["type"].encode()).decode())

    asyncio.run(response({"type": "http"}, stay, send))
    return messages


def test_pieces_are_sent_before_release_copy_and_count() -> None:
    trace = Trace()
    start, *_, last = sent(proxied(trace), trace)
    assert trace == [
        "http.response.start", "ONE", "THREE", "two", "released", "copied", "http.response.body", "closed", "counted",
    ]  # fmt: skip
    assert dict(start["headers"]) == {
        b"content-type": b"text/event-stream",
        b"x-request-id": b"r",
        b"x-mens-adapter": b"a@1",
    }
    assert not last.get("more_body")


def test_converted_response_sends_the_other_bytes_and_headers() -> None:
    trace = Trace()

    made = proxied(trace)

    async def lines() -> AsyncIterator[bytes]:
        async for piece in made:
            yield piece + b"!"

    start, *_ = sent(made.converted(lines(), {"content-type": "application/x-ndjson"}), trace)
    assert trace[1:4] == ["ONE!", "THREE!", "two!"]
    assert trace[-2:] == ["closed", "counted"]
    assert dict(start["headers"])[b"content-type"] == b"application/x-ndjson"


def breaks() -> None:
    raise ReplicaDisconnected("gone")


def test_interrupted_stream_ends_with_an_error_event() -> None:
    trace = Trace()
    *_, last = sent(proxied(trace, breaks), trace)
    assert trace[:3] == ["http.response.start", "ONE", "THREE"]
    assert trace[3:-1] == ["closed", "counted", "released"], "no copy is sent, and the next request finds its slot"
    before, event, after = last["body"].split(b"\n\n")
    assert (before, after, last.get("more_body", False)) == (b"", b"", False), "the event that was cut off is ended"
    error = json.loads(event.removeprefix(b"data: "))["error"]
    assert (error["code"], error["type"], error["mens"]["retryable"]) == ("SERVING_FAILED", "server_error", True)


def test_interrupted_body_is_never_ended_for_the_caller() -> None:
    trace = Trace()

    made = proxied(trace, breaks)

    made.passed_headers["content-type"] = "application/json"
    sent(made, trace)
    assert trace == ["http.response.start", "ONE", "THREE", "closed", "counted", "released"], "no end, no copy"


def test_disconnect_closes_and_counts_the_response() -> None:
    trace, may_disconnect = Trace(), asyncio.Event()

    async def disconnects() -> Message:
        await may_disconnect.wait()
        return {"type": "http.disconnect"}

    def hangs() -> Any:
        may_disconnect.set()
        return asyncio.Event().wait()

    sent(proxied(trace, hangs, disconnects), trace)
    assert trace == ["http.response.start", "ONE", "THREE", "closed", "counted", "released"]


def test_unread_response_is_closed_once() -> None:
    trace = Trace()
    unread = proxied(trace)
    asyncio.run(unread.aclose())
    assert trace == ["closed", "counted", "released"]


def test_slot_is_released_when_counting_fails() -> None:
    trace = Trace()
    unread = proxied(trace)

    def fails() -> None:
        raise ValueError("a bug")

    unread._tap.close = fails
    with pytest.raises(ValueError, match="a bug"):
        asyncio.run(unread.aclose())
    assert trace == ["closed", "released"]
