"""Unloading through the wall, around a stand-in of vLLM's server that keeps what the real one keeps."""

from __future__ import annotations

import asyncio
import hashlib
import json
from types import SimpleNamespace

import pytest

from serving.private_cache import LOCK_NAME
from serving.unloading import Unloader
from serving.wall import Wall
from shared.errors import NotFound
from shared.manifest import MANIFEST_NAME
from tests.serving.test_wall import Reply

KEY = "wall-key"


class Vllm:
    """An application with vLLM's ``state``: a completion stays in the engine until it is let go or aborted.

    ``lingers``: the engine has a request still when its caller has hung up and the application has returned.
    """

    def __init__(self, store):
        self.store = store
        self.told = []
        self.lingers = False
        self.arrived = asyncio.Event()
        self.let_go = asyncio.Event()
        self.ends = {}
        self.client = SimpleNamespace(
            output_processor=SimpleNamespace(request_states={}), abort=self.abort, remove_lora=self.remove_lora
        )
        self.models = SimpleNamespace(lora_requests={}, unload_lora_adapter=self.unload_lora_adapter)
        self.state = SimpleNamespace(engine_client=self.client, openai_serving_models=self.models)

    async def __call__(self, scope, receive, send):
        model = json.loads((await receive())["body"])["model"]
        if model not in self.models.lora_requests:
            await asyncio.to_thread(self.store.fetch, model)
            self.models.lora_requests[model] = SimpleNamespace(lora_int_id=len(self.told) + 7)
        number = f"request-{len(self.ends)}"
        self.states[number] = SimpleNamespace(lora_name=model)
        self.ends[number] = asyncio.Event()
        self.arrived.set()
        waits = [asyncio.create_task(event.wait()) for event in (self.let_go, self.ends[number])]
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        for wait in waits:
            wait.cancel()
        if not self.lingers:
            self.states.pop(number, None)
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"answer"})

    @property
    def states(self):
        return self.client.output_processor.request_states

    async def abort(self, ids, internal):
        assert internal
        for number in ids:
            self.states.pop(number)
            self.ends[number].set()

    async def remove_lora(self, number):
        self.told.append(("remove", number, self.files()))

    async def unload_lora_adapter(self, request):
        self.told.append(("unload", request.lora_name, self.files()))
        self.models.lora_requests.pop(request.lora_name, None)

    def files(self):
        return sorted(path.name for path in self.store._cache.folder.iterdir() if path.name != LOCK_NAME)


class Place:
    """A replica: the wall, what is behind it, and the storage's folder of one adapter."""

    def __init__(self, lab, store, manifest):
        self.lab, self.store = lab, store
        self.id, self.digest = manifest.adapter_id, manifest.digest
        self.raw = manifest.to_bytes()
        self.vllm = Vllm(store)
        self.wall = Wall(self.vllm, KEY, lambda: store)

    async def call(self, method, path, body=b"", query=b"", key=KEY):
        sent = []

        async def receive():
            return {"type": "http.request", "body": body}

        async def send(message):
            sent.append(message)

        headers = [(b"authorization", f"Bearer {key}".encode())]
        scope = {"type": "http", "method": method, "path": path, "headers": headers, "raw_path": path.encode()}
        await self.wall(scope | {"query_string": query, "app": self.vllm}, receive, send)
        return Reply(sent)

    def ask(self, model=None):
        return self.call("POST", "/v1/completions", json.dumps({"model": model or self.id}).encode())

    async def ask_in_the_background(self):
        task = asyncio.create_task(self.ask())
        await self.vllm.arrived.wait()
        return task

    async def unload(self, query=b""):
        reply = await self.call("DELETE", f"/mens/adapters/{self.id}", query=query)
        return reply.status, json.loads(reply.body)

    def withdraw(self):
        self.lab.storage.withdraw("adapters", self.digest, MANIFEST_NAME)

    def publish_again(self):
        (self.lab.storage.folder("adapters", self.digest) / MANIFEST_NAME).write_bytes(self.raw)


@pytest.fixture
def place(lab, request, tmp_path, monkeypatch):
    monkeypatch.setattr("serving.unloading.WAIT_SECONDS", 0.2)
    name = f"going-{hashlib.sha256(request.node.name.encode()).hexdigest()[:8]}"
    store = lab.store(tmp_path / "cache")
    place = Place(lab, store, lab.publish(name, seed=41))
    yield place
    place.publish_again()
    store.close()


def test_an_idle_adapter_leaves_engine_then_server_then_disk(place):
    async def story():
        place.vllm.let_go.set()
        assert (await place.ask()).status == 200
        place.withdraw()
        return await place.unload()

    assert asyncio.run(story()) == (200, {"id": place.id, "state": "unloaded", "requests": 0})
    assert place.vllm.told == [("remove", 7, [place.digest]), ("unload", place.id, [place.digest])]
    assert place.vllm.files() == []


def test_requests_under_way_end_first_and_no_new_ones_begin(place):
    async def story():
        running = await place.ask_in_the_background()
        place.withdraw()
        assert await place.unload() == (202, {"id": place.id, "state": "draining", "requests": 1})
        refused = await place.ask()
        assert (refused.status, refused.error["code"]) == (404, "ADAPTER_NOT_FOUND")
        assert place.vllm.files() == [place.digest]
        place.vllm.let_go.set()
        assert (await running).body == b"answer"
        return await place.unload()

    assert asyncio.run(story())[1]["state"] == "unloaded"
    assert place.vllm.files() == []


def test_others_are_answered_while_one_drains(place, lab):
    other = lab.publish("staying", seed=42).adapter_id

    async def story():
        running = await place.ask_in_the_background()
        place.withdraw()
        await place.unload()
        asked = asyncio.create_task(place.ask(other))
        await asyncio.sleep(0.05)
        place.vllm.let_go.set()
        await running
        assert (await place.unload())[0] == 200
        return await asked

    assert asyncio.run(story()).status == 200


def test_when_the_time_is_over_requests_are_ended(place):
    async def story():
        running = await place.ask_in_the_background()
        place.withdraw()
        assert (await place.unload(b"drain_seconds=3600"))[0] == 202
        answer = await place.unload(b"drain_seconds=0")
        return answer, (await running).status

    assert asyncio.run(story()) == ((200, {"id": place.id, "state": "unloaded", "requests": 0}), 200)


def test_files_stay_while_the_engine_has_a_request_whose_caller_has_gone(place):
    async def story():
        place.vllm.let_go.set()
        place.vllm.lingers = True
        await place.ask()
        place.withdraw()
        assert await place.unload() == (202, {"id": place.id, "state": "draining", "requests": 1})
        assert place.vllm.told == []
        assert place.vllm.files() == [place.digest]
        place.vllm.states.clear()
        return await place.unload()

    assert asyncio.run(story())[0] == 200


@pytest.mark.parametrize("broken", ["remove_lora", "unload_lora_adapter", "output_processor", "state"])
def test_files_stay_when_vllm_is_not_as_it_was(place, broken):
    async def refuse(*_):
        raise RuntimeError("no such thing")

    async def story():
        place.vllm.let_go.set()
        await place.ask()
        place.withdraw()
        owner = {"remove_lora": place.vllm.client, "unload_lora_adapter": place.vllm.models}.get(broken)
        if owner:
            setattr(owner, broken, refuse)
        elif broken == "output_processor":
            del place.vllm.client.output_processor
        else:
            del place.vllm.state
        return await place.unload()

    status, body = asyncio.run(story())
    assert (status, body["error"]["code"]) == (500, "INTERNAL_ERROR")
    assert place.vllm.files() == [place.digest]


def test_an_unload_that_did_nothing_removes_nothing(place):
    async def story():
        place.vllm.let_go.set()
        await place.ask()
        place.withdraw()
        place.vllm.models.unload_lora_adapter = lambda request: asyncio.sleep(0)
        return await place.unload()

    assert asyncio.run(story())[0] == 500
    assert place.vllm.files() == [place.digest]


def test_what_is_published_is_not_unloaded(place):
    async def story():
        place.vllm.let_go.set()
        await place.ask()
        refused = await place.unload()
        return refused, (await place.ask()).status

    (status, body), asked = asyncio.run(story())
    assert (status, body["error"]["code"], asked) == (409, "ADAPTER_STILL_STORED", 200)
    assert place.vllm.told == []


def test_repeated_and_never_loaded(place):
    async def story():
        place.withdraw()
        return [await place.unload() for _ in range(3)]

    assert {status for status, _ in asyncio.run(story())} == {200}
    assert {what for what, *_ in place.vllm.told} == {"unload"}


def test_a_deleted_adapter_is_not_found_again_until_it_is_published_again(place):
    async def story():
        place.vllm.let_go.set()
        await place.ask()
        place.withdraw()
        await place.unload()
        with pytest.raises(NotFound):  # vLLM answers 404 for it
            await place.ask()
        place.publish_again()
        return (await place.ask()).status

    assert asyncio.run(story()) == 200
    assert place.vllm.files() == [place.digest]


def test_published_again_while_it_drains(place):
    async def story():
        running = await place.ask_in_the_background()
        place.withdraw()
        await place.unload()
        assert (await place.ask()).status == 404
        place.publish_again()
        again = asyncio.create_task(place.ask())
        await asyncio.sleep(0.1)
        refused = await place.unload()
        place.vllm.let_go.set()
        return refused[0], (await running).status, (await again).status

    assert asyncio.run(story()) == (409, 200, 200)
    assert place.vllm.told == []


def test_a_request_waits_while_files_are_being_removed_and_then_finds_the_new_ones(place):
    async def story():
        place.vllm.let_go.set()
        await place.ask()
        place.withdraw()
        reached, go_on = asyncio.Event(), asyncio.Event()

        async def slow(number):
            reached.set()
            await go_on.wait()

        place.vllm.client.remove_lora = slow
        unloading = asyncio.create_task(place.unload())
        await reached.wait()
        place.publish_again()
        asked = asyncio.create_task(place.ask())
        await asyncio.sleep(0.1)
        assert not asked.done()
        go_on.set()
        return (await unloading)[0], (await asked).status

    assert asyncio.run(story()) == (200, 200)
    assert place.vllm.files() == [place.digest]


def test_what_can_be_wrong_with_the_call(place):
    async def story():
        path = f"/mens/adapters/{place.id}"
        return [
            await place.call("DELETE", path, key="wrong"),
            await place.call("DELETE", "/mens/adapters/../x"),
            await place.call("DELETE", "/mens/adapters/nothing"),
            await place.call("DELETE", path, query=b"drain_seconds=soon"),
        ]

    replies = asyncio.run(story())
    assert [(reply.status, reply.error["code"]) for reply in replies] == [
        (401, "KEY_INVALID"),
        (404, "ROUTE_NOT_FOUND"),
        (400, "NAME_INVALID"),
        (400, "REQUEST_INVALID"),
    ]


def test_a_name_that_is_no_adapter_passes(place):
    from serving.traffic import Traffic

    asyncio.run(Unloader(Traffic(), lambda: place.store).admit("tiny-base"))
