"""A client's connection: uvicorn's HTTP protocol, with limits that apply before a request reaches the application, and
with responses that do not need the application.

uvicorn's own protocol does not limit the size of a request's head, the time for receiving it, or the bytes that a
client keeps sending after its response; and its limit on connections refuses every client while strangers hold idle
connections.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum, auto
from http import HTTPStatus
from itertools import chain
from typing import Any, cast

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from api.errors import error_response
from api.settings import ApiSettings
from shared.errors import Code, InvalidRequest, MensError, TooLarge, TooSlow, Unavailable

BODY_HEADERS = (b"content-length", b"transfer-encoding", b"expect", b"upgrade")
"""A request with one of these headers is left to the application."""
DRAIN_SECONDS = 10.0
"""How long a client may keep sending a request that was already answered. If a connection is closed with unread bytes,
the client's system discards the answer."""
MAX_PIPELINED = 16
"""Requests of one connection that may wait for the response to an earlier one."""

Headers = list[tuple[bytes, bytes]]
KnownResponse = Callable[[bytes, Headers], bytes | None]
"""Function that returns the status line and headers of a response without a body; None if the response is not known at
once. Its arguments are the URL as sent, and the request's headers with names in lower case.
"""


def no_known_response(_url: bytes, _headers: Headers) -> bytes | None:
    """Return None, for an application that answers every request itself."""
    return None


class Phase(Enum):
    """The part of a request that the client is sending."""

    NOTHING = auto()
    HEAD = auto()
    BODY = auto()


@dataclass
class Connections:
    """State shared by the connections of one server.

    Attributes:
        known_response: returns the response to a GET without a body; None lets the application answer.
        idle: connections without a request in progress, in the order in which they became idle.
        draining: connections that were answered and still send, in the order in which they were answered.
    """

    settings: ApiSettings
    known_response: KnownResponse = no_known_response
    idle: dict[ClientConnection, None] = field(default_factory=dict)
    draining: dict[ClientConnection, None] = field(default_factory=dict)

    def first_to_close(self) -> ClientConnection | None:
        """Return the connection to close in favour of a new one; None if every connection has a request in progress."""
        return next(chain(self.draining, self.idle), None)

    def forget(self, connection: ClientConnection) -> None:
        """Remove a closed connection from the lists."""
        self.idle.pop(connection, None)
        self.draining.pop(connection, None)


class ClientConnection(HttpToolsProtocol):
    """One client's connection.

    Args:
        shared: state shared with the server's other connections.
        more: arguments that uvicorn passes to a connection.
    """

    def __init__(self, shared: Connections, **more: Any) -> None:
        super().__init__(**more)
        self._shared = shared
        self._head_limit = shared.settings.max_head_bytes
        self._phase = Phase.NOTHING
        self._head_bytes = 0
        self._unparsed = 0
        self._is_draining = self._is_answered = self._is_full = False
        self._running: RequestResponseCycle | None = None
        self._deadline: asyncio.TimerHandle | None = None

    # -- the connection --------------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Accept a connection. Over the limit, close another connection for it: a draining one, or else the one that
        has been idle longest. If all connections have requests in progress, refuse the new one.
        """
        self._closing = cast(asyncio.Transport, transport)
        super().connection_made(cast(asyncio.Transport, _DrainedTransport(self._closing, self)))
        if len(self.connections) > self._shared.settings.max_connections:
            if (other := self._shared.first_to_close()) is None:
                self._refuse(_connections_limited())
                self.close()
                return
            other.close()
        self._become_idle()
        self._set_deadline(self._shared.settings.head_seconds)

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the connection."""
        self._shared.forget(self)
        self._clear_deadline()
        self._end_requests()
        super().connection_lost(exc)

    def close(self) -> None:
        """Close the connection at once; data already written is still sent."""
        self._shared.forget(self)
        self.connections.discard(self)
        self._clear_deadline()
        self._closing.close()

    def drain(self) -> None:
        """Close the connection after the written data, when the client has stopped sending, or after
        :data:`DRAIN_SECONDS`.
        """
        if self._is_draining:
            return
        if self._phase is Phase.NOTHING or self._closing.is_closing():
            self.close()
            return
        self._is_draining = True
        self._shared.forget(self)
        self._shared.draining[self] = None
        self._end_requests()  # further answers of the application are discarded
        self.flow.resume_reading()
        if self._closing.can_write_eof():
            self._closing.write_eof()
        self._set_deadline(DRAIN_SECONDS)

    @property
    def is_draining(self) -> bool:
        """True while data that the client still sends is discarded."""
        return self._is_draining

    def shutdown(self) -> None:
        """End the connection, after the response in progress if any; uvicorn calls this when the server stops."""
        if self._is_draining or self in self._shared.idle:
            self.close()
        else:
            super().shutdown()

    # -- received data -------------------------------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        """Parse received data. The parser keeps an unfinished line, so its bytes count too."""
        if self._is_draining or self._is_full:
            return
        self._unparsed += len(data)
        super().data_received(data)
        if self._is_draining or self._is_full or self._closing.is_closing():
            return
        if self._unparsed > self._head_limit or self._head_bytes > self._head_limit:
            self._refuse(_head_too_large(self._head_limit), HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE)
        elif self in self._shared.idle and self._deadline is None:
            self._set_deadline(self._shared.settings.head_seconds)

    def on_message_begin(self) -> None:
        """Start a request, unless too many wait; one read may contain thousands, so pausing reads is not enough."""
        self._phase, self._head_bytes = Phase.HEAD, 0
        if len(self.pipeline) >= MAX_PIPELINED:
            self._is_full = True
            raise _PipelineFullError
        super().on_message_begin()

    def on_url(self, url: bytes) -> None:
        """Take a part of the request line."""
        self._head_bytes += len(url)
        self._unparsed = 0
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take a header; trailers after a chunked body are counted and not kept."""
        self._head_bytes += len(name) + len(value) + 4  # ": " and the line's end
        self._unparsed = 0
        if self._phase is Phase.HEAD and self._head_bytes <= self._head_limit:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """Hand the request to the application, unless its head is too large."""
        if self._head_bytes > self._head_limit:
            raise _HeadTooLargeError
        self._phase, self._unparsed = Phase.BODY, 0
        self._clear_deadline()
        self._unset_keepalive_if_required()  # left by a response that was sent at once, to a request in the same piece
        self._shared.idle.pop(self, None)
        self._is_answered = self._answer_at_once()
        if not self._is_answered:
            super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """Take a part of a body."""
        self._unparsed = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        """End a request."""
        self._phase, self._unparsed = Phase.NOTHING, 0
        if not self._is_answered:
            super().on_message_complete()
        elif not self._closing.is_closing() and not self._is_draining:
            self._become_idle()
            self.timeout_keep_alive_task = self.loop.call_later(
                self.timeout_keep_alive, self.timeout_keep_alive_handler
            )

    def on_response_complete(self) -> None:
        """Wait for the next request; after a response to an incomplete request, drain the connection instead."""
        super().on_response_complete()
        if self._closing.is_closing() or self._is_draining:
            return
        self.transport.resume_reading()
        if not self.cycle.response_complete:
            return  # a pipelined request is already in progress
        if self._phase is Phase.BODY:
            self.drain()
        else:
            self._become_idle()

    def _answer_at_once(self) -> bool:
        """Send a response that is already known; return False if the application has to answer.

        No response is sent while an earlier one is in progress, or while the client does not read, so that the data
        that waits to be sent stays bounded.
        """
        is_next = self.cycle is None or self.cycle.response_complete
        if not is_next or self.flow.write_paused or self.parser.get_method() != b"GET":
            return False
        has_body = any(name in BODY_HEADERS for name, _ in self.headers)
        if has_body or self.parser.get_http_version() != "1.1" or not self.parser.should_keep_alive():
            return False
        response = self._shared.known_response(self.url, self.headers)
        if response is None:
            return False
        own = b"".join(b"%b: %b\r\n" % pair for pair in self.server_state.default_headers)
        self._closing.write(response + own + b"\r\n")
        self.server_state.total_requests += 1
        return True

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        self._running = cycle  # uvicorn keeps the latest request, which may be waiting
        super()._start_asgi_task(cycle, app)

    def _end_requests(self) -> None:
        """Notify the request in progress that its client has gone; the requests behind it never start."""
        self.pipeline.clear()
        if self._running is not None and not self._running.response_complete:
            self._running.disconnected = True
            self._running.message_event.set()

    # -- refusals --------------------------------------------------------------------------------------------------------

    def send_400_response(self, msg: str) -> None:
        """Refuse data that is not HTTP, or a head that is too large; uvicorn calls this when its parser or a callback
        has failed.

        After too many requests, the waiting ones are answered and the connection is closed after the last, as HTTP
        requires.
        """
        if self._is_full:
            self.cycle.keep_alive = False
        elif self._head_bytes > self._head_limit:
            self._refuse(_head_too_large(self._head_limit), HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE)
        else:
            self._refuse(InvalidRequest(Code.REQUEST_INVALID, msg, remedy="Send HTTP/1.1."))

    def _refuse(self, error: MensError, status: int | None = None) -> None:
        """Answer without the application, unless it is already answering."""
        if self.cycle is None or self.cycle.response_complete:
            response = error_response(error, status)
            response.headers["Connection"] = "close"
            head = b"".join(b"%s: %s\r\n" % pair for pair in response.raw_headers)
            self._closing.write(STATUS_LINE[response.status_code] + head + b"\r\n" + bytes(response.body))
        self.drain()

    # -- time ------------------------------------------------------------------------------------------------------------

    def _become_idle(self) -> None:
        self._shared.idle[self] = None

    def _set_deadline(self, seconds: float) -> None:
        self._clear_deadline()
        self._deadline = self.loop.call_later(seconds, self._on_deadline)

    def _clear_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _on_deadline(self) -> None:
        """Close a connection if the head or the rest of its request has not arrived in time; a client that sent nothing
        gets no answer.
        """
        if self._phase is Phase.HEAD and not self._is_draining:
            self._refuse(_head_too_slow(self._shared.settings.head_seconds))
        self.close()


def connection_class(shared: Connections) -> type[ClientConnection]:
    """Return a connection class for uvicorn, which creates an instance per client; all instances share this state."""

    class Shared(ClientConnection):
        def __init__(self, **more: Any) -> None:
            super().__init__(shared, **more)

    return Shared


class _DrainedTransport:
    """The transport that uvicorn sees: it drains connections that uvicorn closes, and reads nothing while requests
    wait.

    While a request waits, the body of the request in progress has already been read.
    """

    def __init__(self, transport: asyncio.Transport, connection: ClientConnection) -> None:
        self._transport = transport
        self._connection = connection
        self.write = transport.write

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def close(self) -> None:
        self._connection.drain()

    def resume_reading(self) -> None:
        if not self._connection.pipeline:
            self._transport.resume_reading()

    def is_closing(self) -> bool:
        return self._connection.is_draining or self._transport.is_closing()


class _HeadTooLargeError(Exception):
    """Ends the parsing of a request."""


class _PipelineFullError(Exception):
    """Ends the parsing of a connection."""


def _head_too_large(limit: int) -> TooLarge:
    message = f"The request line and headers are larger than {limit} bytes."
    return TooLarge(Code.HEAD_TOO_LARGE, message, remedy="Send fewer or shorter headers.")


def _head_too_slow(seconds: float) -> TooSlow:
    message = f"The request's headers did not arrive within {seconds:g} s."
    return TooSlow(Code.REQUEST_TIMEOUT, message, remedy="Send the headers without pauses.")


def _connections_limited() -> Unavailable:
    return Unavailable(Code.CONNECTIONS_LIMITED, "All connections are in use.", remedy="Try again.")
