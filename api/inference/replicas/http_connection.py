"""One kept-alive HTTP/1.1 connection to a replica: sends a request, reads the response as it arrives.

llhttp parses, as in uvicorn. Features that replicas do not need are left out: proxies, cookies, redirects, compression.
"""

from __future__ import annotations

import asyncio
import time
from http import HTTPStatus
from typing import cast

import httptools

MAX_BUFFERED_BYTES = 1 << 18
"""Largest unread part of a response; beyond that the replica has to wait."""
# A replica that sends headers without an end must not fill the API's memory.
MAX_HEAD_BYTES = 1 << 16
NO_BODY = frozenset({204, 304})


class BadResponse(Exception):
    """The received data is not HTTP, or not the response to the request."""


class HttpConnection(asyncio.Protocol):
    """A connection that carries one exchange after the other, in one event loop.

        connection.send(request)
        await connection.head()          # then status and headers are available
        while chunk := await connection.read_some(): ...
        connection.is_reusable()         # for the next exchange

    It raises `BadResponse`, or an `OSError`: the connection broke (`ConnectionError`), or nothing arrived for too long
    (`TimeoutError`).

    Attributes:
        status: status of the response.
        headers: headers of the response, names in lower case; the last of repeated ones.
        has_received: whether a byte has arrived since the request was sent.

    Args:
        silence_seconds: longest silence while data is awaited.
    """

    def __init__(self, silence_seconds: float) -> None:
        self._loop = asyncio.get_running_loop()
        self._silence_seconds = silence_seconds
        self._parser = httptools.HttpResponseParser(self)
        self._transport: asyncio.Transport
        self._waiter: asyncio.Future[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._deadline = 0.0
        self._failure: Exception | None = None
        self._idle_since = 0.0
        self._broken = self.has_received = False
        self._begin()
        self._complete = True  # no exchange is in flight

    def _begin(self) -> None:
        self.status = 0
        self.headers: dict[str, str] = {}
        self._chunks: list[bytes] = []
        self._buffered = self._head_bytes = 0
        self._has_head = self._complete = self._is_paused = self._ends_with_close = False

    def send(self, request: bytes) -> None:
        """Start an exchange.

        Args:
            request: head and body.
        """
        self._begin()
        self.has_received = False
        self._transport.write(request)

    async def head(self) -> None:
        """Wait for the response's head."""
        while not self._has_head:
            await self._more()

    async def read_some(self) -> bytes:
        """Return the received bytes of the body, at least one; empty at its end."""
        while not self._chunks and not self._complete:
            await self._more()
        chunks, self._chunks, self._buffered = self._chunks, [], 0
        if self._is_paused:
            self._is_paused = False
            self._transport.resume_reading()
        return chunks[0] if len(chunks) == 1 else b"".join(chunks)

    def is_reusable(self) -> bool:
        """Return whether the exchange has ended and another can begin.

        False after a 5xx status: uvicorn closes the connection after an error that vLLM did not catch, without
        announcing it.
        """
        if self.status >= HTTPStatus.INTERNAL_SERVER_ERROR:
            return False
        is_empty = not self._is_paused and not self._transport.get_write_buffer_size()  # in both directions
        return self._complete and is_empty and not self._broken and not self._transport.is_closing()

    def idle_seconds(self) -> float:
        """Seconds since the last exchange ended."""
        return time.monotonic() - self._idle_since

    def close(self) -> None:
        """Close at once, even in the middle of an exchange: a replica whose caller disconnects stops generating."""
        self._transport.abort()

    async def _more(self) -> None:
        """Wait until data has arrived."""
        if self._failure is not None:
            raise self._failure
        self._waiter = self._loop.create_future()
        self._deadline = self._loop.time() + self._silence_seconds
        if self._timer is None:
            self._set_timer()
        try:
            await self._waiter
        finally:
            self._waiter = None

    def _set_timer(self) -> None:
        # One timer for many waits: each piece of a stream is waited for, and most waits end long before the timer is due.
        self._timer = self._loop.call_at(self._deadline, self._check_deadline)

    def _check_deadline(self) -> None:
        self._timer = None
        if self._waiter is None:
            return
        if self._loop.time() < self._deadline:
            self._set_timer()
        else:
            self._fail(TimeoutError(f"no data received for {self._silence_seconds:g} s"))

    def _fail(self, failure: Exception) -> None:
        self._failure = self._failure or failure
        self._broken = True
        self._transport.abort()
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_exception(self._failure)

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    # Callbacks for asyncio.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's has the methods, but is not a subclass
        # Without this uvloop keeps a request until the loop's next turn.
        self._transport.set_write_buffer_limits(0)

    def data_received(self, data: bytes) -> None:
        self.has_received = True
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            return self._fail(BadResponse(f"the response is not HTTP: {error}"))
        if not self._has_head:
            # Counted here, because the parser does not report an unfinished line.
            self._head_bytes += len(data)
            if self._head_bytes > MAX_HEAD_BYTES:
                return self._fail(BadResponse("the response's head is too large"))
        if self._buffered > MAX_BUFFERED_BYTES and not self._is_paused:
            self._is_paused = True
            self._transport.pause_reading()
        if self._chunks or self._complete or self._has_head:
            self._wake()
        return None

    def connection_lost(self, error: Exception | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._has_head and self._ends_with_close and error is None:
            self._complete = True
            self._wake()
        self._fail(error if isinstance(error, OSError) else ConnectionError("the replica closed the connection"))

    # Callbacks for httptools.

    def on_message_begin(self) -> None:
        if self._complete:
            # It is not read; the response before it stays complete.
            raise BadResponse("a response without a request")

    def on_header(self, name: bytes, value: bytes) -> None:
        if len(value) > MAX_HEAD_BYTES:
            raise BadResponse("the response's head is too large")
        if not self._has_head:  # trailers, after the chunks, are not used
            self.headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        self.status = self._parser.get_status_code()
        self._has_head = self.status >= 200
        has_length = "content-length" in self.headers or "chunked" in self.headers.get("transfer-encoding", "").lower()
        self._ends_with_close = not has_length and self.status not in NO_BODY

    def on_body(self, body: bytes) -> None:
        self._chunks.append(body)
        self._buffered += len(body)

    def on_message_complete(self) -> None:
        if not self._has_head:  # an interim response, such as 100 Continue
            return self._begin()
        self._complete, self._idle_since = True, time.monotonic()
        self._broken = self._broken or not self._parser.should_keep_alive()
        return None
