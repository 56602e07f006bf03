"""An API with a running health monitor on a real socket, and the states of its replicas."""

from __future__ import annotations

from typing import Any

import httpx
from fastapi import FastAPI

from tests.support.asgi_server import serve
from tests.support.builders import BASE
from tests.support.gateway import ADAPTER, register_adapters
from tests.support.waiting import eventually


class RunningApi:
    """A context with a client of an application on a real socket, whose health monitor runs."""

    def __init__(self, app: FastAPI) -> None:
        self._app = app

    def __enter__(self) -> httpx.Client:
        _, secret = self._app.state.services.keys.create("test")
        register_adapters(self._app)
        self._server = serve(self._app, lifespan="on")
        url = next(self._server)
        self._client = httpx.Client(base_url=url, headers={"Authorization": f"Bearer {secret}"}, timeout=60)
        if self._app.state.services.settings.serving_urls:  # from then on it is known what each serves
            eventually(lambda: set(states(self._client).values()) == {"up"})
        self._client.post("/v1/completions", json={"model": BASE})
        return self._client

    def __exit__(self, *_: object) -> None:
        self._client.close()
        next(self._server, None)


def states(client: httpx.Client) -> dict[str, str]:
    return {replica["url"]: replica["state"] for replica in client.get("/v1/replicas").json()["data"]}


def idle(client: httpx.Client) -> bool:
    return all(replica["in_flight"] == 0 for replica in client.get("/v1/replicas").json()["data"])


def served_by(client: httpx.Client, model: str = ADAPTER, **body: Any) -> str:
    """Name of the replica that responded."""
    response = client.post("/v1/completions", json={"model": model, **body})
    assert response.status_code == 200, response.text
    return str(response.json()["by"]) if not body.get("stream") else response.text.split()[1]
