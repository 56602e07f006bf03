"""A real vLLM whose cache holds two of four adapters: files are removed and fetched while it answers, and the engine
never misses one.

At the end, the engine computes wrong results: the health check fails, and the replica exits.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from shared.artifacts.manifests import WEIGHTS_NAME
from tests.support.processes import is_gone
from tests.support.serving_installation import ServingInstallation
from tests.support.vllm_server import VllmServer, start_server
from tests.support.waiting import eventually

REQUESTS = 160
SECONDS = 60


@pytest.fixture(scope="module")
def models(serving_installation: ServingInstallation) -> list[str]:
    return [serving_installation.publish(f"bounded-{seed}", seed=seed).adapter_id for seed in (71, 72, 73, 74)]


@pytest.fixture(scope="module")
def max_bytes(serving_installation: ServingInstallation, models: list[str]) -> int:
    """Room for two of them, which are of one size."""
    folder = serving_installation.storage.folder("adapters", models[0].partition("@")[2])
    return int(2.5 * sum(path.stat().st_size for path in folder.iterdir()))


@pytest.fixture(scope="module")
def server(serving_installation: ServingInstallation, models: list[str], max_bytes: int) -> Iterator[VllmServer]:
    # One of them in the engine's memory, so that it reads files again for nearly each request.
    settings: dict[str, Any] = {"serving_max_loras": 1, "serving_max_cpu_loras": 1, "serving_cache_bytes": max_bytes}
    settings |= {"serving_cache_dir": serving_installation.home / "bounded", "serving_self_test_seconds": 0.5}
    with start_server(serving_installation, **settings) as up:
        yield up


def text(client: httpx.Client, model: str) -> str:
    body = {"model": model, "prompt": "the red fox", "max_tokens": 8, "ignore_eos": True, "temperature": 0}
    response = client.post("/v1/completions", json=body)
    assert response.status_code == 200, response.text
    return str(response.json()["choices"][0]["text"])


@pytest.mark.long  # one that was dropped and is fetched again: tests/vllm/test_unload.py
def test_answers_stay_the_same_while_adapters_are_dropped_and_fetched(
    serving_installation: ServingInstallation, server: VllmServer, models: list[str], max_bytes: int
) -> None:
    with server.client() as client:
        expected = {model: text(client, model) for model in models}
        assert len(set(expected.values())) == len(models)
        drawn = random.Random(7).choices(models, k=REQUESTS)
        with ThreadPoolExecutor(6) as pool:
            answers = list(pool.map(lambda model: text(client, model), drawn))
        assert answers == [expected[model] for model in drawn]

        def cached() -> int:
            return sum(path.stat().st_size for path in (serving_installation.home / "bounded").glob("*/*/*"))

        # One more request, so that what was in flight before is looked at again.
        text(client, models[0])
        eventually(lambda: cached() <= max_bytes, what="the rest fits in")
        assert client.get("/health").status_code == 200
    dropped = server.log.read_text().count("was removed from the cache to make room")
    assert dropped > 10, "files came and went"


def is_red(client: httpx.Client) -> bool:
    try:
        return client.get("/health").status_code == 503
    except httpx.HTTPError:
        return True


def test_poisoned_replica_is_found_and_ends(serving_installation: ServingInstallation, server: VllmServer) -> None:
    """The NaN is put where no check is left: into the verified copy, between the check and the engine's reading it."""
    manifest = serving_installation.publish("poison", seed=77)
    body = {"prompt": "the red fox", "max_tokens": 60, "ignore_eos": True}
    with server.client() as client:
        base = body | {"model": serving_installation.entry.name}
        before = client.post("/v1/completions", json=base).json()["choices"][0]["text"]
        assert client.get(f"/mens/adapters/{manifest.adapter_id}").status_code == 200
        copies = list((serving_installation.home / "bounded").glob(f"*/{manifest.digest}/{WEIGHTS_NAME}"))
        assert copies
        for path in copies:
            tensors = {name: np.full_like(tensor, np.nan) for name, tensor in load_file(path).items()}
            path.chmod(0o600)
            save_file(tensors, path)
        assert before
        assert client.get("/health").status_code == 200
        for _ in range(3):
            try:
                client.post("/v1/completions", json=body | {"model": manifest.adapter_id})
            except httpx.HTTPError:
                break  # it has ended already
        eventually(lambda: is_red(client), SECONDS, "the health check is red")
        eventually(lambda: is_gone(server.pid), SECONDS, "the replica has ended")
        assert "The engine is broken" in server.log.read_text()
