"""Query parameters that a route does not have: refused with the most similar name, or ignored for clients of other
APIs.
"""

from __future__ import annotations

import pytest
from fastapi import FastAPI
from fastapi.routing import APIRoute
from fastapi.testclient import TestClient

from api.errors import OLLAMA_PATHS, OPENAI_PATHS


@pytest.mark.parametrize(
    ("path", "name", "meant"),
    [
        ("/v1/jobs?created_aftr=x", "created_aftr", "created_after"),
        ("/v1/jobs?states=running", "states", "state"),
        ("/v1/jobs?limit=5&limt=6", "limt", "limit"),
        ("/v1/adapters?aftr=a", "aftr", "after"),
        ("/v1/replicas?_=1", "_", None),
        ("/v1/openapi.json?x=1", "x", None),
    ],
)
def test_unknown_parameter_is_refused_with_the_nearest_name(
    client: TestClient, path: str, name: str, meant: str | None
) -> None:
    response = client.get(path)
    refused = response.json()["error"]
    assert (response.status_code, refused["code"], refused["param"]) == (422, "REQUEST_INVALID", name)
    assert refused["message"].startswith(f"{name}: this parameter does not exist.")
    assert ("Did you mean" in refused["message"]) == bool(meant)
    assert not meant or f"Did you mean {meant}?" in refused["message"]
    assert refused["mens"]["details"]["errors"] == [{"param": name, "reason": "this parameter does not exist"}]


def test_every_native_route_refuses_unknown_parameters(app: FastAPI, client: TestClient) -> None:
    lenient = []
    for route in app.routes:
        if not isinstance(route, APIRoute) or route.path.startswith((*OPENAI_PATHS, OLLAMA_PATHS)):
            continue
        path = route.path.replace("{", "").replace("}", "").replace(":path", "")
        response = client.request(min(route.methods), path, params={"no_such_parameter": "1"})
        if "no_such_parameter: this parameter does not exist." not in response.text:
            lenient.append(route.path)
    # The page of the callback reads its query itself.
    assert sorted(lenient) == ["/", "/console/callback", "/console/{digest}/{path:path}", "/health", "/ready"]


@pytest.mark.parametrize(
    "path", ["/v1/models", "/v1/files", "/v1/fine_tuning/jobs", "/v1/evals", "/api/tags", "/v1/webhook_endpoints"]
)
def test_other_clients_may_send_parameters_of_their_own(client: TestClient, path: str) -> None:
    assert client.get(path, params={"api-version": "2026-01-01"}).status_code == 200
