"""HTTP to the serving replicas: kept-alive connections, answers that are read as they come, errors of two kinds."""

from __future__ import annotations

import asyncio
import re
import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache, partial
from urllib.parse import urlsplit

from api.http_connection import BadAnswer, HttpConnection

CONNECT_SECONDS = 5.0
KEEPALIVE_SECONDS = 4.0
"""Shorter than a replica's five: a connection that both use and close at once fails a request."""
PASSED_HEADERS = ("content-type", "x-request-id", "retry-after")
"""What a caller gets to see of an answer's head."""
_BROKEN = (BadAnswer, OSError)


class NotReached(Exception):
    """No connection came about, so the replica has seen nothing of the request."""


ERROR_EVENT = b'data: {"error":'
ENGINE_DEAD = re.compile(rb'"message": ?"EngineCore encountered an issue')
"""How vLLM answers what its engine had when it died. What a caller wrote has its quotes escaped, so it cannot look like this."""


class BrokenOff(Exception):
    """The connection broke, or what came was no HTTP, or nothing came for too long."""


class ReplicaAnswer:
    """An answer whose head is here. Whoever has it closes it.

    Attributes:
        status: HTTP status.
        headers: those for the caller, names in lower case.

    Args:
        connection: its head has come.
        let_go: takes the connection back.
    """

    def __init__(self, connection: HttpConnection, let_go: Callable[[HttpConnection], None]) -> None:
        self.status = connection.status
        headers = connection.headers
        self.headers: Mapping[str, str] = {name: headers[name] for name in PASSED_HEADERS if name in headers}
        self._connection: HttpConnection | None = connection
        self._let_go = let_go

    @property
    def ok(self) -> bool:
        """Whether the status is one of success."""
        return 200 <= self.status < 300

    async def read_some(self) -> bytes:
        """What has come of the body, at least a byte; nothing at its end, or once it is closed.

        Raises:
            BrokenOff: before the end.
        """
        if self._connection is None:
            return b""
        try:
            chunk = await self._connection.read_some()
        except _BROKEN as error:
            raise BrokenOff(_why(error)) from error
        if not chunk:
            self.close()
        return chunk

    def close(self) -> None:
        """Keep the connection when the whole answer has come, else close it."""
        connection, self._connection = self._connection, None
        if connection is not None:
            self._let_go(connection)


class Begun:
    """A replica's answer whose first bytes are here already. The replica is released when it is closed.

    Attributes:
        status: HTTP status.
        headers: those for the caller, names in lower case.

    Args:
        answer: gives the bytes after the first ones.
        first: the first bytes; empty when there are none.
        release: called once.
        broke: called when the replica breaks off.
    """

    def __init__(
        self,
        answer: ReplicaAnswer,
        first: bytes,
        release: Callable[[], None],
        broke: Callable[[BrokenOff], None] = lambda _error: None,
    ) -> None:
        self.status, self.headers = answer.status, answer.headers
        self._answer = answer
        self._first = first
        self._release: Callable[[], None] | None = release
        self._broke = broke

    @property
    def refuses(self) -> bool:
        """Whether it is an error: by its status, or a stream of which an error is the first event.

        vLLM looks at some fields only once it generates, and has begun a stream by then.
        """
        return not self._answer.ok or self._first.startswith(ERROR_EVENT)

    @property
    def engine_is_dead(self) -> bool:
        """Whether vLLM says that its engine has died: the server goes after it."""
        return self.refuses and ENGINE_DEAD.search(self._first) is not None

    async def read_some(self) -> bytes:
        """What has come of the body, at least a byte; nothing at its end.

        Raises:
            BrokenOff: before the end.
        """
        first, self._first = self._first, b""
        try:
            return first or await self._answer.read_some()
        except BrokenOff as error:
            self._broke(error)
            raise

    def __aiter__(self) -> Begun:
        """The body's bytes as they come."""
        return self

    async def __anext__(self) -> bytes:
        """Raises:
        BrokenOff: before the end.
        """
        if chunk := await self.read_some():
            return chunk
        raise StopAsyncIteration

    def close(self) -> None:
        """Give the connection back, or close it when there is more to come."""
        release, self._release = self._release, None
        if release:
            release()
            self._answer.close()


@dataclass(frozen=True, slots=True)
class Target:
    """Where a request goes.

    Attributes:
        origin: scheme, host and port: what a connection is good for.
        head: a request's first lines, but for the method and for what is sent.
    """

    origin: tuple[bool, str, int]
    head: str


class ReplicaClient:
    """Asks replicas, directly, whatever proxy the machine uses for the world.

    Args:
        key: what they ask of their callers; empty: nothing.
        silence_seconds: the longest that one may send nothing while it is expected to.
    """

    def __init__(self, key: str, silence_seconds: float) -> None:
        self._headers = "Content-Type: application/json\r\n" + (f"Authorization: Bearer {key}\r\n" if key else "")
        self._silence_seconds = silence_seconds
        self._idle: dict[tuple[bool, str, int], list[HttpConnection]] = {}
        self._loop: asyncio.AbstractEventLoop | None = None

    async def post(self, url: str, content: bytes) -> ReplicaAnswer:
        """Send JSON.

        Raises:
            NotReached: no connection. BrokenOff: a connection, but no answer.
        """
        return await self._ask("POST", url, content)

    async def get(self, url: str) -> ReplicaAnswer:
        """Raises:
        NotReached: no connection. BrokenOff: a connection, but no answer.
        """
        return await self._ask("GET", url, b"")

    async def aclose(self) -> None:
        """Close the connections that rest; those in use close with their answers."""
        for connections in self._idle.values():
            for connection in connections:
                connection.close()
        self._idle.clear()

    async def _ask(self, method: str, url: str, content: bytes) -> ReplicaAnswer:
        try:
            target = _target(url)
            connection = self._take(target.origin) or await self._connect(target.origin)
        except (OSError, ValueError) as error:
            raise NotReached(_why(error)) from error
        head = f"{method} {target.head}{self._headers}Content-Length: {len(content)}\r\n\r\n"
        try:
            connection.send(head.encode() + content)
            await connection.head()
        except BaseException as error:
            connection.close()
            if isinstance(error, _BROKEN):
                raise BrokenOff(_why(error)) from error
            raise
        return ReplicaAnswer(connection, partial(self._let_go, target.origin))

    def _take(self, origin: tuple[bool, str, int]) -> HttpConnection | None:
        """One that rests; the one that was used last, so that those that are too many grow old."""
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

    async def _connect(self, origin: tuple[bool, str, int]) -> HttpConnection:
        secure, host, port = origin
        context = _tls() if secure else None
        async with asyncio.timeout(CONNECT_SECONDS):
            _, connection = await asyncio.get_running_loop().create_connection(
                lambda: HttpConnection(self._silence_seconds), host, port, ssl=context
            )
        return connection

    def _let_go(self, origin: tuple[bool, str, int], connection: HttpConnection) -> None:
        if connection.is_reusable():
            self._idle.setdefault(origin, []).append(connection)
        else:
            connection.close()
        self._drop_old()

    def _drop_old(self) -> None:
        """Forget connections that nobody will take any more; the oldest of an origin is its first."""
        for origin, idle in list(self._idle.items()):
            while idle and not _is_fresh(idle[0]):
                idle.pop(0).close()
            if not idle:
                del self._idle[origin]


def _is_fresh(connection: HttpConnection) -> bool:
    return connection.is_reusable() and connection.idle_seconds() < KEEPALIVE_SECONDS


@lru_cache(maxsize=1024)
def _target(url: str) -> Target:
    """Raises:
    ValueError: nothing that can be asked.
    """
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname or not url.isprintable() or " " in url:
        raise ValueError(f"{url!r} is no address")
    secure = parts.scheme == "https"
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    host = parts.netloc.rpartition("@")[2]
    origin = (secure, parts.hostname, parts.port or (443 if secure else 80))
    return Target(origin, f"{path} HTTP/1.1\r\nHost: {host}\r\nAccept: */*\r\n")


@lru_cache(maxsize=1)
def _tls() -> ssl.SSLContext:
    return ssl.create_default_context()


def _why(error: BaseException) -> str:
    return str(error) or type(error).__name__
