"""The limit on verified copies, through the guard in front of a replacement for vLLM's server."""

from __future__ import annotations

import asyncio
import json

import pytest

from serving.middleware.guard import GuardMiddleware
from tests.support.asgi_call import call_asgi
from tests.support.vllm_stand_in import FakeVllm

KEY = "guard-key"


class BoundedReplica:
    """The guard with a bound, and what is behind it; a completion ends at once unless it is held."""

    def __init__(self, store, max_bytes):
        self.store = store
        self.vllm = FakeVllm(store)
        self.vllm.release.set()
        self.guard = GuardMiddleware(self.vllm, KEY, lambda: store, cache_bytes=max_bytes)

    async def complete(self, model):
        body = json.dumps({"model": model}).encode()
        response = await call_asgi(self.guard, "POST", "/v1/completions", key=KEY, body=body, app=self.vllm)
        assert response.status == 200
        return response

    async def check(self, model):
        """As the publisher does, without a request for an answer."""
        response = await call_asgi(self.guard, "GET", f"/mens/adapters/{model}", key=KEY, app=self.vllm)
        assert response.status == 200

    def kept(self):
        return set(self.store.cached())


@pytest.fixture
def ids(serving_installation):
    """Ids of three adapters of one size."""
    return [serving_installation.publish(f"bounded-{seed}", seed=60).adapter_id for seed in range(3)]


@pytest.fixture
def replica(serving_installation, tmp_path, ids):
    """A replica with room for two of them."""
    probe = serving_installation.store(tmp_path / "probe")
    size = probe.fetch(ids[0]).bytes
    probe.close()
    store = serving_installation.store(tmp_path / "cache")
    yield BoundedReplica(store, 2 * size + size // 2)
    store.close()


def test_adapter_that_was_not_requested_for_longest_is_dropped(replica, ids):
    one, two, three = ids

    async def scenario():
        for model in (one, two, one, three):
            await replica.complete(model)

    asyncio.run(scenario())
    assert replica.kept() == {one, three}
    assert [call[1] for call in replica.vllm.calls if call[0] == "unload"] == [two]
    assert replica.vllm.files() == sorted(model.partition("@")[2] for model in (one, three))


def test_engine_drops_it_before_its_files_are_removed(replica, ids):
    async def scenario():
        for model in ids:
            await replica.complete(model)

    asyncio.run(scenario())
    dropped = ids[0].partition("@")[2]
    assert [call[0] for call in replica.vllm.calls] == ["remove", "unload"]
    assert all(dropped in files for *_, files in replica.vllm.calls)


def test_dropped_adapter_answers_again(replica, ids):
    async def scenario():
        for model in [*ids, ids[0]]:
            await replica.complete(model)

    asyncio.run(scenario())
    assert ids[0] in replica.kept()


def test_adapter_with_a_request_in_flight_stays(replica, ids):
    one, two, three = ids

    async def scenario():
        replica.vllm.release.clear()
        running = asyncio.create_task(replica.complete(one))
        await replica.vllm.arrived.wait()
        # The publisher's check fetches two others.
        await replica.check(two)
        await replica.check(three)
        assert one in replica.kept()
        assert len(replica.kept()) == 2
        replica.vllm.release.set()
        await running

    asyncio.run(scenario())
    assert one in replica.kept()


def test_adapter_whose_request_lingers_in_the_engine_stays(replica, ids):
    async def scenario():
        replica.vllm.lingers = True
        await replica.complete(ids[0])
        replica.vllm.lingers = False
        for model in ids[1:]:
            await replica.complete(model)

    asyncio.run(scenario())
    assert replica.kept() == {ids[0], ids[2]}


def test_request_that_comes_while_its_adapter_is_dropped_waits_and_is_answered(replica, ids, monkeypatch):
    async def scenario():
        dropping, go_on = asyncio.Event(), asyncio.Event()
        unload = replica.vllm.unload_lora_adapter

        async def slow(request):
            dropping.set()
            await go_on.wait()
            await unload(request)

        monkeypatch.setattr(replica.vllm.models, "unload_lora_adapter", slow)
        await replica.complete(ids[0])
        await replica.complete(ids[1])
        third = asyncio.create_task(replica.complete(ids[2]))
        await dropping.wait()
        again = asyncio.create_task(replica.complete(ids[0]))
        await asyncio.sleep(0.05)
        assert not again.done()
        go_on.set()
        await third
        await again

    asyncio.run(scenario())
    assert ids[0] in replica.kept()
    assert len(replica.kept()) == 2


def test_nothing_is_dropped_without_a_bound(serving_installation, tmp_path, ids):
    store = serving_installation.store(tmp_path / "cache")
    replica = BoundedReplica(store, None)

    async def scenario():
        for model in ids:
            await replica.complete(model)

    asyncio.run(scenario())
    assert replica.kept() == set(ids)
    store.close()


def test_bounded_cache_begins_empty(serving_installation, tmp_path, ids, monkeypatch):
    """The files of an earlier process are not known, so they could not be counted."""
    from serving.process import open_store

    settings = {"serving_cache_dir": tmp_path / "cache", "serving_max_lora_rank": 16}
    for bound, left in ((None, 1), (1 << 30, 0)):
        first = open_store(serving_installation.settings(**settings))
        first.fetch(ids[0])
        first.close()
        second = open_store(serving_installation.settings(**settings, serving_cache_bytes=bound))
        assert len([path for path in second._cache.folder.iterdir() if path.is_dir()]) == left
        second.close()
