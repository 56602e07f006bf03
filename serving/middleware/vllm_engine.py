"""Access to vLLM's engine for unloading an adapter: count its requests, end them, drop the adapter.

vLLM has no route for this, so this module uses the objects that vLLM's server keeps in ``app.state``, with the
attributes of the pinned release. If a later release has different attributes, the unload fails and no files are
removed.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any


class Engine:
    """vLLM's engine, in the server's event loop.

    Args:
        app: vLLM's application, from the ASGI scope.
    """

    def __init__(self, app: Any) -> None:
        self._client = app.state.engine_client
        self._models = app.state.openai_serving_models

    def requests_of(self, adapter_id: str) -> int:
        """Return the number of an adapter's unfinished requests in the engine, queued ones included."""
        return len(self._request_ids(adapter_id))

    async def abort(self, adapter_id: str) -> None:
        """End every request of an adapter; the caller gets the output so far, with the finish reason ``abort``."""
        await self._client.abort(self._request_ids(adapter_id), internal=True)

    async def unload(self, adapter_id: str) -> None:
        """Drop an adapter, first from the engine, then from the server. Does nothing if the adapter is not loaded.

        vLLM's own unload affects only the server: the engine would keep the weights under the adapter's number.

        Raises:
            RuntimeError: the engine still has the adapter, so its files may not be removed.
        """
        loaded = self._models.lora_requests.get(adapter_id)
        if loaded is not None:
            await self._client.remove_lora(loaded.lora_int_id)
        await self._models.unload_lora_adapter(SimpleNamespace(lora_name=adapter_id))
        if adapter_id in self._models.lora_requests or self.requests_of(adapter_id):
            raise RuntimeError(f"vLLM did not unload {adapter_id}")

    def _request_ids(self, adapter_id: str) -> list[str]:
        requests = self._client.output_processor.request_states
        return [request_id for request_id, state in requests.items() if state.lora_name == adapter_id]
