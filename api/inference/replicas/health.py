"""Health monitor: discovers the serving replicas, checks their health, reads what they serve, and warms new or
recovered ones.

A replica loads an adapter when it gets the first request for it. Warming is such a request, sent before the callers'
requests.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence

import msgspec

from api.inference.replicas.client import ReplicaClient, ReplicaDisconnected, ReplicaUnreachable
from api.inference.replicas.pool import Replica, ReplicaPool, ReplicaState
from shared.errors import MensError
from shared.replicas import ReplicaCapabilities, discover

HEALTH_TIMEOUT_SECONDS = 2.0
# A replica gets its first requests only after these are loaded, one after the other.
WARM_MODELS = 8

logger = logging.getLogger(__name__)


class HealthMonitor:
    """Background tasks of one event loop: one that discovers replicas, and one for each replica.

    Args:
        replicas: the pool that is kept up to date.
        client: reaches replicas, with their key.
        urls: static URLs, read when the monitor starts.
        dns: see `shared/replicas.py`.
        interval: seconds between two checks.
        warm_seconds: longest warming; after that the replica gets requests in its current state.
    """

    def __init__(
        self,
        replicas: ReplicaPool,
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
        self._has_resolved = self._unresolved_logged = False
        self.started = False

    def start(self) -> None:
        """Start watching in the running loop; the second call does nothing."""
        if self.started:
            return
        self.started = True
        self._replicas.update(())  # recreated, so that all replicas found now count as present at the start
        self._follow(discover(self._urls))
        self._has_resolved = not self._dns
        if self._dns:
            self._tasks[""] = asyncio.create_task(self._keep_discovering())

    async def close(self) -> None:
        """Stop watching."""
        tasks = list(self._tasks.values())
        self._tasks.clear()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _follow(self, urls: Sequence[str]) -> None:
        """Keep exactly these replicas in the pool, and watch each."""
        added, removed = self._replicas.update(urls)
        for replica in removed:
            logger.info("replica %s removed", replica.url)
            if task := self._tasks.pop(replica.url, None):
                task.cancel()
        for replica in self._replicas.all:
            if replica.url not in self._tasks:
                self._tasks[replica.url] = asyncio.create_task(self._keep_checking(replica))
        for replica in added:
            replica.was_there_at_start = not self._has_resolved
            logger.info("replica %s added", replica.url)

    async def _keep_discovering(self) -> None:
        """Resolve the name repeatedly. While it has no address, the known replicas stay; health checks find the dead
        ones.
        """
        while True:
            try:
                self._follow(await asyncio.to_thread(discover, self._urls, self._dns))
                self._has_resolved, self._unresolved_logged = True, False
            except MensError as error:
                if not self._unresolved_logged:
                    logger.warning("%s", error.message)
                self._unresolved_logged = True
            except Exception:  # the watch must continue, whatever went wrong with one lookup
                logger.exception("a bug in looking up the replicas' name")
            await asyncio.sleep(self._interval)

    async def _keep_checking(self, replica: Replica) -> None:
        """Check one replica repeatedly, at once when a request has found something wrong with it."""
        replica.check_now = asyncio.Event()
        while True:
            replica.check_now.clear()
            try:
                await self._check(replica)
            except Exception:  # the watch must continue, whatever went wrong with one check
                logger.exception("a bug in checking %s", replica.url)
            try:
                await asyncio.wait_for(replica.check_now.wait(), self._interval)
                # Pause, because many requests may report the same failure at once.
                await asyncio.sleep(min(self._interval, 0.1))
            except TimeoutError:
                pass

    async def _check(self, replica: Replica) -> None:
        before = replica.state
        try:
            async with asyncio.timeout(HEALTH_TIMEOUT_SECONDS):
                response = await self._client.get(f"{replica.url}/health")
        except (ReplicaUnreachable, ReplicaDisconnected, TimeoutError) as failure:
            error: str | None = f"health check: {failure or type(failure).__name__}"
        else:
            response.close()
            error = None if response.ok else f"health check: status {response.status}"
        if error:
            replica.failed_check(error)
        else:
            # Each time, and before it gets requests: another replica may be at this address since the last check.
            replica.serves = await self._capabilities(replica.url) or replica.serves
        if before is not ReplicaState.DOWN and replica.state is ReplicaState.DOWN:
            error = replica.last_error  # a request has found it down since the check began
        if not error and replica.passed_check(time.monotonic()):
            await self._warm(replica)
            replica.finished_warming()
        if replica.state is not before:
            logger.warning("replica %s is %s, was %s (%s)", replica.url, replica.state, before, error or "it answers")

    async def _capabilities(self, url: str) -> ReplicaCapabilities | None:
        """Return a replica's capabilities; None if it does not report them."""
        try:
            async with asyncio.timeout(HEALTH_TIMEOUT_SECONDS):
                response = await self._client.get(f"{url}/mens/limits")
                try:
                    content = b"".join([chunk async for chunk in response])
                finally:
                    response.close()
            return ReplicaCapabilities.model_validate_json(content) if response.ok else None
        except (ReplicaUnreachable, ReplicaDisconnected, TimeoutError, ValueError):  # of another shape: another program
            return None

    async def _warm(self, replica: Replica) -> None:
        """Have the most requested models loaded; if one does not load in time, its first request waits for it."""
        models = self._replicas.popularity.top(WARM_MODELS, time.monotonic(), replica)
        if not models or not self._warm_seconds:
            return
        try:
            async with asyncio.timeout(self._warm_seconds):
                # One after the other: a replica loads only one at a time, and the most requested comes first.
                for model in models:
                    await self._load(replica.url, model)
        except TimeoutError:
            logger.warning("replica %s did not load all of %s in time", replica.url, models)

    async def _load(self, url: str, model: str) -> None:
        """Make a replica load a model, by a request for one token."""
        body = msgspec.json.encode({"model": model, "prompt": ".", "max_tokens": 1})
        try:
            response = await self._client.post(f"{url}/v1/completions", body)
        except (ReplicaUnreachable, ReplicaDisconnected) as error:
            logger.warning("replica %s was not warmed with %s: %s", url, model, error)
            return
        response.close()
        if not response.ok:
            logger.warning("replica %s was not warmed with %s: status %d", url, model, response.status)
