"""Unloads an adapter that is no longer published: drained, then out of the engine, then its files.

    DELETE ─► storage has its manifest? ─► refused: it is there
           ─► no new requests ─► those under way end, or are ended when the time is over
           ─► engine forgets it ─► server forgets it ─► its files go

vLLM reads an evicted adapter's files again when a request that it has taken needs them, and ends when they are gone. A
request that has left this server may still be in the engine: vLLM answers a caller that hung up before it has told the
engine. So files go only after two proofs:

1. No request of the adapter is left in vLLM's own list of requests. One is struck off in the moment in which the engine is
   told to give it up, if it did not end by itself.
2. The engine has dropped the adapter. It takes what it is told in order, and its workers too, so by then it has given up
   every such request and finished every step that had one.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

from serving.adapters import AdapterStore
from serving.engine import Engine
from serving.traffic import Traffic
from shared.errors import Code, Conflict, NotFound

WAIT_SECONDS = 1.0
"""How long a call waits for requests to end; whoever unloads asks again."""

log = logging.getLogger("vllm.mens.unloading")


class Unloader:
    """Unloads adapters from one engine.

    Args:
        traffic: the requests under way.
        open_store: gives the store of verified adapters.
    """

    def __init__(self, traffic: Traffic, open_store: Callable[[], AdapterStore]) -> None:
        self._traffic = traffic
        self._open_store = open_store
        self._last_step = asyncio.Lock()

    async def admit(self, model: str) -> None:
        """Let a request for a model pass.

        Raises:
            NotFound: ``ADAPTER_NOT_FOUND``: it is being unloaded, or was.
        """
        if not self._traffic.is_closed(model):
            return
        async with self._last_step:  # what is being removed is not asked for; what was, is found again or not
            if await asyncio.to_thread(self._is_stored, model):
                self._traffic.reopen(model)
        if self._traffic.is_closed(model):
            raise NotFound(
                Code.ADAPTER_NOT_FOUND,
                f"{model} was deleted.",
                remedy="List what there is with GET /v1/models.",
                param="model",
            )

    async def unload(self, adapter_id: str, engine: Engine, drain_seconds: float) -> dict[str, Any]:
        """Take an adapter a step nearer to being gone; asked again and again, it gets there. Harmless when it is.

        Args:
            adapter_id: of an adapter that storage no longer has.
            engine: where it may be loaded.
            drain_seconds: how long requests under way may go on, counted from the first call.

        Returns:
            ``id``, ``state`` (``unloaded``, or ``draining``: ask again) and ``requests``, the number still under way.

        Raises:
            InvalidRequest: ``NAME_INVALID``. Conflict: ``ADAPTER_STILL_STORED``: nothing was done, or it was published
                again meanwhile.
        """
        await self._refuse_stored(adapter_id)
        closed_for = self._traffic.close(adapter_id)
        idle = await self._traffic.wait_idle(adapter_id, WAIT_SECONDS)
        if not idle and closed_for >= drain_seconds:
            log.warning("%s: its requests have had %s s and are ended.", adapter_id, drain_seconds)
            await engine.abort(adapter_id)
            await self._traffic.wait_idle(adapter_id, WAIT_SECONDS)
        async with self._last_step:
            await self._refuse_stored(adapter_id)
            gone = not self._traffic.under_way(adapter_id) and await self._remove(adapter_id, engine)
        requests = max(self._traffic.under_way(adapter_id), engine.requests_of(adapter_id))
        return {"id": adapter_id, "state": "unloaded" if gone else "draining", "requests": requests}

    async def _remove(self, adapter_id: str, engine: Engine) -> bool:
        """The two proofs, then the files; False when the engine still has a request of it."""
        if engine.requests_of(adapter_id):
            return False
        await engine.unload(adapter_id)
        store = await asyncio.to_thread(self._open_store)
        await asyncio.to_thread(store.forget, adapter_id)
        # Storage says from here on that it is not there; and when it is published again, that it is.
        self._traffic.reopen(adapter_id)
        log.info("%s is unloaded and its files are removed.", adapter_id)
        return True

    async def _refuse_stored(self, adapter_id: str) -> None:
        if await asyncio.to_thread(self._is_stored, adapter_id):
            self._traffic.reopen(adapter_id)
            raise Conflict(
                Code.ADAPTER_STILL_STORED,
                f"{adapter_id} is published: the storage has it.",
                remedy="Delete it at the front door, which takes it out of the storage first.",
                param="id",
            )

    def _is_stored(self, adapter_id: str) -> bool:
        return self._open_store().is_stored(adapter_id)
