"""Keep the verified copies of adapters in a replica within a size: the least recently requested ones are dropped."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from serving.adapter_store import AdapterStore
from serving.middleware.unloading import Unloader
from serving.middleware.vllm_engine import Engine


class CacheLimit:
    """Bound on the bytes of an adapter store. Adapters with requests in flight stay, even if they exceed the bound.

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
        # Two concurrent requests would each drop enough adapters for both.
        self._making_room = asyncio.Lock()

    async def apply(self, model: str, engine: Callable[[], Engine]) -> None:
        """Record a request for a model, and drop adapters until the rest fit.

        Args:
            model: the model whose request has ended.
            engine: returns vLLM's engine; called only if an adapter is to be dropped.
        """
        if self._max_bytes is None:
            return
        store = await asyncio.to_thread(self._open_store)
        cached = store.cached()
        # Keep only cached names: callers choose names, and could send any number of them.
        self._requested_at = {name: at for name, at in self._requested_at.items() if name in cached}
        if model in cached:
            self._requested_at[model] = time.monotonic()
        # A single request drops adapters on behalf of all; the others do not wait for it.
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
