"""Quotas of tenants: stored files, rates of uploads and plans, and the requests of all their keys to models together."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient

from api.inference.rate_limits.limiter import RateLimiter
from api.inference.rate_limits.stores import SharedStore
from api.settings import ApiSettings
from shared.database.tenancy import KeyLimits, Role
from tests.support.builders import BASE

ROW = b'{"prompt": "a", "response": "b"}\n'


class Tenant:
    """A tenant's clients, each with a key of its own."""

    def __init__(self, app: FastAPI, client: TestClient, name: str) -> None:
        self._app, self._client, self._name = app, client, name

    def request(self, method: str, path: str, key: int = 0, name: str | None = None, **more: Any) -> Any:
        """One request, by one of its keys."""
        keys = self._app.state.services.keys
        secrets = self.__dict__.setdefault("secrets", {})
        if key not in secrets:
            limits = KeyLimits(requests_per_minute=100)
            secrets[key] = keys.create(f"k{key}", self._name, Role.ADMIN, limits)[1]
        headers = {"Authorization": f"Bearer {secrets[key]}"} | ({"Idempotency-Key": name} if name else {})
        return self._client.request(method, path, headers=headers, **more)

    def upload(self, content: bytes = ROW, key: int = 0, name: str | None = None) -> Any:
        """An upload; ``name`` is its Idempotency-Key."""
        form = {"data": {"purpose": "fine-tune"}, "files": {"file": ("rows.jsonl", content)}}
        return self.request("POST", "/v1/files", key, name, **form)


def outcome(response: Any) -> tuple[int, str | None]:
    body = response.json()
    return response.status_code, body["error"]["mens"]["code"] if "error" in body else None


@pytest.fixture
def configure(app: FastAPI) -> Any:
    """Sets settings of the application."""

    def set_all(**values: Any) -> None:
        services = app.state.services
        settings = services.settings.model_copy(update=values)
        object.__setattr__(services, "settings", settings)
        limiter = RateLimiter(SharedStore(None), pauses=(), tenant_limits=settings.tenant_limits)
        object.__setattr__(services.gateway, "limiter", limiter)

    return set_all


@pytest.fixture
def tenants(app: FastAPI, anonymous: TestClient) -> Iterator[tuple[Tenant, Tenant, Tenant]]:
    names = ("acme", "other", "shared")
    first, second, shared = (Tenant(app, anonymous, name) for name in names)
    yield first, second, shared


def test_files_of_a_tenant_are_limited(tenants: tuple[Tenant, ...], configure: Any) -> None:
    acme, other, shared = tenants
    configure(tenant_max_files=2)
    ids = [acme.upload(key=key).json()["id"] for key in range(2)]
    assert outcome(acme.upload(key=2)) == (403, "QUOTA_EXCEEDED")
    assert outcome(other.upload()) == (200, None), "another tenant has its own"
    assert [outcome(shared.upload()) for _ in range(3)] == [(200, None)] * 3
    acme.request("DELETE", f"/v1/files/{ids[0]}")
    assert outcome(acme.upload()) == (200, None)


def test_bytes_of_a_tenant_are_limited(tenants: tuple[Tenant, ...], configure: Any) -> None:
    acme, other, _ = tenants
    configure(tenant_max_bytes=3 * len(ROW))
    assert outcome(acme.upload(2 * ROW)) == (200, None)
    assert outcome(acme.upload(2 * ROW)) == (403, "QUOTA_EXCEEDED")
    assert outcome(acme.upload(ROW)) == (200, None)
    assert outcome(acme.upload(b"x")) == (403, "QUOTA_EXCEEDED")
    assert outcome(other.upload(3 * ROW)) == (200, None)


def test_refused_file_takes_no_space(tenants: tuple[Tenant, ...], configure: Any, settings: ApiSettings) -> None:
    acme, other, _ = tenants
    configure(tenant_max_bytes=3 * len(ROW))
    blobs = settings.storage_dir / "blobs"
    for tenant, key in ((acme, None), (other, "once")):
        assert outcome(tenant.upload(2 * ROW, name=key))[0] == 200
        assert outcome(tenant.upload(2 * ROW + b"x"))[1] == "QUOTA_EXCEEDED"
    assert outcome(other.upload(2 * ROW, name="once")) == (200, None), "what is repeated fits in"
    assert len([path for path in blobs.rglob("*") if path.is_file()]) == 1


def test_rows_that_come_with_a_job_count_in_the_quota(tenants: tuple[Tenant, ...], configure: Any) -> None:
    acme, *_ = tenants
    configure(tenant_max_bytes=10)
    body = {"model": BASE, "data": [{"prompt": "a", "completion": "b"}]}
    assert outcome(acme.request("POST", "/v1/jobs", json=body)) == (403, "QUOTA_EXCEEDED")


def test_uploads_at_the_same_moment_share_the_quota(app: FastAPI, configure: Any) -> None:
    configure(tenant_max_bytes=10)
    files, quota = app.state.services.files.of("acme"), app.state.services.settings.file_quota
    assert (files.room(quota), files.room(quota)) == (10, 10), "both have begun"
    files.add("a", "fine-tune", 7, "0" * 64, None, quota)
    with pytest.raises(Exception, match="QUOTA_EXCEEDED"):
        files.add("b", "fine-tune", 7, "1" * 64, None, quota)


def test_uploads_a_minute_are_limited(tenants: tuple[Tenant, ...], configure: Any) -> None:
    acme, other, shared = tenants
    configure(tenant_uploads_per_minute=3)
    assert [outcome(acme.upload(key=key))[0] for key in range(3)] == [200] * 3
    refused = acme.upload(key=3)
    assert outcome(refused) == (429, "RATE_LIMITED")
    assert 1 <= int(refused.headers["Retry-After"]) <= 60
    assert outcome(other.upload()) == (200, None)
    assert [outcome(shared.upload())[0] for _ in range(4)] == [200] * 4


@pytest.mark.parametrize("path", ["/v1/plans", "/v1/jobs", "/v1/fine_tuning/jobs"])
def test_plans_a_minute_are_limited(tenants: tuple[Tenant, ...], configure: Any, path: str) -> None:
    acme, other, _ = tenants
    configure(tenant_plans_per_minute=2)
    bodies = {
        "/v1/plans": {"contract": {"model": {"hf_repo": "none"}, "data": {"train_file": "file-0"}}},
        "/v1/jobs": {"kind": "merge", "contract": {"adapter": "none"}},
        "/v1/fine_tuning/jobs": {"model": "none", "training_file": "file-0"},
    }
    statuses = [acme.request("POST", path, key, json=bodies[path]).status_code for key in range(4)]
    assert statuses == [404, 404, 429, 429]
    assert other.request("POST", path, json=bodies[path]).status_code == 404


@pytest.mark.parametrize("path", ["rows", "report"])
def test_views_of_files_a_minute_are_limited(tenants: tuple[Tenant, ...], configure: Any, path: str) -> None:
    acme, other, shared = tenants
    configure(tenant_file_views_per_minute=2)
    statuses = [acme.request("GET", f"/v1/files/file-0/{path}", key).status_code for key in range(4)]
    assert statuses == [404, 404, 429, 429]
    assert other.request("GET", f"/v1/files/file-0/{path}").status_code == 404
    assert [shared.request("GET", f"/v1/files/file-0/{path}").status_code for _ in range(4)] == [404] * 4


def test_requests_to_models_of_all_keys_of_a_tenant_are_limited(tenants: tuple[Tenant, ...], configure: Any) -> None:
    acme, other, shared = tenants
    configure(tenant_requests_per_minute=3)

    def chat(tenant: Tenant, key: int = 0) -> Any:
        body = {"model": "none", "messages": [{"role": "user", "content": "a"}]}
        return tenant.request("POST", "/v1/chat/completions", key, json=body)

    assert [chat(acme, key).status_code for key in range(3)] == [404] * 3
    refused = chat(acme, 3)
    assert outcome(refused) == (429, "RATE_LIMITED")
    assert "tenant 'acme'" in refused.json()["error"]["message"]
    assert chat(other).status_code == 404
    assert [chat(shared).status_code for _ in range(4)] == [404] * 4
