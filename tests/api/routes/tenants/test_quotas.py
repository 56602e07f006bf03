"""Quotas, priorities and queue positions of jobs over the API."""

from __future__ import annotations

from typing import Any

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient

from shared.database.tenancy import SHARED, Role
from shared.worker_registry import WorkerMachine
from tests.support.waiting import eventually


@pytest.fixture
def as_key(app: FastAPI, client: TestClient) -> Any:
    """Sends a request with a new key of a tenant and role."""

    def send(tenant: str, role: Role, method: str, path: str, acting: str | None = None, **more: Any) -> Any:
        keys = app.state.services.keys
        names = {key.name for key in keys.all(tenant)}
        _, secret = keys.create(f"k{len(names)}", tenant, role)
        headers = {"Authorization": f"Bearer {secret}"} | ({"X-Mens-Tenant": acting} if acting else {})
        return client.request(method, path, headers=headers, **more)

    return send


def code_of(response: Any) -> tuple[int, str]:
    return response.status_code, response.json()["error"]["mens"]["code"]


def test_a_tenant_sees_its_quota_and_an_operator_sets_it(as_key: Any) -> None:
    quota = as_key("acme", Role.VIEWER, "GET", "/v1/quota").json()
    assert (quota["tenant"], quota["running_jobs"], quota["gpu_minutes_used"]) == ("acme", None, 0)
    refused = as_key("acme", Role.ADMIN, "PATCH", "/v1/quota", json={"running_jobs": 9})
    assert code_of(refused) == (403, "ROLE_INSUFFICIENT")
    changed = as_key(SHARED, Role.ADMIN, "PATCH", "/v1/quota", "acme", json={"running_jobs": 2})
    assert (changed.status_code, changed.json()["running_jobs"]) == (200, 2)
    assert as_key("acme", Role.VIEWER, "GET", "/v1/quota").json()["running_jobs"] == 2
    assert as_key(SHARED, Role.VIEWER, "GET", "/v1/quota").json()["running_jobs"] is None
    listed = as_key(SHARED, Role.ADMIN, "GET", "/v1/quotas").json()["data"]
    assert [one["tenant"] for one in listed] == ["acme"]


@pytest.mark.parametrize("body", [{"running_jobs": -1}, {"running": 1}, {"gpu_minutes_per_month": "many"}])
def test_a_wrong_quota_is_refused(client: TestClient, body: dict[str, Any]) -> None:
    assert client.patch("/v1/quota", json=body).status_code == 422


def test_refusals_say_how_much(client: TestClient, job_body: dict[str, Any]) -> None:
    client.patch("/v1/quota", json={"queued_jobs": 1, "gpu_minutes_per_month": 5})
    refused = client.post("/v1/jobs", json=job_body | {"max_gpu_minutes": 6})
    assert code_of(refused) == (403, "GPU_MINUTES_EXHAUSTED")
    assert refused.json()["error"]["mens"]["details"]["wanted"] == 6
    assert client.post("/v1/jobs", json=job_body | {"max_gpu_minutes": 1}).status_code == 201
    full = client.post("/v1/jobs", json=job_body | {"max_gpu_minutes": 1})
    assert code_of(full) == (429, "QUEUED_JOBS_LIMITED")
    assert full.headers["Retry-After"] == "60"


def test_openai_has_its_words_for_them(client: TestClient, job_body: dict[str, Any]) -> None:
    contract = job_body["contract"]
    body = {"model": contract["model"]["hf_repo"], "training_file": contract["data"]["train_file"]}
    body |= {"mens": {"max_gpu_minutes": 2, "priority": -1, "max_wall_seconds": 60}}
    job = client.post("/v1/fine_tuning/jobs", json=body).json()
    assert (job["mens"]["priority"], job["mens"]["max_gpu_minutes"], job["mens"]["max_wall_seconds"]) == (-1, 2, 60)
    client.patch("/v1/quota", json={"gpu_minutes_per_month": 1})
    error = client.post("/v1/fine_tuning/jobs", json=body).json()["error"]
    assert (error["code"], error["type"]) == ("insufficient_quota", "insufficient_quota")


def test_only_operators_raise_a_priority(as_key: Any, client: TestClient, job_body: dict[str, Any]) -> None:
    trainer = ("shared", Role.TRAINER)
    refused = as_key(*trainer, "POST", "/v1/jobs", json=job_body | {"priority": 1})
    assert code_of(refused) == (403, "ROLE_INSUFFICIENT")
    assert refused.json()["error"]["param"] == "priority"
    job = as_key(*trainer, "POST", "/v1/jobs", json=job_body | {"priority": -3}).json()
    assert job["priority"] == -3
    path = f"/v1/jobs/{job['id']}"
    assert as_key(*trainer, "PATCH", path, json={"priority": 0}).json()["priority"] == 0
    assert code_of(as_key(*trainer, "PATCH", path, json={"priority": 2})) == (403, "ROLE_INSUFFICIENT")
    assert client.patch(path, json={"priority": 2}).json()["priority"] == 2
    assert client.patch(path, json={"priority": 6}).status_code == 422


def test_a_repeated_request_with_another_priority_is_a_conflict(client: TestClient, job_body: dict[str, Any]) -> None:
    headers = {"Idempotency-Key": "once"}
    client.post("/v1/jobs", json=job_body | {"priority": -1}, headers=headers)
    assert client.post("/v1/jobs", json=job_body | {"priority": -1}, headers=headers).status_code == 201
    again = client.post("/v1/jobs", json=job_body, headers=headers)
    assert code_of(again) == (409, "IDEMPOTENCY_CONFLICT")


def placed(client: TestClient, job_id: str) -> Any:
    """A queued job with its place, which a busy machine reads only after the first answer."""

    def answer() -> Any:
        found = client.get(f"/v1/jobs/{job_id}")
        return found if found.json()["queue"] else None

    return eventually(answer)


def test_a_queued_job_shows_its_place(
    app: FastAPI, client: TestClient, job_body: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = WorkerMachine(device="cpu")
    monkeypatch.setattr(app.state.services.workers, "machines", lambda: [machine])
    first, second = (client.post("/v1/jobs", json=job_body).json()["id"] for _ in range(2))
    place = placed(client, second).json()["queue"]
    assert (place["position"], place["reason"], place["estimate_error"]) == (2, "submit_order", None)
    assert place["explanation"] == "The job before it was submitted earlier."
    (listed,) = [job for job in client.get("/v1/jobs").json()["data"] if job["id"] == first]
    assert listed["queue"]["position"] == 1
    assert listed["queue"]["estimated_start"]
    openai = client.get(f"/v1/fine_tuning/jobs/{second}").json()
    assert openai["mens"]["queue"]["position"] == 2
    client.post(f"/v1/jobs/{second}/cancel")
    assert client.get(f"/v1/jobs/{second}").json()["queue"] is None


def test_a_poll_sees_that_its_place_has_changed(
    app: FastAPI, client: TestClient, job_body: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("api.polling.queue_places.REFRESH_SECONDS", 0.0)
    monkeypatch.setattr("api.polling.queue_places.LARGEST_SHARE", 1e9)
    first, second = (client.post("/v1/jobs", json=job_body).json()["id"] for _ in range(2))
    tag = placed(client, second).headers["ETag"]
    client.post(f"/v1/jobs/{first}/cancel")

    def changed() -> Any:
        response = client.get(f"/v1/jobs/{second}", headers={"If-None-Match": tag})
        return response if response.status_code == 200 else None

    assert eventually(changed).json()["queue"]["position"] == 1
