"""Unloading through the guard, in front of a replacement for vLLM's server that has the real server's state."""

from __future__ import annotations

import asyncio
import hashlib
import json

import pytest

from serving.middleware.guard import GuardMiddleware
from serving.middleware.in_flight import InFlightRequests
from serving.middleware.unloading import Unloader
from shared.artifacts.manifests import MANIFEST_NAME
from shared.errors import NotFound
from tests.support.asgi_call import call_asgi
from tests.support.vllm_stand_in import FakeVllm

KEY = "guard-key"


class Replica:
    """The guard, what is behind it, and the stored folder of one adapter."""

    def __init__(self, installation, store, manifest):
        self.storage, self.store = installation.storage, store
        self.id, self.digest = manifest.adapter_id, manifest.digest
        self.raw = manifest.to_bytes()
        self.vllm = FakeVllm(store)
        self.guard = GuardMiddleware(self.vllm, KEY, lambda: store)

    async def call(self, method, path, body=b"", query=b"", key=KEY):
        scope = {"query_string": query, "app": self.vllm}
        return await call_asgi(self.guard, method, path, key=key, body=body, **scope)

    def complete(self, model=None):
        return self.call("POST", "/v1/completions", json.dumps({"model": model or self.id}).encode())

    async def complete_in_the_background(self):
        task = asyncio.create_task(self.complete())
        await self.vllm.arrived.wait()
        return task

    async def unload(self, query=b""):
        response = await self.call("DELETE", f"/mens/adapters/{self.id}", query=query)
        return response.status, json.loads(response.body)

    def unpublish(self):
        self.storage.unpublish("adapters", self.digest, MANIFEST_NAME)

    def publish_again(self):
        (self.storage.folder("adapters", self.digest) / MANIFEST_NAME).write_bytes(self.raw)


@pytest.fixture
def replica(serving_installation, request, tmp_path, monkeypatch):
    monkeypatch.setattr("serving.middleware.unloading.WAIT_SECONDS", 0.2)
    name = f"unloaded-{hashlib.sha256(request.node.name.encode()).hexdigest()[:8]}"
    store = serving_installation.store(tmp_path / "cache")
    replica = Replica(serving_installation, store, serving_installation.publish(name, seed=41))
    yield replica
    replica.publish_again()
    store.close()


def test_idle_adapter_leaves_engine_then_server_then_disk(replica):
    async def scenario():
        replica.vllm.release.set()
        assert (await replica.complete()).status == 200
        replica.unpublish()
        return await replica.unload()

    assert asyncio.run(scenario()) == (200, {"id": replica.id, "state": "unloaded", "requests": 0})
    assert replica.vllm.calls == [("remove", 7, [replica.digest]), ("unload", replica.id, [replica.digest])]
    assert replica.vllm.files() == []


def test_requests_in_flight_end_first_and_no_new_ones_begin(replica):
    async def scenario():
        running = await replica.complete_in_the_background()
        replica.unpublish()
        assert await replica.unload() == (202, {"id": replica.id, "state": "draining", "requests": 1})
        refused = await replica.complete()
        assert (refused.status, refused.error["code"]) == (404, "ADAPTER_NOT_FOUND")
        assert replica.vllm.files() == [replica.digest]
        replica.vllm.release.set()
        assert (await running).body == b"completion"
        return await replica.unload()

    assert asyncio.run(scenario())[1]["state"] == "unloaded"
    assert replica.vllm.files() == []


def test_other_adapters_respond_while_one_drains(replica, serving_installation):
    other = serving_installation.publish("kept", seed=42).adapter_id

    async def scenario():
        running = await replica.complete_in_the_background()
        replica.unpublish()
        await replica.unload()
        completion = asyncio.create_task(replica.complete(other))
        await asyncio.sleep(0.05)
        replica.vllm.release.set()
        await running
        assert (await replica.unload())[0] == 200
        return await completion

    assert asyncio.run(scenario()).status == 200


def test_requests_are_aborted_after_drain_time(replica):
    async def scenario():
        running = await replica.complete_in_the_background()
        replica.unpublish()
        assert (await replica.unload(b"drain_seconds=3600"))[0] == 202
        unloaded = await replica.unload(b"drain_seconds=0")
        return unloaded, (await running).status

    assert asyncio.run(scenario()) == ((200, {"id": replica.id, "state": "unloaded", "requests": 0}), 200)


def test_files_stay_while_engine_has_request_of_disconnected_caller(replica):
    async def scenario():
        replica.vllm.release.set()
        replica.vllm.lingers = True
        await replica.complete()
        replica.unpublish()
        assert await replica.unload() == (202, {"id": replica.id, "state": "draining", "requests": 1})
        assert replica.vllm.calls == []
        assert replica.vllm.files() == [replica.digest]
        replica.vllm.states.clear()
        return await replica.unload()

    assert asyncio.run(scenario())[0] == 200


@pytest.mark.parametrize("broken", ["remove_lora", "unload_lora_adapter", "output_processor", "state"])
def test_files_stay_when_vllm_internals_differ(replica, broken):
    async def refuse(*_):
        raise RuntimeError("no such thing")

    async def scenario():
        replica.vllm.release.set()
        await replica.complete()
        replica.unpublish()
        owner = {"remove_lora": replica.vllm.client, "unload_lora_adapter": replica.vllm.models}.get(broken)
        if owner:
            setattr(owner, broken, refuse)
        elif broken == "output_processor":
            del replica.vllm.client.output_processor
        else:
            del replica.vllm.state
        return await replica.unload()

    status, body = asyncio.run(scenario())
    assert (status, body["error"]["code"]) == (500, "INTERNAL_ERROR")
    assert replica.vllm.files() == [replica.digest]


def test_files_stay_when_vllm_does_not_unload(replica):
    async def scenario():
        replica.vllm.release.set()
        await replica.complete()
        replica.unpublish()
        replica.vllm.models.unload_lora_adapter = lambda request: asyncio.sleep(0)
        return await replica.unload()

    assert asyncio.run(scenario())[0] == 500
    assert replica.vllm.files() == [replica.digest]


def test_published_adapter_is_not_unloaded(replica):
    async def scenario():
        replica.vllm.release.set()
        await replica.complete()
        refused = await replica.unload()
        return refused, (await replica.complete()).status

    (status, body), completed = asyncio.run(scenario())
    assert (status, body["error"]["code"], completed) == (409, "ADAPTER_STILL_STORED", 200)
    assert replica.vllm.calls == []


def test_unload_of_never_loaded_adapter_is_idempotent(replica):
    async def scenario():
        replica.unpublish()
        return [await replica.unload() for _ in range(3)]

    assert {status for status, _ in asyncio.run(scenario())} == {200}
    assert {name for name, *_ in replica.vllm.calls} == {"unload"}


def test_deleted_adapter_is_not_found_until_published_again(replica):
    async def scenario():
        replica.vllm.release.set()
        await replica.complete()
        replica.unpublish()
        await replica.unload()
        with pytest.raises(NotFound):  # vLLM answers 404 for it
            await replica.complete()
        replica.publish_again()
        return (await replica.complete()).status

    assert asyncio.run(scenario()) == 200
    assert replica.vllm.files() == [replica.digest]


def test_adapter_published_again_while_draining_is_kept(replica):
    async def scenario():
        running = await replica.complete_in_the_background()
        replica.unpublish()
        await replica.unload()
        assert (await replica.complete()).status == 404
        replica.publish_again()
        again = asyncio.create_task(replica.complete())
        await asyncio.sleep(0.1)
        refused = await replica.unload()
        replica.vllm.release.set()
        return refused[0], (await running).status, (await again).status

    assert asyncio.run(scenario()) == (409, 200, 200)
    assert replica.vllm.calls == []


def test_request_during_removal_waits_and_gets_new_files(replica):
    async def scenario():
        replica.vllm.release.set()
        await replica.complete()
        replica.unpublish()
        reached, go_on = asyncio.Event(), asyncio.Event()

        async def slow(number):
            reached.set()
            await go_on.wait()

        replica.vllm.client.remove_lora = slow
        unloading = asyncio.create_task(replica.unload())
        await reached.wait()
        replica.publish_again()
        completion = asyncio.create_task(replica.complete())
        await asyncio.sleep(0.1)
        assert not completion.done()
        go_on.set()
        return (await unloading)[0], (await completion).status

    assert asyncio.run(scenario()) == (200, 200)
    assert replica.vllm.files() == [replica.digest]


def test_invalid_unload_requests_are_refused(replica):
    async def scenario():
        path = f"/mens/adapters/{replica.id}"
        return [
            await replica.call("DELETE", path, key="wrong"),
            await replica.call("DELETE", "/mens/adapters/../x"),
            await replica.call("DELETE", "/mens/adapters/nothing"),
            await replica.call("DELETE", path, query=b"drain_seconds=soon"),
        ]

    responses = asyncio.run(scenario())
    assert [(response.status, response.error["code"]) for response in responses] == [
        (401, "KEY_INVALID"),
        (404, "ROUTE_NOT_FOUND"),
        (400, "NAME_INVALID"),
        (400, "REQUEST_INVALID"),
    ]


def test_name_that_is_not_an_adapter_id_is_admitted(replica):
    asyncio.run(Unloader(InFlightRequests(), lambda: replica.store).admit("tiny-base"))
