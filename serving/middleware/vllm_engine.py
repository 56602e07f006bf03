"""The engine behind the wall, as far as an unload needs it: which requests of an adapter it has, and how to make it forget one.

vLLM offers no route for that, so this goes to the objects that its server keeps in ``app.state``, in the shape of the
release that is pinned. In another shape it fails, and then nothing is removed.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any


class Engine:
    """vLLM's engine, in the server's event loop.

    Args:
        app: vLLM's application, as the ASGI scope has it.
    """

    def __init__(self, app: Any) -> None:
        self._client = app.state.engine_client
        self._models = app.state.openai_serving_models

    def requests_of(self, adapter_id: str) -> int:
        """Requests of an adapter that the engine was given and that have not ended, queued ones too."""
        return len(self._request_ids(adapter_id))

    async def abort(self, adapter_id: str) -> None:
        """End every request of an adapter; its caller gets what there is, with the finish reason ``abort``."""
        await self._client.abort(self._request_ids(adapter_id), internal=True)

    async def unload(self, adapter_id: str) -> None:
        """Forget an adapter, first in the engine, then in the server; one that was never loaded is no error.

        vLLM's own unload is the server's half alone: the engine goes on holding the weights under the adapter's number.

        Raises:
            RuntimeError: it did not; then nothing of the adapter may be removed.
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
