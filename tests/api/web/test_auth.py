"""Authentication: every route except health requires a key, and a request acts for one tenant. The whole matrix: test_access.py."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from fastapi import FastAPI
from fastapi.routing import APIRoute
from fastapi.testclient import TestClient

from api.services import make_services
from shared.database.tenancy import Role
from tests.support.api_installation import application, application_of, settings_for
from tests.support.doubles import FakeJobQueue

OPEN = {
    "/health": 200,
    "/ready": 200,
    "/": 200,
    "/console/callback": 200,
    "/console/{digest}/{path:path}": 404,
    "/v1/sign_in": 200,
    "/v1/sign_in/oidc": 422,
    "/v1/sign_in/oidc/callback": 422,
}
"""Statuses of the routes without a key; one has no file of that name, and two get no body."""

BY_CODE = ("POST", "/v1/sign_ins")
"""A route that takes a code in place of a key, and has none here."""


def routes() -> list[tuple[str, str]]:
    found = [route for route in application().routes if isinstance(route, APIRoute)]
    return sorted((method, route.path) for route in found for method in route.methods)


@pytest.fixture(scope="module")
def stranger(
    tmp_path_factory: pytest.TempPathFactory, base_folder: Path, sqlite_template: Path
) -> Iterator[TestClient]:
    """A client without a key, for all routes: no request of it may change anything."""
    settings = settings_for(tmp_path_factory.mktemp("installation"), base_folder)
    shutil.copy(sqlite_template, settings.home / "mens.db")
    services = make_services(settings, job_queue=FakeJobQueue())
    with TestClient(application_of(services), raise_server_exceptions=False) as client:
        yield client


@pytest.mark.parametrize(("method", "path"), routes())
def test_route_without_a_valid_key_is_refused(stranger: TestClient, method: str, path: str) -> None:
    for header in (None, "Bearer ", "Bearer wrong", "Basic abc", "mens-abc"):
        headers = {"Authorization": header} if header else {}
        response = stranger.request(method, re.sub(r"\{.*?\}", "x", path), headers=headers)
        if path in OPEN:
            assert response.status_code == OPEN[path]
            continue
        if header is None and (method, path) == BY_CODE:
            assert response.status_code == 422
            continue
        assert response.status_code == 401, header
        body = response.json()
        own = (
            body if path.startswith("/api/") else body["error"]["mens"]
        )  # Ollama's clients get errors in Ollama's shape
        assert own["code"] in ("KEY_MISSING", "KEY_INVALID")
        assert response.headers["www-authenticate"] == "Bearer"


def test_revoked_key_is_refused(app: FastAPI, client: TestClient) -> None:
    assert client.get("/v1/models").status_code == 200
    (key,) = app.state.services.keys.all()
    app.state.services.keys.revoke(key.id)
    assert client.get("/v1/models").json()["error"]["mens"]["code"] == "KEY_INVALID"


# -- tenants -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["", "Acme", "a b", "-acme", "x" * 64, "acme;drop"])
def test_invalid_tenant_name_is_refused(client: TestClient, name: str) -> None:
    response = client.get("/v1/models", headers={"X-Mens-Tenant": name})
    assert (response.status_code, response.json()["error"]["param"]) == (400, "X-Mens-Tenant")


def test_operator_may_act_for_a_tenant_once_it_has_a_key(app: FastAPI, client: TestClient) -> None:
    headers = {"X-Mens-Tenant": "new"}
    response = client.get("/v1/files", headers=headers)
    assert (response.status_code, response.json()["error"]["mens"]["code"]) == (404, "TENANT_NOT_FOUND"), (
        "the name may be a typing error"
    )
    key, _ = app.state.services.keys.create("first", "new")
    app.state.services.keys.revoke(key.id)
    response = client.get("/v1/files", headers=headers)
    assert (response.status_code, response.json()["data"]) == (200, [])


def test_refusals_have_a_remedy(app: FastAPI, anonymous: TestClient) -> None:
    _, secret = app.state.services.keys.create("bob", "acme", Role.VIEWER)
    headers = {"Authorization": f"Bearer {secret}"}
    low = anonymous.delete("/v1/files/file-1", headers=headers)
    assert low.json()["error"] == {
        "message": "This request needs a key with the role 'trainer'; 'bob' is a viewer. "
        "Ask an admin of the tenant 'acme' for a key with that role.",
        "type": "invalid_request_error",
        "param": None,
        "code": "ROLE_INSUFFICIENT",
        "mens": {
            "code": "ROLE_INSUFFICIENT",
            "remedy": "Ask an admin of the tenant 'acme' for a key with that role.",
            "details": {},
            "retryable": False,
        },
    }
    foreign = anonymous.get("/v1/models", headers=headers | {"X-Mens-Tenant": "other"}).json()["error"]
    assert (foreign["code"], foreign["param"]) == ("TENANT_FORBIDDEN", "X-Mens-Tenant")
    assert "'bob' belongs to the tenant 'acme'" in foreign["message"]


def test_documentation_pages_are_not_served(anonymous: TestClient) -> None:
    for path in ("/docs", "/redoc", "/openapi.json"):
        assert anonymous.get(path).status_code == 404
