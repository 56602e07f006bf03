"""Which serving replica answers: who is there, in which state, with how much work, and whose turn it is.

The same model goes to the same replica (rendezvous hashing), so its adapter stays warm there; a replica that has more than
its part of the work is passed over for the next in the model's order. Nothing here waits: `api/replica_watch.py` finds out
and tells; the gateway takes, and tells what became of it. All of it runs in the event loop's one thread.
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

BOUND = 1.25
"""A replica takes at most this many times the mean of requests under way, and one."""
FAILED_CHECKS = 3
"""Health checks in a row that fail before a replica is down; a refused connection is enough by itself."""
LATE_STREAMS = 3
"""Streams in a row that begin too late before a replica is out as slow."""
FIRST_BACKOFF_SECONDS = 10.0
LONGEST_BACKOFF_SECONDS = 300.0
FORGET_SECONDS = 600.0
"""A replica that was not slow for so long begins with the first back-off again."""
MINUTES = 5
"""How far back a model's requests count towards being busy."""


class State(StrEnum):
    """Where a replica stands."""

    NEW = "new"
    """Not heard of yet."""
    WARMING = "warming"
    """It answers and loads the busiest adapters."""
    UP = "up"
    SLOW = "slow"
    """It answers, but its streams began too late several times in a row."""
    DOWN = "down"


TURNS = (frozenset({State.UP}), frozenset({State.NEW, State.WARMING, State.SLOW}), frozenset({State.DOWN}))
"""Whom to ask; each only when there is none of the ones before. Better late than not at all, and one that was down may be
back since the last health check: a connection that is refused costs nothing."""

logger = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class Replica:
    """One serving replica.

    Attributes:
        in_flight: requests that were sent and whose answers are not read to the end.
        failed_checks: health checks in a row that failed.
        late: streams in a row that began too late.
        ejections: how often it was slow of late; each doubles the back-off.
        back_at: when a slow one may take part again, on the monotonic clock (s).
        heard_of: it has been healthy once.
        last_error: what was last wrong with it, however long ago; once it is heard of, no more that it was not there yet.
        last_error_at: when that was (unix seconds).
        was_there: it was serving before this front door began, so it is not warmed at its first sign of life.
        suspect: set to have its health looked at now.
    """

    url: str
    state: State = State.NEW
    in_flight: int = 0
    failed_checks: int = 0
    late: int = 0
    ejections: int = 0
    back_at: float = 0.0
    heard_of: bool = False
    last_error: str | None = None
    last_error_at: int | None = None
    was_there: bool = False
    suspect: asyncio.Event = field(default_factory=asyncio.Event)

    def is_healthy(self, now: float) -> bool:
        """A health check passed. Whether it now has to be warmed before it is up."""
        self.failed_checks = 0
        if not self.heard_of:
            self.heard_of, self.last_error, self.last_error_at = True, None, None
        returns = self.state is State.SLOW and now >= self.back_at
        if returns or (self.state is State.NEW and self.was_there):
            self.state = State.UP
        if self.state in (State.NEW, State.DOWN):
            self.state = State.WARMING
            return True
        return False

    def is_warm(self) -> None:
        """Warming has ended, one way or the other; a real request may have found it dead meanwhile."""
        if self.state is State.WARMING:
            self.state, self.late = State.UP, 0

    def failed_check(self, error: str) -> None:
        """A health check failed."""
        self.failed_checks += 1
        self._erred(error)
        if self.failed_checks >= FAILED_CHECKS or self.state is State.NEW:
            self.state = State.DOWN

    def refused(self, error: str) -> None:
        """It took no connection: it is down."""
        self._erred(error)
        self.state = State.DOWN
        self.suspect.set()

    def broke(self, error: str) -> None:
        """It took a request and gave no answer; its health is looked at now."""
        self._erred(error)
        self.suspect.set()

    def began(self, seconds: float, limit: float, now: float) -> None:
        """A stream began after so many seconds, or was given up after them."""
        if seconds < limit:
            self.late = 0
            return
        self.late += 1
        self._erred(f"no first byte within {limit:g} s")
        if self.late >= LATE_STREAMS and self.state is State.UP:
            self._eject(now)

    def _erred(self, error: str) -> None:
        self.last_error, self.last_error_at = error, int(time.time())

    def _eject(self, now: float) -> None:
        if now - self.back_at > FORGET_SECONDS:
            self.ejections = 0
        self.back_at = now + min(FIRST_BACKOFF_SECONDS * 2**self.ejections, LONGEST_BACKOFF_SECONDS)
        self.ejections += 1
        self.late = LATE_STREAMS - 1  # when it is back, one more is enough
        self.state = State.SLOW
        logger.warning("replica %s is slow (%s)", self.url, self.last_error)


class Busiest:
    """Requests by model over the last minutes."""

    def __init__(self) -> None:
        self._minutes: deque[tuple[int, Counter[str]]] = deque(maxlen=MINUTES)

    def count(self, model: str, now: float) -> None:
        """One request for a model."""
        minute = int(now // 60)
        if not self._minutes or self._minutes[-1][0] != minute:
            self._minutes.append((minute, Counter()))
        self._minutes[-1][1][model] += 1

    def top(self, number: int, now: float) -> list[str]:
        """The models with the most requests, the busiest first."""
        total: Counter[str] = Counter()
        for minute, counts in self._minutes:
            if minute > now // 60 - MINUTES:
                total += counts
        return [model for model, _ in total.most_common(number)]


class Replicas:
    """All replicas that are known.

    Attributes:
        urls: theirs; the same list for ever, so that others may keep it.
        all: the replicas, in the same order.
        busiest: what they are asked for.
    """

    def __init__(self, urls: Iterable[str] = ()) -> None:
        self.urls: list[str] = []
        self.all: list[Replica] = []
        self.busiest = Busiest()
        self.know(urls)

    def know(self, urls: Iterable[str]) -> tuple[list[Replica], list[Replica]]:
        """Replace the replicas by those at ``urls``; one that stays keeps its state.

        Returns:
            Those that have come, and those that have gone. Requests of the latter go on.
        """
        old = {replica.url: replica for replica in self.all}
        wanted = list(dict.fromkeys(urls))
        self.all = [old.get(url) or Replica(url) for url in wanted]
        self.urls[:] = wanted
        return [r for r in self.all if r.url not in old], [r for url, r in old.items() if url not in wanted]

    def take(self, model: str, tried: Collection[Replica] = ()) -> Replica | None:
        """The replica whose turn it is, its work counted at once; None when nobody is left to ask.

        Whoever takes one must :meth:`release` it when the answer is read or given up.

        Args:
            tried: those that have failed this request already.
        """
        pool = self.candidates(tried)
        if not pool:
            return None
        replica = within_bound(in_order(pool, model)) if len(pool) > 1 else pool[0]
        replica.in_flight += 1
        return replica

    def release(self, replica: Replica) -> None:
        """One answer less under way."""
        replica.in_flight -= 1

    def candidates(self, tried: Collection[Replica] = ()) -> list[Replica]:
        """Replicas that may be asked now: those that are up, and without any the next best."""
        left = [replica for replica in self.all if replica not in tried] if tried else self.all
        if all(replica.state is State.UP for replica in left):
            return left
        return next(filter(None, ([r for r in left if r.state in states] for states in TURNS)), [])


def rendezvous(url: str, model: str) -> bytes:
    """A replica's place in the order of a model; it depends on nothing else, so the others' leaving moves nobody."""
    return hashlib.sha256(f"{url} {model}".encode()).digest()


def in_order(replicas: Iterable[Replica], model: str) -> list[Replica]:
    """Replicas in the order in which they are asked for a model."""
    return sorted(replicas, key=lambda replica: rendezvous(replica.url, model))


def bound(replicas: Sequence[Replica]) -> int:
    """How many requests one of them may have under way."""
    mean = sum(replica.in_flight for replica in replicas) / len(replicas)
    return math.ceil(BOUND * mean + 1)


def within_bound(order: Sequence[Replica]) -> Replica:
    """The first that can take one more; one that has the mean or less always can."""
    most = bound(order)
    return next(replica for replica in order if replica.in_flight < most)
