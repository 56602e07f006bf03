"""One connection to a replica: responses are parsed alike however the bytes are split, and malformed ones are errors."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from api.inference.replicas.http_connection import MAX_BUFFERED_BYTES, MAX_HEAD_BYTES, BadResponse, HttpConnection

STREAM = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
WHOLE = b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\n"


class FakeTransport(asyncio.Transport):
    """A transport that records what is done with it."""

    def __init__(self) -> None:
        super().__init__()
        self.sent = b""
        self.aborted = self.paused = False
        self.unsent = 0

    def write(self, data: Any) -> None:
        self.sent += data

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def get_write_buffer_size(self) -> int:
        return self.unsent

    def abort(self) -> None:
        self.aborted = True

    def is_closing(self) -> bool:
        return self.aborted

    def pause_reading(self) -> None:
        self.paused = True

    def resume_reading(self) -> None:
        self.paused = False


def connected(silence_seconds: float = 5) -> tuple[HttpConnection, FakeTransport]:
    """A connection that has sent a request."""
    connection, transport = HttpConnection(silence_seconds), FakeTransport()
    connection.connection_made(transport)
    connection.send(b"POST / HTTP/1.1\r\n\r\n")
    return connection, transport


async def read(connection: HttpConnection) -> bytes:
    await connection.head()
    body = b""
    while chunk := await connection.read_some():
        body += chunk
    return body


def run(work: Coroutine[Any, Any, Any]) -> Any:
    return asyncio.run(work)


def chunked(pieces: list[bytes]) -> bytes:
    return b"".join(b"%x\r\n%s\r\n" % (len(piece), piece) for piece in pieces) + b"0\r\n\r\n"


@given(st.lists(st.binary(min_size=1, max_size=40), max_size=6), st.lists(st.integers(0, 400), max_size=8))
def test_response_is_the_same_wherever_it_is_cut(pieces: list[bytes], cuts: list[int]) -> None:
    raw = b"HTTP/1.1 100 Continue\r\n\r\n" + STREAM + chunked(pieces)
    ends = sorted({0, len(raw), *(cut for cut in cuts if cut < len(raw))})

    async def test() -> None:
        connection, _ = connected()
        reading = asyncio.create_task(read(connection))
        for start, end in pairwise(ends):
            await asyncio.sleep(0)
            connection.data_received(raw[start:end])
        assert await reading == b"".join(pieces)
        assert (connection.status, connection.headers["content-type"]) == (200, "text/event-stream")
        assert connection.is_reusable()

    run(test())


def test_connection_is_not_reusable_after_a_server_error() -> None:
    """uvicorn closes it after some of them, and does not say so."""

    async def test() -> None:
        connection, _ = connected()
        connection.data_received(b"HTTP/1.1 500 No\r\nContent-Length: 0\r\n\r\n")
        assert await read(connection) == b""
        assert not connection.is_reusable()

    run(test())


@pytest.mark.parametrize(
    ("raw", "status", "body"),
    [
        (WHOLE + b"12345", 200, b"12345"),
        (b"HTTP/1.1 404 No\r\nContent-Length: 0\r\n\r\n", 404, b""),
        (b"HTTP/1.1 204 Nothing\r\n\r\n", 204, b""),
    ],
)
def test_connection_is_reusable_after_a_whole_response(raw: bytes, status: int, body: bytes) -> None:
    async def test() -> None:
        connection, transport = connected()
        for _ in range(2):
            connection.send(b"")
            connection.data_received(raw)
            assert (await read(connection), connection.status) == (body, status)
            assert connection.is_reusable()
        assert not transport.aborted

    run(test())


@pytest.mark.parametrize(
    "raw",
    [
        WHOLE + b"12345" + WHOLE + b"extra",
        WHOLE + b"12345HTTP/1.1 100 Continue\r\n\r\n",
        WHOLE + b"12345 nonsense",
        WHOLE.replace(b"content-length", b"connection: close\r\ncontent-length") + b"12345",
        WHOLE.replace(b"1.1", b"1.0") + b"12345",
    ],
)
def test_connection_is_not_reusable_after_extra_bytes_or_close(raw: bytes) -> None:
    async def test() -> None:
        connection, _ = connected()
        connection.data_received(raw)
        assert (await read(connection), connection.status) == (b"12345", 200)
        assert not connection.is_reusable()

    run(test())


def test_response_without_a_length_ends_with_the_connection() -> None:
    async def test() -> None:
        connection, _ = connected()
        connection.data_received(b"HTTP/1.1 200 OK\r\n\r\nall of it")
        connection.connection_lost(None)
        assert await read(connection) == b"all of it"
        assert not connection.is_reusable()

    run(test())


@pytest.mark.parametrize(
    "raw",
    [b"", STREAM, STREAM + b"3\r\none\r\n", WHOLE + b"123", STREAM.replace(b": chunked", b": Chunked") + b"5\r\nhel"],
)
@pytest.mark.parametrize("error", [None, ConnectionResetError("reset")])
def test_connection_lost_before_the_end_is_an_error(raw: bytes, error: Exception | None) -> None:
    async def test() -> None:
        connection, _ = connected()
        reading = asyncio.create_task(read(connection))
        if raw:
            connection.data_received(raw)
        await asyncio.sleep(0)
        connection.connection_lost(error)
        with pytest.raises(ConnectionError, match="reset" if error else "closed"):
            await reading
        assert not connection.is_reusable()

    run(test())


@pytest.mark.parametrize(
    "raw",
    [
        b"SSH-2.0-OpenSSH\r\n",
        b"HTTP/1.1 200 OK\r\nbroken\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nx: " + b"y" * (MAX_HEAD_BYTES + 1) + b"\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nx: " + b"y" * (MAX_HEAD_BYTES + 1),
        b"HTTP/1.1 101 Other\r\nupgrade: websocket\r\nconnection: upgrade\r\n\r\n",
        STREAM + b"zz\r\n",
    ],
)
def test_bytes_that_are_not_a_response_are_an_error(raw: bytes) -> None:
    async def test() -> None:
        connection, transport = connected()
        connection.data_received(raw)
        with pytest.raises(BadResponse):
            await read(connection)
        assert transport.aborted

    run(test())


@pytest.mark.parametrize("raw", [b"", STREAM, STREAM + b"3\r\none\r\n"])
def test_silence_is_a_timeout(raw: bytes) -> None:
    async def test() -> None:
        connection, transport = connected(silence_seconds=0.2)
        if raw:
            connection.data_received(raw)
        with pytest.raises(TimeoutError, match=r"no data received for 0\.2 s"):
            await read(connection)
        assert transport.aborted

    run(test())


class LoopClock:
    """The time of the running event loop, which the test moves."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        monkeypatch.setattr(asyncio.get_running_loop(), "time", lambda: self.now)

    def receive_after(self, seconds: float, connection: HttpConnection, data: bytes) -> None:
        """Let the connection receive data this many seconds after it begins to wait for them."""

        def receive() -> None:
            self.now += seconds
            connection.data_received(data)

        asyncio.get_running_loop().call_soon(receive)

    async def move(self, seconds: float) -> None:
        """Let time pass, and what is due then happen."""
        self.now += seconds
        for _ in range(5):
            await asyncio.sleep(0)


def test_silence_is_counted_from_the_last_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test() -> None:
        clock = LoopClock(monkeypatch)
        connection, _ = connected(silence_seconds=0.1)
        clock.receive_after(0.07, connection, STREAM)
        await connection.head()
        reading = asyncio.create_task(connection.read_some())
        await clock.move(0)
        await clock.move(0.09)
        assert not reading.done()
        await clock.move(0.02)
        with pytest.raises(TimeoutError):
            await reading

    run(test())


def test_silence_between_two_exchanges_is_not_a_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test() -> None:
        clock = LoopClock(monkeypatch)
        connection, transport = connected(silence_seconds=0.2)
        clock.receive_after(0, connection, WHOLE + b"12345")
        assert await read(connection) == b"12345"
        await clock.move(0.3)
        assert connection.is_reusable()
        connection.send(b"")
        clock.receive_after(0.1, connection, WHOLE + b"67890")
        assert await read(connection) == b"67890"
        assert not transport.aborted

    run(test())


def test_stream_that_continues_is_never_a_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test() -> None:
        clock = LoopClock(monkeypatch)
        connection, _ = connected(silence_seconds=0.05)
        connection.data_received(STREAM)
        await connection.head()
        for _ in range(10):
            clock.receive_after(0.04, connection, b"3\r\none\r\n")
            assert await connection.read_some() == b"one"
            await clock.move(0)

    run(test())


def test_unread_response_pauses_reading() -> None:
    async def test() -> None:
        connection, transport = connected()
        big = b"x" * MAX_BUFFERED_BYTES
        connection.data_received(STREAM + b"%x\r\n%s\r\n" % (len(big), big))
        assert not transport.paused
        connection.data_received(b"1\r\ny\r\n")
        assert transport.paused
        await connection.head()
        assert await connection.read_some() == big + b"y"
        assert not transport.paused

    run(test())


def test_connection_is_not_reusable_while_bytes_are_in_flight() -> None:
    """A response that is not read leaves the connection paused, and a replica may respond before it has the whole request."""

    async def test() -> None:
        connection, transport = connected()
        size = MAX_BUFFERED_BYTES + 1
        transport.unsent = 1
        connection.data_received(STREAM + chunked([b"x" * size]))
        assert transport.paused
        assert not connection.is_reusable()
        assert len(await read(connection)) == size
        assert not connection.is_reusable()
        transport.unsent = 0
        assert connection.is_reusable()

    run(test())


def test_trailers_change_no_header() -> None:
    async def test() -> None:
        connection, _ = connected()
        connection.data_received(STREAM + b"0\r\ncontent-type: other\r\n\r\n")
        assert await read(connection) == b""
        assert connection.headers["content-type"] == "text/event-stream"
        assert connection.is_reusable()

    run(test())
