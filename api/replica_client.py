"""HTTP to the serving replicas: kept-alive connections, answers that are read as they come, errors of two kinds."""

from __future__ import annotations

import asyncio
import io
from collections.abc import AsyncIterator, Callable, Mapping

import aiohttp

CONNECT_SECONDS = 5.0
KEEPALIVE_SECONDS = 4.0
"""Shorter than a replica's five: a connection that both use and close at once fails a request."""
LARGE_BYTES = 1 << 20

_UNREACHED = (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError, aiohttp.InvalidURL)
_BROKEN = (aiohttp.ClientError, TimeoutError, OSError)


class NotReached(Exception):
    """No connection came about, so the replica has seen nothing of the request."""


class BrokenOff(Exception):
    """The connection broke, or what came was no HTTP, or nothing came for too long."""


class ReplicaAnswer:
    """An answer whose head is here. Whoever has it closes it.

    Attributes:
        status: HTTP status.
        headers: by name, whatever the case.
    """

    def __init__(self, response: aiohttp.ClientResponse) -> None:
        self.status = response.status
        self.headers: Mapping[str, str] = response.headers
        self._response = response

    @property
    def ok(self) -> bool:
        """Whether the status is one of success."""
        return 200 <= self.status < 300

    async def read_some(self) -> bytes:
        """What has come of the body, at least a byte; nothing at its end.

        Raises:
            BrokenOff: before the end.
        """
        try:
            return await self._response.content.readany()
        except _BROKEN as error:
            raise BrokenOff(_why(error)) from error

    def close(self) -> None:
        """Keep the connection when the body was read to its end, else close it."""
        self._response.close()


class Begun:
    """A replica's answer whose first bytes are here already. The replica is released when it is closed.

    Attributes:
        status: HTTP status.
        headers: by name, whatever the case.

    Args:
        answer: gives the bytes after the first ones.
        first: the first bytes; empty when there are none.
        release: called once.
    """

    def __init__(self, answer: ReplicaAnswer, first: bytes, release: Callable[[], None]) -> None:
        self.status, self.headers = answer.status, answer.headers
        self._answer = answer
        self._first = first
        self._release: Callable[[], None] | None = release

    @property
    def ok(self) -> bool:
        """Whether the status is one of success."""
        return self._answer.ok

    async def __aiter__(self) -> AsyncIterator[bytes]:
        """The body's bytes as they come.

        Raises:
            BrokenOff: before the end.
        """
        chunk = self._first
        while chunk:
            yield chunk
            chunk = await self._answer.read_some()

    def close(self) -> None:
        """Give the connection back, or close it when there is more to come."""
        release, self._release = self._release, None
        if release:
            release()
            self._answer.close()


class ReplicaClient:
    """Asks replicas, directly, whatever proxy the machine uses for the world.

    Args:
        key: what they ask of their callers; empty: nothing.
        silence_seconds: the longest that one may send nothing while it is expected to.
    """

    def __init__(self, key: str, silence_seconds: float) -> None:
        self._headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {key}"} if key else {})
        self._timeout = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_SECONDS, sock_read=silence_seconds)
        self._session: aiohttp.ClientSession | None = None
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
        return await self._ask("GET", url, None)

    async def aclose(self) -> None:
        """Close every connection."""
        if self._session is not None:
            await self._session.close()

    async def _ask(self, method: str, url: str, content: bytes | None) -> ReplicaAnswer:
        data = io.BytesIO(content) if content and len(content) > LARGE_BYTES else content  # sent in pieces
        try:
            return ReplicaAnswer(await self._connected().request(method, url, data=data, allow_redirects=False))
        except _UNREACHED as error:
            raise NotReached(_why(error)) from error
        except _BROKEN as error:
            raise BrokenOff(_why(error)) from error

    def _connected(self) -> aiohttp.ClientSession:
        """The session of the running loop: connections belong to the loop that made them."""
        loop = asyncio.get_running_loop()
        if self._session is None or self._loop is not loop:
            self._loop = loop
            self._session = aiohttp.ClientSession(
                headers=self._headers,
                timeout=self._timeout,
                connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=KEEPALIVE_SECONDS),
                cookie_jar=aiohttp.DummyCookieJar(),
                skip_auto_headers=("Accept-Encoding", "User-Agent"),
                auto_decompress=False,
            )
        return self._session


def _why(error: BaseException) -> str:
    return str(error) or type(error).__name__
