"""A real engine that computes nonsense: its health check turns red, and the replica ends."""

from __future__ import annotations

import httpx
import numpy as np
from safetensors.numpy import load_file, save_file

from shared.artifacts.manifests import WEIGHTS_NAME
from tests.support.processes import is_gone
from tests.support.serving_installation import ServingInstallation
from tests.support.vllm_server import start_server
from tests.support.waiting import eventually

SECONDS = 60


def is_red(client: httpx.Client) -> bool:
    try:
        return client.get("/health").status_code == 503
    except httpx.HTTPError:
        return True


def test_poisoned_replica_is_found_and_ends(serving_installation: ServingInstallation) -> None:
    """The NaN is put where no check is left: into the verified copy, between the check and the engine's reading it."""
    manifest = serving_installation.publish("poison", seed=77)
    body = {"prompt": "the red fox", "max_tokens": 60, "ignore_eos": True}
    with start_server(serving_installation, serving_self_test_seconds=0.5) as server, server.client() as client:
        base = body | {"model": serving_installation.entry.name}
        before = client.post("/v1/completions", json=base).json()["choices"][0]["text"]
        assert client.get(f"/mens/adapters/{manifest.adapter_id}").status_code == 200
        copies = serving_installation.settings().serving_cache_dir.glob(f"*/{manifest.digest}/{WEIGHTS_NAME}")
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
