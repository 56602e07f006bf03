"""DELETE /v1/models/{id} as a caller sees it: the response, what is removed immediately, and what is kept."""

from __future__ import annotations

from urllib.parse import quote

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient

from shared.database.tenancy import SHARED, Role
from tests.support.builders import BASE
from tests.support.tenants import Installation


@pytest.fixture
def installation(app: FastAPI) -> Installation:
    return Installation(app)


@pytest.fixture
def admin(anonymous: TestClient, installation: Installation) -> TestClient:
    anonymous.headers.update(installation.bearer(SHARED, Role.ADMIN))
    return anonymous


def error_of(response) -> tuple[int, str]:
    return response.status_code, response.json()["error"]["mens"]["code"]


@pytest.mark.parametrize("spelled", ["plain", "percent-encoded"])
def test_deleted_adapter_is_gone_at_once_and_deletion_is_idempotent(admin, installation, spelled) -> None:
    adapter = installation.adapter(SHARED)
    path = f"/v1/models/{adapter if spelled == 'plain' else quote(adapter, safe='')}"
    for _ in range(2):
        response = admin.delete(path)
        assert (response.status_code, response.json()) == (200, {"id": adapter, "object": "model", "deleted": True})
    assert error_of(admin.get(path)) == (404, "MODEL_NOT_FOUND")
    assert adapter not in [model["id"] for model in admin.get("/v1/models").json()["data"]]
    chat = {"model": adapter, "messages": [{"role": "user", "content": "Hello?"}]}
    assert error_of(admin.post("/v1/chat/completions", json=chat)) == (404, "MODEL_NOT_FOUND")
    assert error_of(admin.put("/v1/aliases/prod", json={"adapter": adapter})) == (404, "ADAPTER_NOT_FOUND")


@pytest.mark.parametrize("file", ["README.md", "adapter_manifest.json", "adapter_model.safetensors"])
def test_files_that_the_storage_has_lost_are_said_to_be(admin, installation, file) -> None:
    path = f"/v1/adapters/{installation.adapter(SHARED)}/files/{file}"
    assert error_of(admin.get(path)) == (404, "STORAGE_OBJECT_MISSING")


def test_deleted_adapter_keeps_its_record(admin, installation) -> None:
    adapter = installation.adapter(SHARED)
    before = admin.get(f"/v1/adapters/{adapter}").json()
    admin.delete(f"/v1/models/{adapter}")
    record = admin.get(f"/v1/adapters/{adapter}").json()
    assert (before["state"], record["state"], record["deleted_at"]) == ("published", "deleting", None)
    assert (before["published"], record["published"]) == (True, False)
    assert (record["manifest"], record["job_id"]) == (before["manifest"], before["job_id"])
    assert admin.get(f"/v1/jobs/{record['job_id']}").json()["result"]["adapters"][-1] == adapter


def test_refusal_names_the_aliases_that_point_to_it(admin, installation) -> None:
    adapter = installation.adapter(SHARED)
    other = installation.adapter(SHARED)
    admin.put("/v1/aliases/prod", json={"adapter": adapter})
    admin.put("/v1/aliases/canary", json={"adapter": other, "shadow": {"adapter": adapter, "share": 0.5}})
    refused = admin.delete(f"/v1/models/{adapter}")
    assert error_of(refused) == (409, "MODEL_IN_USE")
    assert refused.json()["error"]["mens"]["details"] == {"aliases": ["canary", "prod"], "jobs": []}
    admin.delete("/v1/aliases/prod")
    admin.put("/v1/aliases/canary", json={"adapter": other})
    assert admin.delete(f"/v1/models/{adapter}").status_code == 200


def test_refusal_names_the_unfinished_merge(admin, installation) -> None:
    adapter = installation.adapter(SHARED)
    job = admin.post("/v1/jobs", json={"kind": "merge", "contract": {"adapter": adapter}}).json()
    refused = admin.delete(f"/v1/models/{adapter}")
    assert error_of(refused) == (409, "MODEL_IN_USE")
    assert refused.json()["error"]["mens"]["details"]["jobs"] == [job["id"]]
    admin.post(f"/v1/jobs/{job['id']}/cancel")
    assert admin.delete(f"/v1/models/{adapter}").status_code == 200
    again = admin.post("/v1/jobs", json={"kind": "merge", "contract": {"adapter": adapter}})
    assert error_of(again) == (404, "ADAPTER_NOT_FOUND")


def test_bases_and_aliases_are_refused(admin, installation) -> None:
    alias = installation.alias(SHARED)
    for name, remedy in ((BASE, f"`mens base remove {BASE}`"), (alias, f"DELETE /v1/aliases/{alias}")):
        refused = admin.delete(f"/v1/models/{name}")
        assert error_of(refused) == (409, "MODEL_NOT_DELETABLE")
        assert remedy in refused.json()["error"]["message"] + str(refused.json()["error"]["mens"])
        assert admin.get(f"/v1/models/{name}").status_code == 200


@pytest.mark.parametrize("name", ["none", f"demo@{'0' * 64}", "a/b", "..%2Fa", "a" * 160])
def test_unknown_model_is_not_found(admin, name) -> None:
    assert error_of(admin.delete(f"/v1/models/{name}")) == (404, "MODEL_NOT_FOUND")


def test_checkpoint_is_deleted_without_the_result(admin, installation) -> None:
    job = admin.get(f"/v1/jobs/{installation.finished_job(SHARED)}").json()
    checkpoint, result = job["result"]["adapters"]
    assert admin.delete(f"/v1/models/{checkpoint}").status_code == 200
    assert admin.get(f"/v1/models/{result}").status_code == 200
