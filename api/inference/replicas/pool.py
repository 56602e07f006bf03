"""Pool of serving replicas: their states, their load, and the choice of the replica for the next request.

A model goes only to replicas that serve its base, and always to the same of them (rendezvous hashing), so its adapter
stays loaded there. A replica that has more than its share of the load is skipped for the next in the model's order.
Nothing here waits: `api/inference/replicas/health.py` and `api/inference/replicas/failover.py` report their findings.
All of it runs in the event loop's one thread.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import math
import time
from collections import Counter, deque
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from api.inference.replicas.served_models import ServedModel
from shared.replicas import Fit, ReplicaCapabilities, ServedBaseName

LOAD_FACTOR = 1.25
"""A replica takes at most this multiple of the mean number of requests in flight, plus one."""
FAILED_CHECKS = 3
"""Consecutive failed health checks before a replica counts as down; a refused connection is enough on its own."""
LATE_STREAMS = 3
"""Consecutive streams that begin too late before a replica is taken out as slow."""
# Doubled for each repetition: a replica that stays slow costs ever fewer callers a late answer,
FIRST_BACKOFF_SECONDS = 10.0
# and one that has recovered still gets requests within minutes.
LONGEST_BACKOFF_SECONDS = 300.0
FORGET_SECONDS = 600.0
"""A replica that was not slow for this long starts with the first back-off again."""
POPULARITY_MINUTES = 5


class ReplicaState(StrEnum):
    """State of a serving replica as this API process sees it."""

    NEW = "new"
    """It has not passed a health check yet."""
    WARMING = "warming"
    """It responds, and loads the most requested adapters."""
    UP = "up"
    SLOW = "slow"
    """It responds, but its streams began too late several times in a row."""
    DOWN = "down"


PREFERENCE = (
    frozenset({ReplicaState.UP}),
    frozenset({ReplicaState.NEW, ReplicaState.WARMING, ReplicaState.SLOW}),
    frozenset({ReplicaState.DOWN}),
)
"""States of replicas that get requests, in order of preference; a group is used only if all earlier ones are empty. A
late response is better than none, and a replica that was down may be back since its last health check: a refused
connection costs nothing."""

logger = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class Replica:
    """One serving replica.

    Attributes:
        in_flight: requests that were sent and whose responses are not read to the end.
        failed_checks: consecutive failed health checks.
        late: consecutive streams that began too late.
        ejections: how often it was slow recently; each time doubles the back-off.
        back_at: when a slow one may get requests again, on the monotonic clock (s).
        was_healthy: it has passed a health check once.
        last_error: its last error, however long ago; errors from before it was first healthy are dropped.
        last_error_at: time of that error (unix seconds).
        was_there_at_start: it was serving before this API process started, so it is not warmed when it first passes a
            check.
        serves: the capabilities that it reported at its last check; None: it has reported none, so it may serve
            anything.
        check_now: set to have its health checked at once.
    """

    url: str
    state: ReplicaState = ReplicaState.NEW
    in_flight: int = 0
    failed_checks: int = 0
    late: int = 0
    ejections: int = 0
    back_at: float = 0.0
    was_healthy: bool = False
    last_error: str | None = None
    last_error_at: int | None = None
    was_there_at_start: bool = False
    serves: ReplicaCapabilities | None = None
    check_now: asyncio.Event = field(default_factory=asyncio.Event)

    def may_have(self, model: ServedModel) -> bool:
        """Return false if the replica is known not to serve a model, otherwise true."""
        return self.serves is None or model.is_served_by(self.serves)

    def fits(self, model: ServedModel) -> bool:
        """Return whether the replica is known to serve the exact weights that a model was trained on."""
        return self.serves is not None and model.fit_on(self.serves) is Fit.EXACT

    def passed_check(self, now: float) -> bool:
        """Record a passed health check. Returns whether the replica must be warmed before it is up."""
        self.failed_checks = 0
        if not self.was_healthy:
            self.was_healthy, self.last_error, self.last_error_at = True, None, None
        returns = self.state is ReplicaState.SLOW and now >= self.back_at
        if returns or (self.state is ReplicaState.NEW and self.was_there_at_start):
            self.state = ReplicaState.UP
        if self.state in (ReplicaState.NEW, ReplicaState.DOWN):
            self.state = ReplicaState.WARMING
            return True
        return False

    def failed_check(self, error: str) -> None:
        """Record a failed health check."""
        self.failed_checks += 1
        self._set_error(error)
        if self.failed_checks >= FAILED_CHECKS or self.state is ReplicaState.NEW:
            self.state = ReplicaState.DOWN

    def finished_warming(self) -> None:
        """Record the end of warming, successful or not; a request may have found the replica down meanwhile."""
        if self.state is ReplicaState.WARMING:
            self.state, self.late = ReplicaState.UP, 0

    def refused_connection(self, error: str) -> None:
        """Record that the replica refused a connection: it is down."""
        self._set_error(error)
        self.state = ReplicaState.DOWN
        self.check_now.set()

    def lost_engine(self, error: str) -> None:
        """Mark the replica down until it passes a health check: its server responds, but its engine has died."""
        self.refused_connection(error)

    def failed_request(self, error: str) -> None:
        """Record that the replica accepted a request but did not respond; its health is checked now."""
        self._set_error(error)
        self.check_now.set()

    def stream_began(self, seconds: float, limit: float, now: float) -> None:
        """Record that a stream began after the given seconds, or was given up after them.

        After several consecutive late streams the replica counts as slow, for longer each time.
        """
        if seconds < limit:
            self.late = 0
            return
        self.late += 1
        self._set_error(f"no first byte within {limit:g} s")
        if self.late >= LATE_STREAMS and self.state is ReplicaState.UP:
            if now - self.back_at > FORGET_SECONDS:
                self.ejections = 0
            self.back_at = now + min(FIRST_BACKOFF_SECONDS * 2**self.ejections, LONGEST_BACKOFF_SECONDS)
            self.ejections += 1
            self.late = LATE_STREAMS - 1  # when it is back, one more late stream is enough
            self.state = ReplicaState.SLOW
            logger.warning("replica %s is slow (%s)", self.url, self.last_error)

    def _set_error(self, error: str) -> None:
        self.last_error, self.last_error_at = error, int(time.time())


class ModelPopularity:
    """Requests by model over the last minutes: a new replica loads the most requested models first."""

    def __init__(self) -> None:
        self._minutes: deque[tuple[int, Counter[ServedModel]]] = deque(maxlen=POPULARITY_MINUTES)

    def count(self, model: ServedModel, now: float) -> None:
        """Count one request for a model."""
        minute = int(now // 60)
        if not self._minutes or self._minutes[-1][0] != minute:
            self._minutes.append((minute, Counter()))
        self._minutes[-1][1][model] += 1

    def top(self, number: int, now: float, replica: Replica) -> list[str]:
        """Return the names of the most requested models that a replica has, the most requested first."""
        total: Counter[ServedModel] = Counter()
        for minute, counts in self._minutes:
            if minute > now // 60 - POPULARITY_MINUTES:
                total += counts
        return [model.name for model, _ in total.most_common() if replica.may_have(model)][:number]


class ReplicaPool:
    """All known replicas.

    Attributes:
        urls: their URLs; always the same list object, which other parts keep.
        all: the replicas, in the same order.
        popularity: requests by model.
    """

    def __init__(self, urls: Iterable[str] = ()) -> None:
        self.urls: list[str] = []
        self.all: list[Replica] = []
        self.popularity = ModelPopularity()
        self.update(urls)

    def update(self, urls: Iterable[str]) -> tuple[list[Replica], list[Replica]]:
        """Replace the replicas by those at ``urls``; one that stays keeps its state.

        Returns:
            The added and the removed replicas. Requests in flight at removed replicas continue.
        """
        old = {replica.url: replica for replica in self.all}
        addresses = list(dict.fromkeys(urls))
        self.all = [old.get(url) or Replica(url) for url in addresses]
        self.urls[:] = addresses
        return [r for r in self.all if r.url not in old], [r for url, r in old.items() if url not in addresses]

    def take(self, model: ServedModel, tried: Collection[Replica] = ()) -> Replica | None:
        """Return the replica for the next request to a model, counted as in flight at once; None if none is left.

        The caller must :meth:`release` it when the response is read or given up.

        Args:
            tried: replicas that have already failed this request.
        """
        pool = self.candidates(model, tried)
        if not pool:
            return None
        replica = first_below_limit(in_order(pool, model.name)) if len(pool) > 1 else pool[0]
        replica.in_flight += 1
        return replica

    def release(self, replica: Replica) -> None:
        """Decrease the number of requests in flight by one."""
        replica.in_flight -= 1

    def having(self, model: ServedModel) -> list[Replica]:
        """Return replicas that have a model, whatever their states, and those that have not reported yet."""
        return [replica for replica in self.all if replica.may_have(model)]

    def serves(self, model: ServedModel) -> bool | None:
        """Return whether a replica serves a model's base; None if unknown, because a replica has not reported yet or
        none exists.
        """
        reported = [replica.serves for replica in self.all if replica.serves]
        if any(map(model.is_served_by, reported)):
            return True
        return False if reported and len(reported) == len(self.all) else None

    def serves_adapters_of(self, base_digest: str) -> bool | None:
        """Return whether a replica serves the adapters of a base, as the base's own or as its twin's; None if unknown.

        A replica that is down may serve another base when it is back, so only responding replicas can rule it out.
        """
        answering = [
            replica.serves for replica in self.all if replica.serves and replica.state is not ReplicaState.DOWN
        ]
        if any(serves.adapters_digest == base_digest for serves in answering):
            return True
        return False if answering and len(answering) == len(self.all) else None

    def max_lora_rank(self, base_digest: str) -> int | None:
        """Return the largest rank that every replica of a base's adapters loads; None if none has reported one."""
        answering = [
            replica.serves for replica in self.all if replica.serves and replica.state is not ReplicaState.DOWN
        ]
        return min(
            (serves.max_lora_rank for serves in answering if serves.adapters_digest == base_digest), default=None
        )

    def served_bases(self) -> set[ServedBaseName]:
        """Describe the bases of the replicas that are not down, for an error message."""
        answering = (replica for replica in self.all if replica.state is not ReplicaState.DOWN)
        return {replica.serves.base_name for replica in answering if replica.serves}

    def candidates(self, model: ServedModel, tried: Collection[Replica] = ()) -> list[Replica]:
        """Return the replicas that may get a request for a model now: those that are up, else those in the next
        preferred state.

        If a replica that is not down serves the weights that an adapter was trained on, only such replicas are
        returned.
        """
        left = [replica for replica in self.having(model) if replica not in tried]
        if model.trained:
            left = [
                replica_left
                for replica_left in left
                if replica_left.state is not ReplicaState.DOWN and replica_left.fits(model)
            ] or left
        if all(replica.state is ReplicaState.UP for replica in left):
            return left
        return next(filter(None, ([r for r in left if r.state in states] for states in PREFERENCE)), [])


def rendezvous(url: str, model: str) -> bytes:
    """Return a replica's place in a model's order. The place depends only on model and replica, so a replica that
    leaves moves only its own models.
    """
    return hashlib.sha256(f"{url} {model}".encode()).digest()


def in_order(replicas: Iterable[Replica], model: str) -> list[Replica]:
    """Return replicas in a model's order."""
    return sorted(replicas, key=lambda replica: rendezvous(replica.url, model))


def in_flight_limit(replicas: Sequence[Replica]) -> int:
    """Return how many requests each of the replicas may have in flight."""
    mean = sum(replica.in_flight for replica in replicas) / len(replicas)
    return math.ceil(LOAD_FACTOR * mean + 1)


def first_below_limit(order: Sequence[Replica]) -> Replica:
    """Return the first replica that can take one more request; a replica at or below the mean always can."""
    limit = in_flight_limit(order)
    return next(replica for replica in order if replica.in_flight < limit)
