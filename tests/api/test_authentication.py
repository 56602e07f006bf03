"""Every route but health wants a key."""

from __future__ import annotations

import re

import pytest
from fastapi import FastAPI
from fastapi.routing import APIRoute
from fastapi.testclient import TestClient

from api.main import create_app
from api.settings import ApiSettings

OPEN = {"/health", "/ready"}


def routes() -> list[tuple[str, str]]:
    app = create_app(ApiSettings(home="/nonexistent"))
    paths: dict[str, dict[str, object]] = app.openapi()["paths"]
    return sorted((method.upper(), path) for path, methods in paths.items() for method in methods)


def test_the_list_of_routes_is_whole(app: FastAPI) -> None:
    hidden = [route.path for route in app.routes if isinstance(route, APIRoute) and not route.include_in_schema]
    assert not hidden
    assert len(routes()) > 25


@pytest.mark.parametrize(("method", "path"), routes())
def test_a_route_without_a_good_key(anonymous: TestClient, method: str, path: str) -> None:
    for header in (None, "Bearer ", "Bearer wrong", "Basic abc", "mens-abc"):
        headers = {"Authorization": header} if header else {}
        answer = anonymous.request(method, re.sub(r"\{.*?\}", "x", path), headers=headers)
        if path in OPEN:
            assert answer.status_code == 200
            continue
        assert answer.status_code == 401, header
        assert answer.json()["error"]["code"] in ("KEY_MISSING", "KEY_INVALID")
        assert answer.headers["www-authenticate"] == "Bearer"


def test_a_revoked_key_is_refused(app: FastAPI, client: TestClient) -> None:
    assert client.get("/v1/models").status_code == 200
    (key,) = app.state.services.registry.all_keys()
    app.state.services.registry.revoke_key(key.id)
    assert client.get("/v1/models").json()["error"]["code"] == "KEY_INVALID"


def test_the_documentation_pages_are_closed(anonymous: TestClient) -> None:
    for path in ("/docs", "/redoc", "/openapi.json"):
        assert anonymous.get(path).status_code == 404
