"""Unloading from a real vLLM that keeps one adapter in memory: every other request reads an adapter's files again."""

from __future__ import annotations

import json
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from shared.manifest import MANIFEST_NAME
from tests.serving.conftest import start_server

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(300)]

PATIENCE_SECONDS = 60


@pytest.fixture(scope="module")
def server(lab):
    with start_server(lab, serving_max_loras=1, serving_max_cpu_loras=1) as server:
        yield server


@pytest.fixture
def client(server, lab):
    """A client; after the test the engine must be as alive as before it."""
    with server.client() as client:
        yield client
        assert client.get("/health").status_code == 200
        assert complete(client, lab.entry.name).status_code == 200


@pytest.fixture
def going(lab, request):
    """An adapter that this test deletes."""
    manifest = lab.publish(f"going-{request.node.name.replace('_', '-')[:40]}", seed=51)
    yield manifest
    publish_again(lab, manifest)


@pytest.fixture(scope="module")
def staying(lab):
    return [lab.publish(f"staying-{seed}", seed=seed) for seed in (52, 53)]


def complete(client: httpx.Client, model: str, tokens: int = 8, **more: object) -> httpx.Response:
    body = {"model": model, "prompt": "the red fox", "max_tokens": tokens, "temperature": 0, "ignore_eos": True}
    return client.post("/v1/completions", json=body | more)


def text(client: httpx.Client, model: str) -> str:
    response = complete(client, model)
    assert response.status_code == 200, response.text
    return response.json()["choices"][0]["text"]


def stream(client: httpx.Client, model: str, tokens: int):
    body = {"model": model, "prompt": "the red fox", "max_tokens": tokens, "stream": True, "ignore_eos": True}
    return client.stream("POST", "/v1/completions", json=body)


def withdraw(lab, manifest):
    lab.storage.withdraw("adapters", manifest.digest, MANIFEST_NAME)


def publish_again(lab, manifest):
    (lab.folder(manifest) / MANIFEST_NAME).write_bytes(manifest.to_bytes())


def unload(client: httpx.Client, manifest, **query: object) -> httpx.Response:
    return client.delete(f"/mens/adapters/{manifest.adapter_id}", params=query)


def unload_to_the_end(client: httpx.Client, manifest, **query: object) -> list[dict]:
    """Ask until it is unloaded; all answers."""
    answers, deadline = [], time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < deadline:
        response = unload(client, manifest, **query)
        assert response.status_code in (200, 202), response.text
        answers.append(response.json())
        if response.status_code == 200:
            return answers
    raise AssertionError(f"not unloaded: {answers}")


def copies(lab, manifest):
    """The adapter's folders in the private folders of all processes."""
    return list((lab.home / "serving-cache").glob(f"*/{manifest.digest}"))


def test_evicted_unloaded_deleted_and_the_others_are_asked_on(client, lab, going, staying):
    before = {manifest.adapter_id: text(client, manifest.adapter_id) for manifest in (going, *staying)}
    assert len(set(before.values())) == 3
    assert copies(lab, going)
    withdraw(lab, going)
    assert unload_to_the_end(client, going)[-1] == {"id": going.adapter_id, "state": "unloaded", "requests": 0}
    assert not copies(lab, going)
    for _ in range(3):
        for manifest in staying:
            assert text(client, manifest.adapter_id) == before[manifest.adapter_id]
        assert complete(client, going.adapter_id).status_code == 404
    publish_again(lab, going)
    assert text(client, going.adapter_id) == before[going.adapter_id]


def test_what_is_queued_and_must_be_loaded_again_ends_before_the_files_go(client, server, lab, going, staying):
    """One adapter fits into the engine: requests of the other wait behind a stream, and then read its files again."""
    expected = text(client, going.adapter_id)

    def ask() -> httpx.Response:
        with server.client() as own:
            return complete(own, going.adapter_id)

    with ThreadPoolExecutor(4) as pool, server.client() as streaming:
        with stream(streaming, staying[0].adapter_id, 240) as running:
            lines = running.iter_lines()
            next(lines)
            queued = [pool.submit(ask) for _ in range(4)]
            while not _metric(client, "vllm:num_requests_waiting"):
                assert not any(future.done() for future in queued)
            withdraw(lab, going)
            first = unload(client, going).json()
            rest = [line for line in lines if line.startswith("data: {")]
        answers = [first, *unload_to_the_end(client, going)]
        done = [future.result() for future in queued]
    assert json.loads(rest[-1][6:])["choices"][0]["finish_reason"] == "length"
    assert [response.json()["choices"][0]["text"] for response in done if response.status_code == 200]
    for response in done:  # one that came after the unload had begun was refused
        assert response.status_code == 404 or response.json()["choices"][0]["text"] == expected
    assert answers[-1]["state"] == "unloaded"
    assert not copies(lab, going)


def test_callers_who_hang_up_as_it_is_unloaded(client, server, lab, going, staying):
    """vLLM returns before it has told the engine that such a request is over."""
    for round_ in range(6):
        publish_again(lab, going)
        clients = [server.client() for _ in range(6)]
        streams = [stream(own, going.adapter_id, 220) for own in clients]
        for opened in streams[:3]:
            next(opened.__enter__().iter_raw())
        waiting = [threading.Thread(target=_cut, args=(own, going.adapter_id, 0.05 * round_)) for own in clients[3:]]
        for thread in waiting:
            thread.start()
        withdraw(lab, going)
        for opened, own in zip(streams[:3], clients[:3], strict=True):
            opened.__exit__(None, None, None)
            own.close()
        unload_to_the_end(client, going)
        for manifest in staying:
            assert complete(client, manifest.adapter_id).status_code == 200
        for thread in waiting:
            thread.join(PATIENCE_SECONDS)
        assert not copies(lab, going)


def _cut(client: httpx.Client, model: str, seconds: float) -> None:
    """Ask and hang up after a moment."""
    try:
        complete_for = httpx.Timeout(60, read=0.05 + seconds)
        client.post("/v1/completions", json={"model": model, "prompt": "a", "max_tokens": 200}, timeout=complete_for)
    except httpx.ReadTimeout:
        pass
    finally:
        client.close()


@pytest.mark.parametrize("choices", [1, 2])
def test_when_the_time_is_over_answers_are_cut_short(client, server, lab, going, choices):
    with ThreadPoolExecutor(1) as pool, server.client() as own:
        asked = pool.submit(complete, own, going.adapter_id, 240, n=choices, temperature=1)
        while not _metric(client, "vllm:num_requests_running"):
            assert not asked.done(), asked.result().text
        withdraw(lab, going)
        assert unload_to_the_end(client, going, drain_seconds=0)[-1]["state"] == "unloaded"
        answer = asked.result()
    assert answer.status_code == 200, answer.text
    assert {choice["finish_reason"] for choice in answer.json()["choices"]} == {"abort"}
    assert not copies(lab, going)


def _metric(client: httpx.Client, name: str) -> float:
    lines = client.get("/metrics").text.splitlines()
    return max((float(line.split()[-1]) for line in lines if line.startswith(name + "{")), default=0)


def test_deleted_and_published_again_and_again_under_load(client, server, lab, going, staying):
    expected = {manifest.adapter_id: text(client, manifest.adapter_id) for manifest in (going, *staying)}
    stop, wrong = threading.Event(), []

    def ask(model: str) -> int:
        answered = 0
        with server.client() as own:
            while not stop.is_set():
                response = complete(own, model)
                if response.status_code == 200:
                    answered += 1
                    if response.json()["choices"][0]["text"] != expected[model]:
                        wrong.append(response.text)
                elif response.status_code != 404 or model != going.adapter_id:
                    wrong.append(f"{model}: {response.status_code} {response.text}")
        return answered

    with ThreadPoolExecutor(6) as pool:
        asking = [pool.submit(ask, model) for model in list(expected) * 2]
        try:
            for _ in range(8):
                withdraw(lab, going)
                unload_to_the_end(client, going)
                assert not copies(lab, going)
                publish_again(lab, going)
                assert text(client, going.adapter_id) == expected[going.adapter_id]
        finally:
            stop.set()
        answered = [future.result() for future in asking]
    assert not wrong, wrong[:5]
    assert min(answered) > 0
