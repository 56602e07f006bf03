"""/v1/keys: keys have a tenant, a role and limits, their secret is shown once, and changes apply immediately."""

from __future__ import annotations

import time
from typing import Any

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient

from api.inference import lookup_cache
from api.main import create_app
from api.settings import ApiSettings
from shared.database.tenancy import Role
from tests.support.builders import BASE

BOT = {"name": "bot", "role": "trainer", "requests_per_minute": 60, "concurrent_requests": 4}


@pytest.fixture
def acme(app: FastAPI) -> dict[str, str]:
    """Headers of an admin of a tenant."""
    return bearer(app.state.services.keys.create("boss", "acme", Role.ADMIN)[1])


def bearer(secret: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {secret}"}


def error_of(response: Any) -> tuple[int, str, str | None]:
    error = response.json()["error"]
    return response.status_code, error["mens"]["code"], error["param"]


def test_secret_is_shown_once_and_accepted(client: TestClient, acme: dict[str, str]) -> None:
    made = client.post("/v1/keys", json=BOT, headers=acme)
    key = made.json()
    secret = key.pop("secret")
    assert (made.status_code, key) == (201, key | BOT | {"tenant": "acme", "revoked_at": None})
    listed = client.get("/v1/keys", headers=acme)
    assert (listed.json()["object"], listed.json()["data"][-1]) == ("list", key)
    assert secret not in listed.text
    assert client.get("/v1/files", headers=bearer(secret)).status_code == 200
    assert error_of(client.get("/v1/keys", headers=bearer(secret)))[1] == "ROLE_INSUFFICIENT"


def test_revoked_key_is_refused_at_once(client: TestClient, acme: dict[str, str]) -> None:
    key = client.post("/v1/keys", json=BOT, headers=acme).json()
    assert client.get("/v1/models", headers=bearer(key["secret"])).status_code == 200
    revoked = client.delete(f"/v1/keys/{key['id']}", headers=acme)
    assert revoked.json()["revoked_at"] is not None
    assert error_of(client.get("/v1/models", headers=bearer(key["secret"])))[:2] == (401, "KEY_INVALID")
    again = client.delete(f"/v1/keys/{key['id']}", headers=acme)
    assert (again.status_code, again.json()) == (200, revoked.json())
    assert client.get("/v1/keys", headers=acme).json()["data"][-1] == revoked.json()


def test_admin_creates_keys_of_its_own_tenant_only(client: TestClient, acme: dict[str, str]) -> None:
    for tenant in ("other", "shared"):
        response = client.post("/v1/keys", json=BOT | {"tenant": tenant}, headers=acme)
        assert error_of(response) == (403, "TENANT_FORBIDDEN", "tenant")
    assert client.post("/v1/keys", json=BOT | {"tenant": "acme"}, headers=acme).json()["tenant"] == "acme"
    assert [key["name"] for key in client.get("/v1/keys").json()["data"]] == ["test"]


def test_operator_creates_keys_of_every_tenant(client: TestClient) -> None:
    assert client.post("/v1/keys", json=BOT).json()["tenant"] == "shared"
    named = client.post("/v1/keys", json=BOT | {"tenant": "new"}).json()
    acting = client.post("/v1/keys", json=BOT | {"name": "other"}, headers={"X-Mens-Tenant": "new"}).json()
    assert (named["tenant"], acting["tenant"]) == ("new", "new")
    listed = client.get("/v1/keys", headers={"X-Mens-Tenant": "new"}).json()["data"]
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
def test_invalid_fields_create_no_key(client: TestClient, change: dict[str, Any], param: str) -> None:
    assert error_of(client.post("/v1/keys", json=BOT | change)) == (422, "REQUEST_INVALID", param)
    assert len(client.get("/v1/keys").json()["data"]) == 1


def test_name_is_taken_until_its_key_is_revoked(client: TestClient, acme: dict[str, str]) -> None:
    key = client.post("/v1/keys", json=BOT, headers=acme).json()
    taken = client.post("/v1/keys", json=BOT | {"role": "viewer"}, headers=acme)
    assert error_of(taken) == (409, "KEY_NAME_TAKEN", "name")
    assert key["id"] in taken.json()["error"]["mens"]["remedy"]
    assert client.post("/v1/keys", json=BOT).status_code == 201, "a name may be used again in another tenant"
    client.delete(f"/v1/keys/{key['id']}", headers=acme)
    assert client.post("/v1/keys", json=BOT, headers=acme).status_code == 201


# -- changed limits ----------------------------------------------------------------------------------------------------

ADMITTED = "SERVING_UNAVAILABLE"


def error_code(client: TestClient, secret: str) -> str:
    """The error code of a request to a model. An admitted request finds no replica."""
    request = {"model": BASE, "messages": [{"role": "user", "content": "?"}]}
    return str(
        client.post("/v1/chat/completions", json=request, headers=bearer(secret)).json()["error"]["mens"]["code"]
    )


def test_changed_limits_apply_to_the_next_request(client: TestClient, acme: dict[str, str]) -> None:
    key = client.post("/v1/keys", json=BOT | {"requests_per_minute": 1}, headers=acme).json()
    secret = key.pop("secret")
    assert [error_code(client, secret) for _ in range(2)] == [ADMITTED, "RATE_LIMITED"]
    for change, limits, codes in (
        ({"requests_per_minute": 2}, (2, 4), [ADMITTED, "RATE_LIMITED"]),
        ({"concurrent_requests": None}, (2, None), ["RATE_LIMITED"]),
        ({}, (2, None), ["RATE_LIMITED"]),
        ({"requests_per_minute": None, "concurrent_requests": 3}, (None, 3), [ADMITTED] * 3),
        ({"requests_per_minute": 1}, (1, 3), ["RATE_LIMITED"]),
    ):
        changed = client.patch(f"/v1/keys/{key['id']}", json=change, headers=acme)
        key |= dict(zip(("requests_per_minute", "concurrent_requests"), limits, strict=True))
        assert (changed.status_code, changed.json()) == (200, key)
        assert [error_code(client, secret) for _ in codes] == codes
    assert client.get("/v1/keys", headers=acme).json()["data"][-1] == key


def test_changed_limits_reach_other_processes(client: TestClient, acme: dict[str, str], settings: ApiSettings) -> None:
    key = client.post("/v1/keys", json=BOT | {"requests_per_minute": 1}, headers=acme).json()
    with TestClient(create_app(settings)) as elsewhere:
        assert [error_code(elsewhere, key["secret"]) for _ in range(2)] == [ADMITTED, "RATE_LIMITED"]
        client.patch(f"/v1/keys/{key['id']}", json={"requests_per_minute": None}, headers=acme)
        deadline = time.monotonic() + 60
        while error_code(elsewhere, key["secret"]) != ADMITTED:
            assert time.monotonic() < deadline
            time.sleep(0.05)


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"requests_per_minute": 0}, "requests_per_minute"),
        ({"requests_per_minute": "many"}, "requests_per_minute"),
        ({"concurrent_requests": 1_000_001}, "concurrent_requests"),
        ({"concurrent_requests": 5, "tenant": "other"}, "tenant"),
        ({"requests_per_minute": 5, "role": "root"}, "role"),
    ],
)
def test_invalid_limits_change_nothing(client: TestClient, change: dict[str, Any], param: str) -> None:
    key = client.post("/v1/keys", json=BOT).json()
    assert error_of(client.patch(f"/v1/keys/{key['id']}", json=change)) == (422, "REQUEST_INVALID", param)
    del key["secret"]
    assert client.get("/v1/keys").json()["data"][-1] == key


def test_limits_of_a_revoked_key_cannot_be_changed(client: TestClient) -> None:
    key = client.post("/v1/keys", json=BOT).json()
    client.delete(f"/v1/keys/{key['id']}")
    response = client.patch(f"/v1/keys/{key['id']}", json={"requests_per_minute": 90})
    assert error_of(response) == (409, "KEY_REVOKED", "key_id")


def test_ids_with_a_nul_character_are_refused(client: TestClient) -> None:
    for method, path in (("DELETE", "/v1/keys/a%00"), ("GET", "/v1/adapters/a%00"), ("GET", "/v1/jobs/a%00")):
        assert error_of(client.request(method, path))[:2] == (422, "REQUEST_INVALID")
    assert error_of(client.get("/v1/models/a%00"))[:2] == (400, "REQUEST_INVALID")


# -- rotation and expiry -----------------------------------------------------------------------------------------------


def test_rotation_shows_a_new_secret_once_and_both_are_accepted(client: TestClient, acme: dict[str, str]) -> None:
    key = client.post("/v1/keys", json=BOT, headers=acme).json()
    made = client.post(f"/v1/keys/{key['id']}/rotate", json={"overlap_seconds": 600}, headers=acme)
    rotated = made.json()
    new = rotated.pop("secret")
    listed = client.get("/v1/keys", headers=acme)
    assert (made.status_code, listed.json()["data"][-1]) == (200, rotated)
    assert new not in listed.text
    for secret in (key["secret"], new):
        assert client.get("/v1/models", headers=bearer(secret)).status_code == 200
    client.post(f"/v1/keys/{key['id']}/rotate", json={"overlap_seconds": 0}, headers=acme)
    for secret in (key["secret"], new):
        assert error_of(client.get("/v1/models", headers=bearer(secret)))[:2] == (401, "KEY_INVALID")


@pytest.mark.parametrize("seconds", [-1, 90 * 86_400 + 1, None, "1h"])
def test_invalid_overlap_rotates_nothing(client: TestClient, acme: dict[str, str], seconds: object) -> None:
    key = client.post("/v1/keys", json=BOT, headers=acme).json()
    refused = client.post(f"/v1/keys/{key['id']}/rotate", json={"overlap_seconds": seconds}, headers=acme)
    assert error_of(refused) == (422, "REQUEST_INVALID", "overlap_seconds")
    assert client.get("/v1/keys", headers=acme).json()["data"][-1]["previous_secret_until"] is None


def test_expired_key_is_refused_in_openais_words(
    client: TestClient, acme: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    body = BOT | {"expires_at": "2200-01-01T00:00:00+01:00"}
    key = client.post("/v1/keys", json=body, headers=acme).json()
    assert key["expires_at"] == "2199-12-31T23:00:00Z"
    assert client.get("/v1/models", headers=bearer(key["secret"])).status_code == 200
    monkeypatch.setattr(lookup_cache, "now_seconds", lambda: 7.3e9)
    refused = client.get("/v1/models", headers=bearer(key["secret"]))
    assert error_of(refused)[:2] == (401, "KEY_EXPIRED")
    assert refused.json()["error"]["code"] == "invalid_api_key"
    assert refused.json()["error"]["message"].startswith("Incorrect API key provided")


def test_key_changes_its_name_role_and_expiry(client: TestClient, acme: dict[str, str]) -> None:
    key = client.post("/v1/keys", json=BOT, headers=acme).json()
    wanted = {"name": "robot", "role": "admin", "expires_at": "2200-01-01T00:00:00Z", "requests_per_minute": None}
    changed = client.patch(f"/v1/keys/{key['id']}", json=wanted, headers=acme)
    assert changed.json() == {field: value for field, value in (key | wanted).items() if field != "secret"}
    assert client.get("/v1/keys", headers=bearer(key["secret"])).status_code == 200, "an admin from now on"
    past = client.patch(f"/v1/keys/{key['id']}", json={"expires_at": "2020-01-01T00:00:00Z"}, headers=acme)
    assert error_of(past)[1:] == ("KEY_EXPIRY_INVALID", "expires_at")
    zoneless = client.patch(f"/v1/keys/{key['id']}", json={"expires_at": "2200-01-01T00:00:00"}, headers=acme)
    assert error_of(zoneless) == (422, "REQUEST_INVALID", "expires_at")
    taken = client.patch(f"/v1/keys/{key['id']}", json={"name": "boss"}, headers=acme)
    assert error_of(taken) == (409, "KEY_NAME_TAKEN", "name")
