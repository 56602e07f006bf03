"""DELETE /v1/models/{id}, as a caller meets it: what it answers, what is gone at once, and what stays."""

from __future__ import annotations

from urllib.parse import quote

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient

from shared.tenancy import SHARED, Role
from tests.api.conftest import BASE
from tests.api.installation import Installation


@pytest.fixture
def installation(app: FastAPI) -> Installation:
    return Installation(app)


@pytest.fixture
def admin(anonymous: TestClient, installation: Installation) -> TestClient:
    anonymous.headers.update(installation.bearer(SHARED, Role.ADMIN))
    return anonymous


def error_of(response) -> tuple[int, str]:
    return response.status_code, response.json()["error"]["code"]


@pytest.mark.parametrize("spelled", ["plain", "percent-encoded"])
def test_it_is_gone_at_once_and_again_is_the_same(admin, installation, spelled) -> None:
    adapter = installation.adapter(SHARED)
    path = f"/v1/models/{adapter if spelled == 'plain' else quote(adapter, safe='')}"
    for _ in range(2):
        answer = admin.delete(path)
        assert (answer.status_code, answer.json()) == (200, {"id": adapter, "object": "model", "deleted": True})
    assert error_of(admin.get(path)) == (404, "MODEL_NOT_FOUND")
    assert adapter not in [model["id"] for model in admin.get("/v1/models").json()["data"]]
    chat = {"model": adapter, "messages": [{"role": "user", "content": "Hello?"}]}
    assert error_of(admin.post("/v1/chat/completions", json=chat)) == (404, "MODEL_NOT_FOUND")
    assert error_of(admin.put("/v1/aliases/prod", json={"adapter": adapter})) == (404, "ADAPTER_NOT_FOUND")


def test_its_record_stays(admin, installation) -> None:
    adapter = installation.adapter(SHARED)
    before = admin.get(f"/v1/adapters/{adapter}").json()
    admin.delete(f"/v1/models/{adapter}")
    record = admin.get(f"/v1/adapters/{adapter}").json()
    assert (before["state"], record["state"], record["deleted_at"]) == ("published", "deleting", None)
    assert (before["published"], record["published"]) == (True, False)
    assert (record["manifest"], record["job_id"]) == (before["manifest"], before["job_id"])
    assert admin.get(f"/v1/jobs/{record['job_id']}").json()["result"]["adapters"][-1] == adapter


def test_aliases_that_point_to_it_are_named(admin, installation) -> None:
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


def test_a_merge_that_is_not_over_is_named(admin, installation) -> None:
    adapter = installation.adapter(SHARED)
    job = admin.post("/v1/jobs", json={"kind": "merge", "contract": {"adapter": adapter}}).json()
    refused = admin.delete(f"/v1/models/{adapter}")
    assert error_of(refused) == (409, "MODEL_IN_USE")
    assert refused.json()["error"]["mens"]["details"]["jobs"] == [job["id"]]
    admin.post(f"/v1/jobs/{job['id']}/cancel")
    assert admin.delete(f"/v1/models/{adapter}").status_code == 200
    again = admin.post("/v1/jobs", json={"kind": "merge", "contract": {"adapter": adapter}})
    assert error_of(again) == (404, "ADAPTER_NOT_FOUND")


def test_bases_and_aliases_are_not_deleted_here(admin, installation) -> None:
    alias = installation.alias(SHARED)
    for name, remedy in ((BASE, "catalogue"), (alias, f"DELETE /v1/aliases/{alias}")):
        refused = admin.delete(f"/v1/models/{name}")
        assert error_of(refused) == (409, "MODEL_NOT_DELETABLE")
        assert remedy in refused.json()["error"]["message"] + str(refused.json()["error"]["mens"])
        assert admin.get(f"/v1/models/{name}").status_code == 200


@pytest.mark.parametrize("name", ["none", f"demo@{'0' * 64}", "a/b", "..%2Fa", "a" * 160])
def test_what_is_not_there(admin, name) -> None:
    assert error_of(admin.delete(f"/v1/models/{name}")) == (404, "MODEL_NOT_FOUND")


def test_a_checkpoint_goes_alone(admin, installation) -> None:
    job = admin.get(f"/v1/jobs/{installation.finished_job(SHARED)}").json()
    checkpoint, result = job["result"]["adapters"]
    assert admin.delete(f"/v1/models/{checkpoint}").status_code == 200
    assert admin.get(f"/v1/models/{result}").status_code == 200
