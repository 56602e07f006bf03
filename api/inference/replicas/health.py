"""Watches the serving replicas beside the requests: finds them, looks at their health, warms those that have come.

Nobody tells a replica about adapters: it fetches what it is first asked for. Warming is being asked, before the callers.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

import msgspec

from api.replica_client import BrokenOff, NotReached, ReplicaClient
from api.replicas import Replica, Replicas
from shared.errors import MensError
from shared.replicas import discover

HEALTH_TIMEOUT_SECONDS = 2.0
WARM_MODELS = 8

logger = logging.getLogger(__name__)


class Watch:
    """Background tasks of one event loop: one that discovers, and one for each replica.

    Args:
        replicas: told what is found.
        client: reaches replicas, with their key.
        urls: the static ones, read when the watch starts.
        dns: see `shared/replicas.py`.
        interval: seconds between two looks.
        warm_seconds: how long warming may take; then the replica takes part as it is.
    """

    def __init__(
        self,
        replicas: Replicas,
        client: ReplicaClient,
        urls: Sequence[str],
        dns: str = "",
        *,
        interval: float,
        warm_seconds: float,
    ) -> None:
        self._replicas = replicas
        self._client = client
        self._urls = urls
        self._dns = dns
        self._interval = interval
        self._warm_seconds = warm_seconds
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._looked = self._nameless = False
        self.started = False

    def start(self) -> None:
        """Begin to watch in the running loop; where it has begun, nothing happens."""
        if self.started:
            return
        self.started = True
        self._replicas.know(())  # made anew, so that all that are found now count as found now
        self._follow(discover(self._urls))
        self._looked = not self._dns
        if self._dns:
            self._tasks[""] = asyncio.create_task(self._discovering())

    async def close(self) -> None:
        """Stop watching."""
        tasks = list(self._tasks.values())
        self._tasks.clear()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _follow(self, urls: Sequence[str]) -> None:
        """Know these replicas and no others, and watch each."""
        come, gone = self._replicas.know(urls)
        for replica in gone:
            logger.info("replica %s has gone", replica.url)
            if task := self._tasks.pop(replica.url, None):
                task.cancel()
        for replica in self._replicas.all:
            if replica.url not in self._tasks:
                self._tasks[replica.url] = asyncio.create_task(self._watching(replica))
        for replica in come:
            replica.was_there = not self._looked
            logger.info("replica %s has come", replica.url)

    async def _discovering(self) -> None:
        """Look the name up again and again. While it has no address, what is known stays: health checks see who is dead."""
        while True:
            await _guarded(self._discover, "the replicas' name")
            await asyncio.sleep(self._interval)

    async def _discover(self) -> None:
        try:
            urls = await asyncio.to_thread(discover, self._urls, self._dns)
        except MensError as error:
            if not self._nameless:  # once, not at every look
                logger.warning("%s", error.message)
            self._nameless = True
            return
        self._follow(urls)
        self._looked, self._nameless = True, False

    async def _watching(self, replica: Replica) -> None:
        """Check one replica again and again, at once when a request has found something wrong with it."""
        replica.suspect = asyncio.Event()
        while True:
            replica.suspect.clear()
            await _guarded(lambda: self._check(replica), replica.url)
            try:
                await asyncio.wait_for(replica.suspect.wait(), self._interval)
                await asyncio.sleep(min(self._interval, 0.1))  # many requests may find the same
            except TimeoutError:
                pass

    async def _check(self, replica: Replica) -> None:
        before = replica.state
        error = await self._health(replica.url)
        if error:
            replica.failed_check(error)
        elif replica.is_healthy(time.monotonic()):
            await self._warm(replica)
            replica.is_warm()
        if replica.state is not before:
            logger.warning("replica %s is %s, was %s (%s)", replica.url, replica.state, before, error or "it answers")

    async def _health(self, url: str) -> str | None:
        """What is wrong with a replica; None: nothing."""
        try:
            async with asyncio.timeout(HEALTH_TIMEOUT_SECONDS):
                answer = await self._client.get(f"{url}/health")
        except (NotReached, BrokenOff, TimeoutError) as error:
            return f"health check: {error or type(error).__name__}"
        answer.close()
        return None if answer.ok else f"health check: status {answer.status}"

    async def _warm(self, replica: Replica) -> None:
        """Have the busiest models loaded; what cannot be loaded in time, its first caller waits for."""
        models = self._replicas.busiest.top(WARM_MODELS, time.monotonic())
        if not models or not self._warm_seconds:
            return
        try:
            async with asyncio.timeout(self._warm_seconds):
                for (
                    model
                ) in models:  # in turns: a replica loads one after the other anyway, and the busiest comes first
                    await self._ask_for_one_token(replica.url, model)
        except TimeoutError:
            logger.warning("replica %s did not load all of %s in time", replica.url, models)

    async def _ask_for_one_token(self, url: str, model: str) -> None:
        body = msgspec.json.encode({"model": model, "prompt": ".", "max_tokens": 1})
        try:
            answer = await self._client.post(f"{url}/v1/completions", body)
        except (NotReached, BrokenOff) as error:
            logger.warning("replica %s was not warmed with %s: %s", url, model, error)
            return
        answer.close()
        if not answer.ok:
            logger.warning("replica %s was not warmed with %s: status %d", url, model, answer.status)


async def _guarded(work: Callable[[], Coroutine[Any, Any, None]], what: str) -> None:
    """A watch that ends is worse than a look that failed."""
    try:
        await work()
    except Exception:
        logger.exception("watching %s met a bug", what)
