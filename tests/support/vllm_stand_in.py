"""A replacement for vLLM's server with the state that unloading reads; `tests/vllm/test_unload.py` tests the real one."""

from __future__ import annotations

import asyncio
import json
from types import SimpleNamespace
from typing import Any

from serving.adapter_store import AdapterStore
from serving.middleware.asgi_types import Receive, Scope, Send
from serving.private_cache import LOCK_NAME


class FakeVllm:
    """An application with vLLM's ``state``: a completion stays in the engine until it is released or aborted.

    Attributes:
        calls: calls that made engine and server drop an adapter, each with the cached files at that moment.
        lingers: the engine still has a request when its caller has disconnected and the application has returned.
    """

    def __init__(self, store: AdapterStore) -> None:
        self.store = store
        self.calls: list[tuple[Any, ...]] = []
        self.lingers = False
        self.arrived = asyncio.Event()
        self.release = asyncio.Event()
        self.ends: dict[str, asyncio.Event] = {}
        self.client = SimpleNamespace(
            output_processor=SimpleNamespace(request_states={}), abort=self.abort, remove_lora=self.remove_lora
        )
        self.models = SimpleNamespace(lora_requests={}, unload_lora_adapter=self.unload_lora_adapter)
        self.state = SimpleNamespace(engine_client=self.client, openai_serving_models=self.models)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        model = json.loads((await receive())["body"])["model"]
        if model not in self.models.lora_requests:
            await asyncio.to_thread(self.store.fetch, model)
            self.models.lora_requests[model] = SimpleNamespace(lora_int_id=len(self.calls) + 7)
        number = f"request-{len(self.ends)}"
        self.states[number] = SimpleNamespace(lora_name=model)
        self.ends[number] = asyncio.Event()
        self.arrived.set()
        waits = [asyncio.create_task(event.wait()) for event in (self.release, self.ends[number])]
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        for wait in waits:
            wait.cancel()
        if not self.lingers:
            self.states.pop(number, None)
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"completion"})

    @property
    def states(self) -> dict[str, Any]:
        states: dict[str, Any] = self.client.output_processor.request_states
        return states

    async def abort(self, ids: list[str], internal: bool) -> None:
        assert internal
        for number in ids:
            self.states.pop(number)
            self.ends[number].set()

    async def remove_lora(self, number: int) -> None:
        self.calls.append(("remove", number, self.files()))

    async def unload_lora_adapter(self, request: Any) -> None:
        self.calls.append(("unload", request.lora_name, self.files()))
        self.models.lora_requests.pop(request.lora_name, None)

    def files(self) -> list[str]:
        return sorted(path.name for path in self.store._cache.folder.iterdir() if path.name != LOCK_NAME)
