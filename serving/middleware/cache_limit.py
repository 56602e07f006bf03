"""A limit on the total size of the verified copies of adapters; the least recently requested ones are removed."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from serving.adapter_store import AdapterStore
from serving.middleware.unloading import Unloader
from serving.middleware.vllm_engine import Engine


class CacheLimit:
    """Limit on the bytes in an adapter store. Adapters with requests in flight stay, even if the limit is exceeded.

    Args:
        unloader: drops an adapter from the engine before its files are removed.
        open_store: returns the store of verified adapters.
        max_bytes: largest number of bytes of all adapters together; None: no limit.
    """

    def __init__(self, unloader: Unloader, open_store: Callable[[], AdapterStore], max_bytes: int | None) -> None:
        self._unloader = unloader
        self._open_store = open_store
        self._max_bytes = max_bytes
        self._requested_at: dict[str, float] = {}
        # Without the lock, two concurrent requests would each drop enough adapters for both.
        self._making_room = asyncio.Lock()

    async def apply(self, model: str, engine: Callable[[], Engine]) -> None:
        """Record a request for a model, and drop adapters until the remaining ones fit the limit.

        Args:
            model: the model whose request has ended.
            engine: returns vLLM's engine; called only if an adapter is to be dropped.
        """
        if self._max_bytes is None:
            return
        store = await asyncio.to_thread(self._open_store)
        cached = store.cached()
        # Keep only names of cached adapters: callers choose the names, so their number is unlimited.
        self._requested_at = {name: at for name, at in self._requested_at.items() if name in cached}
        if model in cached:
            self._requested_at[model] = time.monotonic()
        # If another request is already dropping adapters, do not wait for it.
        if sum(cached.values()) <= self._max_bytes or self._making_room.locked():
            return
        async with self._making_room:
            await self._make_room(cached, engine())

    async def _make_room(self, cached: dict[str, int], engine: Engine) -> None:
        total = sum(cached.values())
        for name in sorted(cached, key=lambda name: self._requested_at.get(name, 0.0)):
            if self._max_bytes is None or total <= self._max_bytes:
                return
            if await self._unloader.evict(name, engine):
                total -= cached[name]
