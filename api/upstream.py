"""Asks the serving replicas: one after the other, until the answer of one has begun.

A replica that refuses the connection, breaks it, answers 502 or 503, or lets a stream wait too long is passed over, as long
as not one byte has gone to the caller; after that, never. A request that was with two replicas when they broke goes to no
third: it may be what breaks them.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import AsyncIterator, Callable
from functools import partial
from typing import Any

import anyio
import httpx

from api.replicas import Replica, State
from api.services import Services
from shared.errors import Code, Unavailable

PASSED_OVER = frozenset({502, 503})
MAX_BROKEN = 2
NOT_REACHED = (httpx.ConnectError, httpx.ConnectTimeout, httpx.UnsupportedProtocol, httpx.InvalidURL)
JSON = {"Content-Type": "application/json"}

logger = logging.getLogger(__name__)


class TooLate(Exception):
    """A stream did not begin in time, and somebody else can be asked."""


class Begun(httpx.AsyncByteStream):
    """A replica's body whose first bytes are here already. The replica is released when it is closed.

    Args:
        first: the first bytes; empty when the body is.
        rest: gives the others.
        source: what ``rest`` reads from.
        release: called once.
    """

    def __init__(
        self, first: bytes, rest: AsyncIterator[bytes], source: httpx.AsyncByteStream, release: Callable[[], None]
    ) -> None:
        self._first = first
        self._rest = rest
        self._source = source
        self._release: Callable[[], None] | None = release

    async def __aiter__(self) -> AsyncIterator[bytes]:
        if self._first:
            yield self._first
        async for chunk in self._rest:
            yield chunk

    async def aclose(self) -> None:
        """Give the connection back, or close it when there is more to come."""
        release, self._release = self._release, None
        if release:
            release()
            await self._source.aclose()


async def ask(services: Services, path: str, body: dict[str, Any], served: str) -> httpx.Response:
    """The first answer that has begun. Whoever gets it must close it.

    Args:
        body: the request; its model is replaced.
        served: what the replica is asked for.

    Raises:
        Unavailable: ``SERVING_UNAVAILABLE``.
    """
    services.watch.start()  # where nobody ran the application's lifespan
    services.replicas.busiest.count(served, time.monotonic())
    request = Request(services, path, json.dumps({**body, "model": served}).encode(), body.get("stream") is True)
    while request.broken < MAX_BROKEN and (replica := services.replicas.take(served, request.tried)):
        if answer := await request.try_at(replica):
            return answer
    raise Unavailable(
        Code.SERVING_UNAVAILABLE,
        f"No serving replica answers ({request.reason or _why_none(services.replicas.all)}).",
        remedy="Try again shortly; if it stays so, look at the serving tier.",
    )


class Request:
    """One request on its way from replica to replica.

    Attributes:
        tried: where it was.
        broken: how many took it and broke the connection.
        reason: what was wrong with the last.
    """

    def __init__(self, services: Services, path: str, content: bytes, streams: bool) -> None:
        self._services = services
        self._path = path
        self._content = content
        self._streams = streams
        self._was_late = False
        self.tried: list[Replica] = []
        self.broken = 0
        self.reason = ""

    async def try_at(self, replica: Replica) -> httpx.Response | None:
        """The replica's answer, begun; None when it has to be asked elsewhere. Takes over the replica's release."""
        self.tried.append(replica)
        answer: httpx.Response | None = None
        try:
            answer = await self._begin(replica)
        except (TooLate, httpx.TransportError, httpx.InvalidURL) as error:
            self._blame(replica, error)
        finally:
            if answer is None:  # also when the caller has gone
                self._services.replicas.release(replica)
        if answer is not None and answer.status_code in PASSED_OVER:
            await answer.aclose()
            self._pass_over(replica, f"status {answer.status_code}")
            replica.broke(self.reason)
            return None
        if answer is not None and replica.state is State.DOWN:
            replica.suspect.set()  # it is back, so let it be warmed
        return answer

    async def _begin(self, replica: Replica) -> httpx.Response:
        """The answer with its first bytes. Only a stream is asked to begin in time, and only once: all may be slow."""
        started, limit = time.monotonic(), self._services.settings.first_byte_seconds
        patience = limit if self._streams and not self._was_late and self._others_are_up() else None
        try:
            with anyio.fail_after(patience):
                answer = await self._send(replica)
        except TimeoutError:
            self._was_late = True
            replica.began(limit, limit, time.monotonic())
            raise TooLate(f"no first byte within {limit:g} s") from None
        if self._streams:
            now = time.monotonic()
            replica.began(now - started, limit, now)
        return answer

    async def _send(self, replica: Replica) -> httpx.Response:
        client = self._services.upstream
        request = client.build_request("POST", replica.url + self._path, content=self._content, headers=JSON)
        answer = await client.send(request, stream=True)
        source = answer.stream
        assert isinstance(source, httpx.AsyncByteStream)
        rest = aiter(source)
        try:
            first = await anext(rest, b"")
        except BaseException:
            with anyio.CancelScope(shield=True):
                await answer.aclose()
            raise
        answer.stream = Begun(first, rest, source, partial(self._services.replicas.release, replica))
        return answer

    def _others_are_up(self) -> bool:
        return any(other.state is State.UP for other in self._services.replicas.candidates(self.tried))

    def _blame(self, replica: Replica, error: Exception) -> None:
        self._pass_over(replica, str(error) or type(error).__name__)
        if isinstance(error, NOT_REACHED):
            replica.refused(self.reason)
        elif not isinstance(error, TooLate):
            self.broken += 1
            replica.broke(self.reason)

    def _pass_over(self, replica: Replica, reason: str) -> None:
        self.reason = f"{replica.url}: {reason}"
        logger.warning("replica passed over: %s", self.reason)


def _why_none(replicas: list[Replica]) -> str:
    return "; ".join(f"{replica.url} is {replica.state}" for replica in replicas) or "none is known"
