"""/v1/keys: made with a tenant, a role and limits, shown once, refused at once when revoked."""

from __future__ import annotations

from typing import Any

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient

from shared.tenancy import Role

BOT = {"name": "bot", "role": "trainer", "requests_per_minute": 60, "concurrent_requests": 4}


@pytest.fixture
def acme(app: FastAPI) -> dict[str, str]:
    """Headers of an admin of a tenant."""
    return bearer(app.state.services.keys.create("boss", "acme", Role.ADMIN)[1])


def bearer(secret: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {secret}"}


def error_of(answer: Any) -> tuple[int, str, str | None]:
    error = answer.json()["error"]
    return answer.status_code, error["code"], error["param"]


def test_secret_is_shown_once_and_opens(client: TestClient, acme: dict[str, str]) -> None:
    made = client.post("/v1/keys", json=BOT, headers=acme)
    key = made.json()
    secret = key.pop("secret")
    assert (made.status_code, key) == (201, key | BOT | {"tenant": "acme", "revoked_at": None})
    listed = client.get("/v1/keys", headers=acme)
    assert listed.json()[-1] == key
    assert secret not in listed.text
    assert client.get("/v1/files", headers=bearer(secret)).status_code == 200
    assert error_of(client.get("/v1/keys", headers=bearer(secret)))[1] == "ROLE_INSUFFICIENT"


def test_revoked_at_once_and_for_good(client: TestClient, acme: dict[str, str]) -> None:
    key = client.post("/v1/keys", json=BOT, headers=acme).json()
    assert client.get("/v1/models", headers=bearer(key["secret"])).status_code == 200
    revoked = client.delete(f"/v1/keys/{key['id']}", headers=acme)
    assert revoked.json()["revoked_at"] is not None
    assert error_of(client.get("/v1/models", headers=bearer(key["secret"])))[:2] == (401, "KEY_INVALID")
    again = client.delete(f"/v1/keys/{key['id']}", headers=acme)
    assert (again.status_code, again.json()) == (200, revoked.json())
    assert client.get("/v1/keys", headers=acme).json()[-1] == revoked.json()


def test_admin_makes_keys_of_the_own_tenant_only(client: TestClient, acme: dict[str, str]) -> None:
    for tenant in ("other", "shared"):
        answer = client.post("/v1/keys", json=BOT | {"tenant": tenant}, headers=acme)
        assert error_of(answer) == (403, "TENANT_FORBIDDEN", "tenant")
    assert client.post("/v1/keys", json=BOT | {"tenant": "acme"}, headers=acme).json()["tenant"] == "acme"
    assert [key["name"] for key in client.get("/v1/keys").json()] == ["test"]


def test_operator_makes_keys_of_every_tenant(client: TestClient) -> None:
    assert client.post("/v1/keys", json=BOT).json()["tenant"] == "shared"
    named = client.post("/v1/keys", json=BOT | {"tenant": "new"}).json()
    acting = client.post("/v1/keys", json=BOT, headers={"X-Mens-Tenant": "new"}).json()
    assert (named["tenant"], acting["tenant"]) == ("new", "new")
    listed = client.get("/v1/keys", headers={"X-Mens-Tenant": "new"}).json()
    assert [key["id"] for key in listed] == [named["id"], acting["id"]]
    assert error_of(client.delete(f"/v1/keys/{named['id']}"))[:2] == (404, "KEY_NOT_FOUND")
    assert client.delete(f"/v1/keys/{named['id']}", headers={"X-Mens-Tenant": "new"}).status_code == 200


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"role": "root"}, "role"),
        ({"role": None}, "role"),
        ({"name": ""}, "name"),
        ({"name": "x" * 65}, "name"),
        ({"name": "a\0b"}, "name"),
        ({"tenant": "Acme"}, "tenant"),
        ({"requests_per_minute": 0}, "requests_per_minute"),
        ({"concurrent_requests": 1_000_001}, "concurrent_requests"),
        ({"secret": "mens-mine"}, "secret"),
    ],
)
def test_nonsense_makes_no_key(client: TestClient, change: dict[str, Any], param: str) -> None:
    assert error_of(client.post("/v1/keys", json=BOT | change)) == (422, "REQUEST_INVALID", param)
    assert len(client.get("/v1/keys").json()) == 1


def test_ids_that_no_database_takes(client: TestClient) -> None:
    for method, path in (("DELETE", "/v1/keys/a%00"), ("GET", "/v1/files/a%00"), ("GET", "/v1/jobs/a%00")):
        assert error_of(client.request(method, path))[:2] == (422, "REQUEST_INVALID")
    assert error_of(client.get("/v1/models/a%00"))[:2] == (422, "REQUEST_INVALID")
