"""Failover: sends a request to one replica after the other, until the response of one has begun.

A replica is skipped if it refuses the connection, disconnects, answers 502, 503 or that its engine has died, or takes
too long to begin a stream, as long as no byte has been sent to the caller; after that, never. A request that two
replicas had when they disconnected is not sent to a third: it may be what breaks them.
"""

from __future__ import annotations

import asyncio
import logging
import time
from dataclasses import dataclass
from functools import partial
from typing import Any

import msgspec

from api.inference.replicas.client import ReplicaClient, ReplicaDisconnected, ReplicaResponse, ReplicaUnreachable
from api.inference.replicas.health import HealthMonitor
from api.inference.replicas.pool import Replica, ReplicaPool, ReplicaState
from api.inference.replicas.served_models import ServedModel
from shared.errors import Code, Unavailable
from shared.replicas import describe_unserved, replica_name, serving_remedy
from shared.tokenization.request_arguments import with_template_arguments

SKIPPED_STATUSES = frozenset({502, 503})
# A request after which two engines have died may be the cause, and must not reach the others.
MAX_DISCONNECTS = 2
WAIT_STEP_SECONDS = 0.05

logger = logging.getLogger(__name__)


class FirstByteTimeout(Exception):
    """A stream did not begin in time, and another replica is available."""


REASONS: dict[type[Exception], str] = {
    FirstByteTimeout: "sent no first byte in time",
    ReplicaUnreachable: "accepts no connection",
    ReplicaDisconnected: "disconnected",
}
"""Reasons for skipping a replica, as callers get them."""


@dataclass(frozen=True)
class Failover:
    """Sends requests to the replicas of a pool.

    Attributes:
        first_byte_seconds: how long a stream may take to begin while another replica is up.
    """

    pool: ReplicaPool
    client: ReplicaClient
    health: HealthMonitor
    first_byte_seconds: float

    async def first_response(
        self, path: str, body: dict[str, Any], model: ServedModel, wait_seconds: float = 0.0, request_id: str = ""
    ) -> ReplicaResponse:
        """Return the first response that has begun. The caller closes it.

        Args:
            path: path on the replica.
            body: the request; its model is replaced, and the model's template arguments are its defaults.
            model: the requested model; only replicas that serve its base get the request.
            wait_seconds: how long to wait for a replica to come back if none is left.
            request_id: id of the request in the replica's log, in visible ASCII characters.

        Raises:
            Unavailable: ``SERVING_UNAVAILABLE``; ``BASE_NOT_SERVED``: all replicas serve other bases.
        """
        self.health.start()  # in case the application's lifespan was not run
        self.pool.popularity.count(model, time.monotonic())
        request = with_template_arguments(path, {**body, "model": model.name}, model.template_arguments)
        content = msgspec.json.encode(request)
        attempt = ReplicaAttempt(self, model, path, content, body.get("stream") is True, request_id)
        deadline = time.monotonic() + wait_seconds
        while attempt.disconnects < MAX_DISCONNECTS:
            if replica := self.pool.take(model, attempt.tried):
                if response := await attempt.send_to(replica):
                    return response
            elif attempt.return_to_slow():
                continue
            elif not await self._one_is_back(model, deadline):
                break
            else:
                attempt.tried.clear()
        raise self._nobody_answers(model, attempt.reason)

    def _nobody_answers(self, model: ServedModel, reason: str) -> Unavailable:
        """Return the error for a request for which no replica is left; ``reason``: why the last one was skipped."""
        having = self.pool.having(model)
        if self.pool.all and not having:
            served = self.pool.served_bases()
            tuned = "" if model.name == model.base else f" It is the base of {model.name}."
            return Unavailable(
                Code.BASE_NOT_SERVED,
                f"{describe_unserved(model.base, served)}{tuned}",
                remedy=f"{serving_remedy(model.base, served)}; or try again when a replica of it has started; `mens replicas` lists the served bases.",
                param="model",
            )
        states = "; ".join(f"{replica_name(replica.url)} is {replica.state}" for replica in having)
        return Unavailable(
            Code.SERVING_UNAVAILABLE,
            f"No serving replica answers ({reason or states or 'no replica is known'}).",
            remedy="Try again shortly; if the error persists, check the serving tier.",
        )

    async def _one_is_back(self, model: ServedModel, deadline: float) -> bool:
        """Wait until a replica that has the model is not down; return whether one is back before the deadline
        (monotonic, s).
        """
        while time.monotonic() + WAIT_STEP_SECONDS <= deadline:
            await asyncio.sleep(WAIT_STEP_SECONDS)
            if any(replica.state is not ReplicaState.DOWN for replica in self.pool.having(model)):
                return True
        return False


class ReplicaAttempt:
    """One request that is tried on one replica after the other.

    Attributes:
        tried: the replicas that it was sent to.
        disconnects: number of replicas that accepted it and then disconnected, or lost their engine.
        reason: why the last replica was skipped.
    """

    def __init__(
        self, failover: Failover, model: ServedModel, path: str, content: bytes, streams: bool, request_id: str
    ) -> None:
        self._failover = failover
        self._model = model
        self._path = path
        self._content = content
        self._streams = streams
        self._request_id = request_id
        self._timed_out = False
        self._slow: Replica | None = None
        self.tried: list[Replica] = []
        self.disconnects = 0
        self.reason = ""

    async def send_to(self, replica: Replica) -> ReplicaResponse | None:
        """Return the replica's response, begun; None if it is skipped. Releases the replica unless it returns a
        response.
        """
        self.tried.append(replica)
        was_down = replica.state is ReplicaState.DOWN
        response: ReplicaResponse | None = None
        try:
            response = await self._begin(replica)
        except (FirstByteTimeout, ReplicaUnreachable, ReplicaDisconnected) as error:
            detail = self._log_skipped(replica, REASONS[type(error)], str(error) or type(error).__name__)
            if isinstance(error, ReplicaUnreachable):
                replica.refused_connection(detail)
            elif isinstance(error, ReplicaDisconnected):
                self.disconnects += 1
                replica.failed_request(detail)
        finally:
            if response is None:  # also if this is cancelled because the caller disconnected
                self._failover.pool.release(replica)
        if response is None:
            return None
        if response.engine_is_dead:
            # Perhaps because of this request, unless it was dead before.
            self.disconnects += not was_down
            response.close()
            replica.lost_engine(self._log_skipped(replica, "has lost its engine"))
            return None
        if response.status in SKIPPED_STATUSES:  # the server answers, but not this request: it is stopping
            response.close()
            replica.failed_request(self._log_skipped(replica, f"answered {response.status}"))
            return None
        if replica.state is ReplicaState.DOWN:
            replica.check_now.set()  # it is back: the check warms it
        return response

    def return_to_slow(self) -> bool:
        """Make the replica that was skipped as slow eligible again, once; returns whether one was.

        The other replicas have failed since, and the slow one may be working: a late response is better than none.
        """
        slow, self._slow = self._slow, None
        if slow is None:
            return False
        self.tried.remove(slow)
        return True

    async def _begin(self, replica: Replica) -> ReplicaResponse:
        """Return the response with its first bytes. Only a stream must begin in time, and only at one replica: all may
        be slow.
        """
        started, limit, pool = time.monotonic(), self._failover.first_byte_seconds, self._failover.pool
        has_limit = (
            self._streams
            and not self._timed_out
            and len(pool.all) > 1
            and any(other.state is ReplicaState.UP for other in pool.candidates(self._model, self.tried))
        )
        try:
            async with asyncio.timeout(limit if has_limit else None):
                response = await self._failover.client.post(replica.url + self._path, self._content, self._request_id)
                try:
                    await response.read_first()
                except BaseException:
                    # Also when cancelled: without a reader the replica would generate the whole answer.
                    response.close()
                    raise
        except TimeoutError:
            self._timed_out, self._slow = True, replica
            replica.stream_began(limit, limit, time.monotonic())
            raise FirstByteTimeout(f"no first byte within {limit:g} s") from None
        if self._streams:
            now = time.monotonic()
            replica.stream_began(now - started, limit, now)
        response.on_close = partial(pool.release, replica)
        response.on_disconnect = partial(_record_late_disconnect, replica)
        return response

    def _log_skipped(self, replica: Replica, what: str, detail: str = "") -> str:
        """Log the reason with the replica's address, for the operator; callers get the reason without the address."""
        self.reason = f"{replica_name(replica.url)} {what}"
        logger.warning("replica skipped: %s: %s", replica.url, detail or what)
        return f"{replica.url}: {detail or what}"


def _record_late_disconnect(replica: Replica, error: ReplicaDisconnected) -> None:
    """Record a disconnect after the response had begun: the request is sent to no other replica, and the caller gets
    the error.
    """
    reason = f"disconnected in the middle of a response: {error or type(error).__name__}"
    logger.warning("replica %s %s", replica.url, reason)
    replica.failed_request(f"{replica.url}: {reason}")
