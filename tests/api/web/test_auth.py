"""Every route but health wants a key, and says for which tenant it acts; the whole matrix is in test_access.py."""

from __future__ import annotations

import re

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient

from shared.tenancy import Role
from tests.api.conftest import application

OPEN = {"/health", "/ready"}


def routes() -> list[tuple[str, str]]:
    paths: dict[str, dict[str, object]] = application().openapi()["paths"]
    return sorted((method.upper(), path) for path, methods in paths.items() for method in methods)


@pytest.mark.parametrize(("method", "path"), routes())
def test_a_route_without_a_good_key(anonymous: TestClient, method: str, path: str) -> None:
    for header in (None, "Bearer ", "Bearer wrong", "Basic abc", "mens-abc"):
        headers = {"Authorization": header} if header else {}
        answer = anonymous.request(method, re.sub(r"\{.*?\}", "x", path), headers=headers)
        if path in OPEN:
            assert answer.status_code == 200
            continue
        assert answer.status_code == 401, header
        body = answer.json()
        error = body if path.startswith("/api/") else body["error"]  # Ollama's clients get errors in Ollama's shape
        assert error["code"] in ("KEY_MISSING", "KEY_INVALID")
        assert answer.headers["www-authenticate"] == "Bearer"


def test_a_revoked_key_is_refused(app: FastAPI, client: TestClient) -> None:
    assert client.get("/v1/models").status_code == 200
    (key,) = app.state.services.keys.all()
    app.state.services.keys.revoke(key.id)
    assert client.get("/v1/models").json()["error"]["code"] == "KEY_INVALID"


# -- tenants -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["", "Acme", "a b", "-acme", "x" * 64, "acme;drop"])
def test_a_tenant_that_cannot_be(client: TestClient, name: str) -> None:
    answer = client.get("/v1/models", headers={"X-Mens-Tenant": name})
    assert (answer.status_code, answer.json()["error"]["param"]) == (422, "X-Mens-Tenant")


def test_an_operator_may_act_for_a_tenant_from_its_first_key_on(app: FastAPI, client: TestClient) -> None:
    headers = {"X-Mens-Tenant": "new"}
    answer = client.get("/v1/files", headers=headers)
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "TENANT_NOT_FOUND"), "it may be a typing error"
    key, _ = app.state.services.keys.create("first", "new")
    app.state.services.keys.revoke(key.id)
    answer = client.get("/v1/files", headers=headers)
    assert (answer.status_code, answer.json()["data"]) == (200, [])


def test_refusals_say_what_would_help(app: FastAPI, anonymous: TestClient) -> None:
    _, secret = app.state.services.keys.create("bob", "acme", Role.VIEWER)
    headers = {"Authorization": f"Bearer {secret}"}
    low = anonymous.delete("/v1/files/file-1", headers=headers)
    assert low.json()["error"] == {
        "message": "This takes a key with the role 'trainer'; 'bob' is a viewer. "
        "Ask an admin of the tenant 'acme' for a key with that role.",
        "type": "permission_error",
        "param": None,
        "code": "ROLE_INSUFFICIENT",
        "mens": {
            "remedy": "Ask an admin of the tenant 'acme' for a key with that role.",
            "details": {},
            "retryable": False,
        },
    }
    foreign = anonymous.get("/v1/models", headers=headers | {"X-Mens-Tenant": "other"}).json()["error"]
    assert (foreign["code"], foreign["param"]) == ("TENANT_FORBIDDEN", "X-Mens-Tenant")
    assert "'bob' belongs to the tenant 'acme'" in foreign["message"]


def test_the_documentation_pages_are_closed(anonymous: TestClient) -> None:
    for path in ("/docs", "/redoc", "/openapi.json"):
        assert anonymous.get(path).status_code == 404
