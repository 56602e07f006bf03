"""Unloading from a real vLLM that keeps one adapter in memory: every other request reads an adapter's files again.

At the end, the server is stopped while it streams.
"""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import httpx
import pytest

from shared.artifacts.manifests import MANIFEST_NAME, AdapterManifest
from tests.support.processes import is_gone
from tests.support.serving_installation import ServingInstallation
from tests.support.vllm_server import VllmServer, start_server
from tests.support.waiting import eventually

PATIENCE_SECONDS = 60
STOP_SECONDS = 60
BUSY_CHOICES = 24
"""This many choices of one request keep the engine busy for seconds, so no waiting request can begin at once."""
MAX_TRIES = 5
WAITING = "vllm:num_requests_waiting"


@pytest.fixture(scope="module")
def server(serving_installation: ServingInstallation) -> Iterator[VllmServer]:
    with start_server(serving_installation, serving_max_loras=1, serving_max_cpu_loras=1, drain_seconds=1) as server:
        yield server


@pytest.fixture
def client(server: VllmServer, serving_installation: ServingInstallation) -> Iterator[httpx.Client]:
    """A client; after the test the engine must be as alive as before it."""
    with server.client() as client:
        yield client
        assert client.get("/health").status_code == 200
        assert complete(client, serving_installation.entry.name).status_code == 200


@pytest.fixture
def deleted(serving_installation: ServingInstallation, request: pytest.FixtureRequest) -> Iterator[AdapterManifest]:
    """An adapter that this test deletes."""
    manifest = serving_installation.publish(f"deleted-{request.node.name.replace('_', '-')[:40]}", seed=51)
    yield manifest
    publish_again(serving_installation, manifest)


@pytest.fixture(scope="module")
def kept(serving_installation: ServingInstallation) -> list[AdapterManifest]:
    """Adapters that stay published."""
    return [serving_installation.publish(f"kept-{seed}", seed=seed) for seed in (52, 53)]


def body_of(model: str, tokens: int, **more: object) -> dict[str, Any]:
    return {"model": model, "prompt": "the red fox", "max_tokens": tokens, "ignore_eos": True, **more}


def complete(client: httpx.Client, model: str, tokens: int = 8, **more: object) -> httpx.Response:
    return client.post("/v1/completions", json=body_of(model, tokens, temperature=0) | more)


def text(client: httpx.Client, model: str) -> str:
    response = complete(client, model)
    assert response.status_code == 200, response.text
    return str(response.json()["choices"][0]["text"])


def stream(client: httpx.Client, model: str, tokens: int, **more: object) -> AbstractContextManager[httpx.Response]:
    return client.stream("POST", "/v1/completions", json=body_of(model, tokens, stream=True, **more))


def metric(server: VllmServer, name: str) -> float:
    lines = server.metrics().splitlines()
    return max((float(line.split()[-1]) for line in lines if line.startswith(name + "{")), default=0)


def unpublish(installation: ServingInstallation, manifest: AdapterManifest) -> None:
    installation.storage.unpublish("adapters", manifest.digest, MANIFEST_NAME)


def publish_again(installation: ServingInstallation, manifest: AdapterManifest) -> None:
    (installation.folder(manifest) / MANIFEST_NAME).write_bytes(manifest.to_bytes())


def unload(client: httpx.Client, manifest: AdapterManifest, **query: Any) -> httpx.Response:
    return client.delete(f"/mens/adapters/{manifest.adapter_id}", params=query)


def unload_completely(client: httpx.Client, manifest: AdapterManifest, **query: Any) -> list[dict[str, Any]]:
    """Repeat the call until the adapter is unloaded; the bodies of all responses."""
    found: list[dict[str, Any]] = []
    deadline = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < deadline:
        response = unload(client, manifest, **query)
        assert response.status_code in (200, 202), response.text
        found.append(response.json())
        if response.status_code == 200:
            return found
    raise AssertionError(f"not unloaded: {found}")


def copies(installation: ServingInstallation, manifest: AdapterManifest) -> list[Path]:
    """The adapter's folders in the private caches of all processes."""
    return list((installation.home / "serving-cache").glob(f"*/{manifest.digest}"))


def test_evicted_adapter_unloads_and_others_respond_unchanged(client, serving_installation, deleted, kept):
    before = {manifest.adapter_id: text(client, manifest.adapter_id) for manifest in (deleted, *kept)}
    assert len(set(before.values())) == 3
    assert copies(serving_installation, deleted)
    unpublish(serving_installation, deleted)
    unloaded = unload_completely(client, deleted)[-1]
    assert unloaded == {"id": deleted.adapter_id, "state": "unloaded", "requests": 0}
    assert not copies(serving_installation, deleted)
    for _ in range(3):
        for manifest in kept:
            assert text(client, manifest.adapter_id) == before[manifest.adapter_id]
        assert complete(client, deleted.adapter_id).status_code == 404
    publish_again(serving_installation, deleted)
    assert text(client, deleted.adapter_id) == before[deleted.adapter_id]


def test_queued_requests_end_before_files_are_removed(client, server, serving_installation, deleted, kept):
    """One adapter fits into the engine: requests of the other wait behind a stream, and then read its files again."""
    expected = text(client, deleted.adapter_id)

    def request() -> httpx.Response:
        with server.client() as own:
            return complete(own, deleted.adapter_id)

    with ThreadPoolExecutor(4) as pool, server.client() as streaming:
        with stream(streaming, kept[0].adapter_id, 240, n=BUSY_CHOICES) as running:
            lines = running.iter_lines()
            next(lines)
            # The engine stands still while they come: the stream would be over in a second or two.
            with server.stopped_engine():
                before = server.clients()
                queued = [pool.submit(request) for _ in range(4)]
                eventually(lambda: len(server.clients() - before) == 4, what="the server has the requests")
            while not metric(server, WAITING):
                assert not any(future.done() for future in queued)
            unpublish(serving_installation, deleted)
            first = unload(client, deleted, drain_seconds=3600).json()
            rest = [line for line in lines if line.startswith("data: {")]
        unloads = [first, *unload_completely(client, deleted, drain_seconds=3600)]
        responses = [future.result() for future in queued]
    assert json.loads(rest[-1][6:])["choices"][0]["finish_reason"] == "length"
    completed = [response.json()["choices"][0]["text"] for response in responses if response.status_code == 200]
    assert completed, "some were queued before the unload began"
    assert set(completed) == {expected}
    assert {response.status_code for response in responses} <= {200, 404}, "those that came after it were refused"
    assert unloads[-1]["state"] == "unloaded"
    assert not copies(serving_installation, deleted)


def test_unload_while_callers_disconnect(client, server, serving_installation, deleted, kept):
    """vLLM returns before it has reported to the engine that such a request has ended."""
    for round_ in range(6):
        publish_again(serving_installation, deleted)
        clients = [server.client() for _ in range(6)]
        streams = [stream(own, deleted.adapter_id, 220) for own in clients]
        for opened in streams[:3]:
            next(opened.__enter__().iter_raw())
        impatient = [
            threading.Thread(target=disconnect_after, args=(own, deleted.adapter_id, 0.05 + 0.05 * round_))
            for own in clients[3:]
        ]
        for thread in impatient:
            thread.start()
        unpublish(serving_installation, deleted)
        for opened, own in zip(streams[:3], clients[:3], strict=True):
            opened.__exit__(None, None, None)
            own.close()
        unload_completely(client, deleted)
        for manifest in kept:
            assert complete(client, manifest.adapter_id).status_code == 200
        for thread in impatient:
            thread.join(PATIENCE_SECONDS)
        assert not copies(serving_installation, deleted)


def disconnect_after(client: httpx.Client, model: str, seconds: float) -> None:
    """Send a request and close its connection after a moment."""
    body = {"model": model, "prompt": "a", "max_tokens": 200}
    try:
        client.post("/v1/completions", json=body, timeout=httpx.Timeout(60, read=seconds))
    except httpx.ReadTimeout:
        pass
    finally:
        client.close()


@pytest.mark.parametrize("choices", [1, 2])
def test_responses_are_aborted_after_drain_time(client, server, serving_installation, deleted, choices):
    for _ in range(MAX_TRIES):
        reasons = abort_midway(client, server, serving_installation, deleted, choices)
        assert not copies(serving_installation, deleted)
        if "length" not in reasons:  # else it had ended by itself before the engine stood still
            break
        publish_again(serving_installation, deleted)
    assert reasons == ["abort"] * choices


def abort_midway(
    client: httpx.Client,
    server: VllmServer,
    installation: ServingInstallation,
    manifest: AdapterManifest,
    choices: int,
) -> list[str]:
    """Unload the adapter while the engine stands still amid its request, which cannot end by itself: its finish reasons."""
    with ThreadPoolExecutor(1) as pool, server.client() as own:
        with stream(own, manifest.adapter_id, 240, n=choices, temperature=1) as response:
            lines = (line[6:] for line in response.iter_lines() if line.startswith("data: {"))
            begun: set[int] = set()
            while len(begun) < choices:  # each of them has been answered to
                begun |= {choice["index"] for choice in json.loads(next(lines))["choices"]}
            with server.stopped_engine():
                unpublish(installation, manifest)
                unloading = pool.submit(unload_completely, client, manifest, drain_seconds=0)
                rest = [choice for line in lines for choice in json.loads(line)["choices"]]
        assert unloading.result()[-1]["state"] == "unloaded"
    return [choice["finish_reason"] for choice in rest if choice["finish_reason"]]


def test_repeated_delete_and_publish_under_load(client, server, serving_installation, deleted, kept):
    expected = {manifest.adapter_id: text(client, manifest.adapter_id) for manifest in (deleted, *kept)}
    stop, wrong, completed = threading.Event(), [], Counter[str]()

    def keep_requesting(model: str) -> None:
        with server.client() as own:
            while not stop.is_set():
                response = complete(own, model)
                if response.status_code == 200:
                    completed[model] += 1
                    if response.json()["choices"][0]["text"] != expected[model]:
                        wrong.append(response.text)
                elif response.status_code != 404 or model != deleted.adapter_id:
                    wrong.append(f"{model}: {response.status_code} {response.text}")

    with ThreadPoolExecutor(6) as pool:
        requesting = [pool.submit(keep_requesting, model) for model in list(expected) * 2]
        try:
            for _ in range(8):
                unpublish(serving_installation, deleted)
                unload_completely(client, deleted)
                assert not copies(serving_installation, deleted)
                publish_again(serving_installation, deleted)
                assert text(client, deleted.adapter_id) == expected[deleted.adapter_id]
            eventually(lambda: completed.keys() == expected.keys(), PATIENCE_SECONDS, "every adapter has responded")
        finally:
            stop.set()
        for future in requesting:
            future.result()
    assert not wrong, wrong[:5]


def test_stopped_server_cuts_its_streams_and_exits(
    server: VllmServer, serving_installation: ServingInstallation
) -> None:
    body: dict[str, Any] = {"model": serving_installation.entry.name, "prompt": "Hi", "n": 16, "max_tokens": 200}
    has_begun, has_ended = threading.Event(), threading.Event()
    with server.client() as client:

        def read() -> None:
            try:
                with client.stream(
                    "POST", "/v1/completions", json=body | {"stream": True, "ignore_eos": True}
                ) as stream:
                    for _ in stream.iter_raw():
                        has_begun.set()
            except httpx.HTTPError:
                pass
            finally:
                has_ended.set()

        reader = threading.Thread(target=read)
        reader.start()
        assert has_begun.wait(PATIENCE_SECONDS)
        os.kill(server.pid, signal.SIGTERM)
        assert has_ended.wait(STOP_SECONDS), "the stream is cut"
        reader.join(STOP_SECONDS)
        eventually(lambda: is_gone(server.pid), STOP_SECONDS, "the server exits")
