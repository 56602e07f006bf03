"""Unloads an adapter that is no longer published: its requests end, the engine drops it, and its files are deleted.

    DELETE ─► storage still has its manifest? ─► refused
           ─► no new requests ─► those in flight end, or are aborted when the time is over
           ─► engine drops it ─► server drops it ─► files are deleted

If an adapter was evicted from memory, vLLM reads its files again for the next request that it has accepted, and exits
if they are missing. A request that has ended in this server may still be in the engine: when a caller disconnects, vLLM
returns before it notifies the engine. So files are deleted only if two conditions hold:

1. vLLM's own list of requests contains none of the adapter. A request is removed from that list when it ends, or when
   the engine gets the command to abort it.
2. The engine has dropped the adapter. Engine and workers process their commands in order, so by then they have aborted
   all requests of the adapter and finished every step that included one.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from serving.adapter_store import AdapterStore
from serving.metrics import ADAPTER_EVICTIONS, ADAPTER_UNLOADS
from serving.middleware.in_flight import InFlightRequests
from serving.middleware.vllm_engine import Engine
from shared.errors import Code, Conflict, NotFound
from shared.replicas import UnloadProgress

WAIT_SECONDS = 1.0
"""Time that one call waits for requests to end; the caller repeats the call."""

log = logging.getLogger("vllm.mens.unloading")


class Unloader:
    """Unloads adapters from one engine.

    Args:
        in_flight: the requests in flight.
        open_store: returns the store of verified adapters.
    """

    def __init__(self, in_flight: InFlightRequests, open_store: Callable[[], AdapterStore]) -> None:
        self._in_flight = in_flight
        self._open_store = open_store
        # One removal at a time: two would each count the requests before the other one closes the adapter.
        self._removing = asyncio.Lock()

    async def admit(self, model: str) -> None:
        """Admit a request for a model.

        Raises:
            NotFound: ``ADAPTER_NOT_FOUND``: the adapter is being unloaded, or was unloaded.
        """
        if not self._in_flight.is_closed(model):
            return
        # Wait for a removal in progress. Afterwards, the adapter is either unloaded, or was published again and can be
        # fetched.
        async with self._removing:
            if await asyncio.to_thread(self._is_stored, model):
                self._in_flight.reopen(model)
        if self._in_flight.is_closed(model):
            raise NotFound(
                Code.ADAPTER_NOT_FOUND,
                f"{model} was deleted.",
                remedy="List the available models with GET /v1/models.",
                param="model",
            )

    async def unload(self, adapter_id: str, engine: Engine, drain_seconds: float) -> UnloadProgress:
        """Advance the unload of an adapter; the caller repeats the call until the adapter is unloaded. Idempotent.

        Args:
            adapter_id: id of an adapter that the storage no longer has.
            engine: the engine in which the adapter may be loaded.
            drain_seconds: time that requests in flight may take, counted from the first call.

        Returns:
            Whether the adapter is unloaded, and the number of its requests still in flight.

        Raises:
            Conflict: ``ADAPTER_STILL_STORED``: the storage has the adapter, from the beginning or because it was
                published again meanwhile.
        """
        await self._refuse_stored(adapter_id)
        closed_for = self._in_flight.close(adapter_id)
        idle = await self._in_flight.wait_idle(adapter_id, WAIT_SECONDS)
        if not idle and closed_for >= drain_seconds:
            log.warning("The requests to %s did not finish within %s s and are aborted.", adapter_id, drain_seconds)
            await engine.abort(adapter_id)
            await self._in_flight.wait_idle(adapter_id, WAIT_SECONDS)
        async with self._removing:
            # Check again: the adapter may have been published while its requests were completed.
            await self._refuse_stored(adapter_id)
            requests = max(self._in_flight.count(adapter_id), engine.requests_of(adapter_id))
            if requests:
                return UnloadProgress(id=adapter_id, state="draining", requests=requests)
            # Drop it from the engine first, so that the engine never has an adapter whose files are missing.
            await engine.unload(adapter_id)
            store = await asyncio.to_thread(self._open_store)
            await asyncio.to_thread(store.remove, adapter_id)
            ADAPTER_UNLOADS.inc()
            # From here on, the storage alone decides whether new requests find the adapter.
            self._in_flight.reopen(adapter_id)
        log.info("%s was unloaded, and its files were removed.", adapter_id)
        return UnloadProgress(id=adapter_id, state="unloaded", requests=0)

    async def evict(self, adapter_id: str, engine: Engine) -> bool:
        """Drop an idle adapter and remove its files to free space; the next request for it fetches them again.

        Requests for it that arrive meanwhile wait until it is removed, and then fetch it again.

        Returns:
            Whether the adapter was dropped. It stays if it has requests in flight or is being deleted.
        """
        async with self._removing:
            if self._in_flight.is_closed(adapter_id):
                return False
            # Close the adapter before counting its requests: requests that arrive from here on wait.
            self._in_flight.close(adapter_id)
            try:
                if self._in_flight.count(adapter_id) or engine.requests_of(adapter_id):
                    return False
                # The engine first, as in `unload`: it exits if it reloads an adapter without files.
                await engine.unload(adapter_id)
                store = await asyncio.to_thread(self._open_store)
                await asyncio.to_thread(store.remove, adapter_id)
            finally:
                # Also after an error: the requests that wait for this adapter have no other end.
                self._in_flight.reopen(adapter_id)
        ADAPTER_EVICTIONS.inc()
        log.info("%s was removed from the cache to make room.", adapter_id)
        return True

    async def _refuse_stored(self, adapter_id: str) -> None:
        if await asyncio.to_thread(self._is_stored, adapter_id):
            self._in_flight.reopen(adapter_id)
            raise Conflict(
                Code.ADAPTER_STILL_STORED,
                f"{adapter_id} is still published: the storage contains it.",
                remedy="Delete it through the Mens API, which removes it from the storage first: DELETE "
                "/v1/models/{id}.",
                param="id",
            )

    def _is_stored(self, adapter_id: str) -> bool:
        return self._open_store().is_stored(adapter_id)
