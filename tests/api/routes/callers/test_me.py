"""GET /v1/me returns the caller, its tenant, and when its key or sign-in expires."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient

from api.main import VERSION
from shared.database.callers.sign_ins import SignIns
from shared.database.tenancy import SHARED, Role
from tests.support.sign_ins import CHALLENGE, signed_in_headers


def test_key_of_a_tenant(app: FastAPI, anonymous: TestClient) -> None:
    ends = datetime.now(UTC).replace(microsecond=0) + timedelta(hours=2)
    _, secret = app.state.services.keys.create("alice", "acme", Role.TRAINER, expires_at=ends)
    told = anonymous.get("/v1/me", headers={"Authorization": f"Bearer {secret}"}).json()
    assert datetime.fromisoformat(told.pop("expires_at")) == ends
    assert told == {
        "object": "caller",
        "name": "alice",
        "kind": "key",
        "tenant": "acme",
        "role": "trainer",
        "is_operator": False,
        "tenants": [{"tenant": "acme", "role": "trainer"}],
        "release": VERSION,
    }


def test_stream_from_the_cursor_has_what_changed_since(app: FastAPI, client: TestClient) -> None:
    """A page asks for its content when it knows the caller; its stream begins before that."""
    before = datetime.now(UTC)
    cursor = client.get("/v1/me").headers["X-Mens-Last-Event-ID"]
    assert before - timedelta(seconds=1) <= datetime.fromtimestamp(int(cursor) / 1000, UTC) <= datetime.now(UTC)


def test_operator_who_acts_for_a_tenant(app: FastAPI, client: TestClient) -> None:
    app.state.services.keys.create("alice", "acme")
    told = client.get("/v1/me", headers={"X-Mens-Tenant": "acme"}).json()
    assert (told["tenant"], told["role"], told["is_operator"]) == ("acme", "admin", True)
    assert told["tenants"] == [{"tenant": SHARED, "role": "admin"}]
    assert told["expires_at"] is None


def test_sign_in_ends_before_its_key(app: FastAPI, client: TestClient) -> None:
    answer = client.post("/v1/sign_ins", json={"challenge": CHALLENGE})
    del client.headers["Authorization"]
    told = client.get("/v1/me", headers=signed_in_headers(answer)).json()
    assert (told["name"], told["expires_at"]) == ("test", answer.json()["expires_at"])


def test_end_of_a_sign_in_is_not_read_again(app: FastAPI, client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each page of the console begins with this request, while it reads the list."""
    answer = client.post("/v1/sign_ins", json={"challenge": CHALLENGE})
    del client.headers["Authorization"]

    def read_again(*_: object) -> None:
        raise AssertionError("the sign-in was read besides its key")

    monkeypatch.setattr(SignIns, "get", read_again)
    told = client.get("/v1/me", headers=signed_in_headers(answer)).json()
    assert told["expires_at"] == answer.json()["expires_at"]
