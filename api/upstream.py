"""Asks the serving replicas: one after the other, until the answer of one has begun.

A replica that refuses the connection, breaks it, answers 502 or 503 or that its engine has died, or lets a stream wait too
long is passed over, as long as not one byte has gone to the caller; after that, never. A request that was with two replicas
when they broke goes to no third: it may be what breaks them.
"""

from __future__ import annotations

import asyncio
import logging
import time
from functools import partial
from typing import Any

import msgspec

from api.replica_client import Begun, BrokenOff, NotReached
from api.replicas import Replica, State
from api.services import Services
from shared.errors import Code, Unavailable
from shared.replicas import replica_name

PASSED_OVER = frozenset({502, 503})
MAX_BROKEN = 2

logger = logging.getLogger(__name__)


class TooLate(Exception):
    """A stream did not begin in time, and somebody else can be asked."""


TOLD: dict[type[Exception], str] = {
    TooLate: "began no answer in time",
    NotReached: "takes no connection",
    BrokenOff: "broke the connection off",
}


async def ask(services: Services, path: str, body: dict[str, Any], served: str) -> Begun:
    """The first answer that has begun. Whoever gets it must close it.

    Args:
        body: the request; its model is replaced.
        served: what the replica is asked for.

    Raises:
        Unavailable: ``SERVING_UNAVAILABLE``.
    """
    services.watch.start()  # where nobody ran the application's lifespan
    services.replicas.busiest.count(served, time.monotonic())
    request = Request(services, path, msgspec.json.encode({**body, "model": served}), body.get("stream") is True)
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

    async def try_at(self, replica: Replica) -> Begun | None:
        """The replica's answer, begun; None when it has to be asked elsewhere. Takes over the replica's release."""
        self.tried.append(replica)
        answer: Begun | None = None
        try:
            answer = await self._begin(replica)
        except (TooLate, NotReached, BrokenOff) as error:
            self._blame(replica, error)
        finally:
            if answer is None:  # also when the caller has gone
                self._services.replicas.release(replica)
        if answer is not None and (answer.status in PASSED_OVER or answer.engine_is_dead):
            self._turn_away(replica, answer)
            return None
        if answer is not None and replica.state is State.DOWN:
            replica.suspect.set()  # it is back, so let it be warmed
        return answer

    async def _begin(self, replica: Replica) -> Begun:
        """The answer with its first bytes. Only a stream is asked to begin in time, and only once: all may be slow."""
        started, limit = time.monotonic(), self._services.settings.first_byte_seconds
        if self._streams and not self._was_late and self._others_are_up():
            answer = await self._send_in_time(replica, limit)
        else:
            answer = await self._send(replica)
        if self._streams:
            now = time.monotonic()
            replica.began(now - started, limit, now)
        return answer

    async def _send_in_time(self, replica: Replica, limit: float) -> Begun:
        try:
            async with asyncio.timeout(limit):
                return await self._send(replica)
        except TimeoutError:
            self._was_late = True
            replica.began(limit, limit, time.monotonic())
            raise TooLate(f"no first byte within {limit:g} s") from None

    async def _send(self, replica: Replica) -> Begun:
        answer = await self._services.upstream.post(replica.url + self._path, self._content)
        try:
            first = await answer.read_some()
        except BaseException:
            answer.close()
            raise
        released = partial(self._services.replicas.release, replica)
        return Begun(answer, first, released, partial(_broke_amid, replica))

    def _turn_away(self, replica: Replica, answer: Begun) -> None:
        """A server that answers, but not this: it goes, or its engine has died, perhaps of this request."""
        self.broken += answer.engine_is_dead
        told = "has lost its engine" if answer.engine_is_dead else f"answered {answer.status}"
        answer.close()
        replica.broke(self._pass_over(replica, told))

    def _others_are_up(self) -> bool:
        if len(self._services.replicas.all) == 1:
            return False
        return any(other.state is State.UP for other in self._services.replicas.candidates(self.tried))

    def _blame(self, replica: Replica, error: Exception) -> None:
        what = self._pass_over(replica, TOLD[type(error)], str(error) or type(error).__name__)
        if isinstance(error, NotReached):
            replica.refused(what)
        elif not isinstance(error, TooLate):
            self.broken += 1
            replica.broke(what)

    def _pass_over(self, replica: Replica, told: str, reason: str = "") -> str:
        """What was wrong, for who runs the installation; callers are not told where a replica is."""
        self.reason = f"{replica_name(replica.url)} {told}"
        logger.warning("replica passed over: %s: %s", replica.url, reason or told)
        return f"{replica.url}: {reason or told}"


def _broke_amid(replica: Replica, error: BrokenOff) -> None:
    """Nobody else can be asked any more; the caller is told."""
    reason = f"broke off amid an answer: {error or type(error).__name__}"
    logger.warning("replica %s %s", replica.url, reason)
    replica.broke(f"{replica.url}: {reason}")


def _why_none(replicas: list[Replica]) -> str:
    return "; ".join(f"{replica_name(replica.url)} is {replica.state}" for replica in replicas) or "none is known"
