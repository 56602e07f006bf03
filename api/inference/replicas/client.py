"""HTTP client for serving replicas: pooled kept-alive connections, responses read as they arrive, two kinds of errors.

`ReplicaUnreachable` means that the replica has not received any part of the request, `ReplicaDisconnected` that it may have. A
request that a reused connection lost before the first byte of the response is sent once more, on a new one.
"""

from __future__ import annotations

import asyncio
import re
import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache, partial
from urllib.parse import urlsplit

from api.inference.event_stream import ERROR_EVENT
from api.inference.replicas.http_connection import BadResponse, HttpConnection
from shared.observability.tracing import current_traceparent

# A connection is accepted by the kernel, even if the replica is busy: a longer silence is a lost machine.
CONNECT_SECONDS = 5.0
KEEPALIVE_SECONDS = 4.0
"""Shorter than a replica's five: a request on a connection that the replica closes at the same moment would fail."""
PASSED_HEADERS = ("content-type", "x-request-id", "retry-after")
"""Headers of a replica's response that the caller gets."""
ENGINE_DEAD = re.compile(rb'"message": ?"EngineCore encountered an issue')
"""vLLM's response to requests in flight when its engine dies. In strings that a caller wrote the quotes are escaped, so
they cannot look like this."""
_CONNECTION_ERRORS = (BadResponse, OSError)


class ReplicaUnreachable(Exception):
    """The connection failed before the replica received any part of the request."""


class ReplicaDisconnected(Exception):
    """Connection lost, invalid HTTP, or timeout."""


class ReplicaResponse:
    """A replica's response: its head has arrived, its body is read as it arrives. Its holder closes it.

    Attributes:
        status: HTTP status.
        headers: headers for the caller, names in lower case.
        on_close: called once, when it is closed.
        on_disconnect: called when the replica disconnects before the end.

    Args:
        connection: the connection, which has received the head.
        give_back: takes the connection back.
    """

    def __init__(self, connection: HttpConnection, give_back: Callable[[HttpConnection], None]) -> None:
        self.status = connection.status
        headers = connection.headers
        self.headers: Mapping[str, str] = {name: headers[name] for name in PASSED_HEADERS if name in headers}
        self.on_close: Callable[[], None] | None = None
        self.on_disconnect: Callable[[ReplicaDisconnected], None] | None = None
        self._connection: HttpConnection | None = connection
        self._give_back_connection = give_back
        self._first = b""

    @property
    def ok(self) -> bool:
        """Return true if the status is a success."""
        return 200 <= self.status < 300

    @property
    def is_error(self) -> bool:
        """Return true if the response is an error: by its status, or as a stream whose first event is an error.

        vLLM checks some fields only when it generates, after it has started a stream. The first event is known after
        :meth:`read_first`.
        """
        return not self.ok or self._first.startswith(ERROR_EVENT)

    @property
    def engine_is_dead(self) -> bool:
        """Return true if vLLM reports that its engine has died; the server exits after that."""
        return self.is_error and ENGINE_DEAD.search(self._first) is not None

    async def read_first(self) -> None:
        """Wait for the first bytes of the body; :meth:`read_some` returns them again.

        Raises:
            ReplicaDisconnected: the connection ended before they arrived.
        """
        self._first = await self._read()

    async def read_some(self) -> bytes:
        """Return the received bytes of the body, at least one; empty at its end, or once it is closed.

        Raises:
            ReplicaDisconnected: the connection ended before the body.
        """
        first, self._first = self._first, b""
        try:
            return first or await self._read()
        except ReplicaDisconnected as error:
            if self.on_disconnect:
                self.on_disconnect(error)
            raise

    def failed(self) -> ReplicaDisconnected:
        """Record that the replica has reported a failure in the middle of its stream; return the error to raise."""
        error = ReplicaDisconnected("an error in the middle of a stream")
        if self.on_disconnect:
            self.on_disconnect(error)
        return error

    def __aiter__(self) -> ReplicaResponse:
        """Iterate over the body's bytes as they arrive."""
        return self

    async def __anext__(self) -> bytes:
        """Return the next chunk of the body.

        Raises:
            ReplicaDisconnected: the connection ended before the body.
        """
        if chunk := await self.read_some():
            return chunk
        raise StopAsyncIteration

    def close(self) -> None:
        """Keep the connection if the whole response has arrived, otherwise close it."""
        on_close, self.on_close = self.on_close, None
        if on_close:
            on_close()
        self._give_back()

    async def _read(self) -> bytes:
        if self._connection is None:
            return b""
        try:
            chunk = await self._connection.read_some()
        except _CONNECTION_ERRORS as error:
            raise ReplicaDisconnected(_why(error)) from error
        if not chunk:
            self._give_back()
        return chunk

    def _give_back(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            self._give_back_connection(connection)


@dataclass(frozen=True, slots=True)
class ReplicaAddress:
    """Destination of a request.

    Attributes:
        origin: scheme, host and port, for which connections are reused.
        head: a request's first lines, without the method and the lines that depend on the content.
    """

    origin: tuple[bool, str, int]
    head: str


class ReplicaClient:
    """Sends requests to replicas directly, ignoring any HTTP proxy that the environment names.

    Args:
        key: the key that replicas require; empty: none.
        silence_seconds: longest silence of a replica while a response is awaited.
    """

    def __init__(self, key: str, silence_seconds: float) -> None:
        self._headers = "Content-Type: application/json\r\n" + (f"Authorization: Bearer {key}\r\n" if key else "")
        self._silence_seconds = silence_seconds
        self._idle: dict[tuple[bool, str, int], list[HttpConnection]] = {}
        self._loop: asyncio.AbstractEventLoop | None = None

    async def post(self, url: str, content: bytes, request_id: str = "") -> ReplicaResponse:
        """Send JSON.

        Args:
            request_id: visible ASCII characters, by which vLLM names the request; empty: vLLM chooses a name.

        Raises:
            ReplicaUnreachable: no connection.
            ReplicaDisconnected: a connection, but no response.
        """
        return await self._send("POST", url, content, request_id)

    async def get(self, url: str) -> ReplicaResponse:
        """Send a GET request.

        Raises:
            ReplicaUnreachable: no connection.
            ReplicaDisconnected: a connection, but no response.
        """
        return await self._send("GET", url, b"")

    async def aclose(self) -> None:
        """Close the idle connections; those in use close with their responses."""
        for connections in self._idle.values():
            for connection in connections:
                connection.close()
        self._idle.clear()

    async def _send(self, method: str, url: str, content: bytes, request_id: str = "") -> ReplicaResponse:
        try:
            target = _target(url)
        except ValueError as error:
            raise ReplicaUnreachable(_why(error)) from error
        named = f"X-Request-Id: {request_id}\r\n" if request_id else ""
        if traceparent := current_traceparent():
            named += f"traceparent: {traceparent}\r\n"
        head = f"{method} {target.head}{self._headers}{named}Content-Length: {len(content)}\r\n\r\n"
        request = head.encode() + content
        idle = self._take_idle(target.origin)
        connection = idle or await self._connect(target.origin)
        try:
            await _exchange(connection, request)
        except ConnectionError as error:
            if connection is not idle or connection.has_received:
                raise ReplicaDisconnected(_why(error)) from error
            # Most likely the replica closed the idle connection before it saw the request. It may also have ended because of
            # the request, so if the replica accepts no new connection, the request counts as the cause.
            try:
                connection = await self._connect(target.origin)
                await _exchange(connection, request)
            except (ReplicaUnreachable, *_CONNECTION_ERRORS) as second:
                raise ReplicaDisconnected(_why(second)) from second
        except _CONNECTION_ERRORS as error:
            raise ReplicaDisconnected(_why(error)) from error
        return ReplicaResponse(connection, partial(self._give_back, target.origin))

    async def _connect(self, origin: tuple[bool, str, int]) -> HttpConnection:
        """Open a connection.

        Raises:
            ReplicaUnreachable: no connection.
        """
        secure, host, port = origin
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                _, connection = await asyncio.get_running_loop().create_connection(
                    lambda: HttpConnection(self._silence_seconds), host, port, ssl=_tls() if secure else None
                )
        except (OSError, ValueError) as error:
            raise ReplicaUnreachable(_why(error)) from error
        return connection

    def _take_idle(self, origin: tuple[bool, str, int]) -> HttpConnection | None:
        """Return the most recently used idle connection, so that surplus ones grow too old."""
        loop = asyncio.get_running_loop()
        if self._loop is not loop:  # connections belong to the loop that made them
            self._loop, self._idle = loop, {}
        idle = self._idle.get(origin)
        while idle:
            connection = idle.pop()
            if _is_fresh(connection):
                return connection
            connection.close()
        return None

    def _give_back(self, origin: tuple[bool, str, int], connection: HttpConnection) -> None:
        if connection.is_reusable():
            self._idle.setdefault(origin, []).append(connection)
        else:
            connection.close()
        # Idle connections that are too old for reuse are dropped here; the first of an origin is the oldest.
        for other, idle in list(self._idle.items()):
            while idle and not _is_fresh(idle[0]):
                idle.pop(0).close()
            if not idle:
                del self._idle[other]


async def _exchange(connection: HttpConnection, request: bytes) -> None:
    """Send a request and wait for the response's head; close the connection if none arrives, or this is cancelled.

    Raises:
        BadResponse, OSError: no response will arrive.
    """
    try:
        connection.send(request)
        await connection.head()
    except BaseException:
        # Also when cancelled: a connection that was half read cannot be used again.
        connection.close()
        raise


def _is_fresh(connection: HttpConnection) -> bool:
    return connection.is_reusable() and connection.idle_seconds() < KEEPALIVE_SECONDS


@lru_cache(maxsize=1024)
def _target(url: str) -> ReplicaAddress:
    """Parse a replica's URL.

    Raises:
        ValueError: not an address that a request can be sent to.
    """
    address = urlsplit(url)
    if address.scheme not in ("http", "https") or not address.hostname or not url.isprintable() or " " in url:
        raise ValueError(f"{url!r} is not an address")
    secure = address.scheme == "https"
    path = (address.path or "/") + (f"?{address.query}" if address.query else "")
    host = address.netloc.rpartition("@")[2]
    origin = (secure, address.hostname, address.port or (443 if secure else 80))
    return ReplicaAddress(origin, f"{path} HTTP/1.1\r\nHost: {host}\r\nAccept: */*\r\n")


@lru_cache(maxsize=1)
def _tls() -> ssl.SSLContext:
    return ssl.create_default_context()


def _why(error: BaseException) -> str:
    return str(error) or type(error).__name__
