"""Misuse of a parent, through both routes and with both methods: each has a code before a job exists."""

from __future__ import annotations

import json
from typing import Any

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient

from shared.base_models.catalog import Catalog, load_catalog, save_catalog
from shared.database.deletions import Deletions
from tests.support.builders import BASE
from tests.support.parents import add_adapter, another, manifest_of
from tests.support.preference_rows import openai_row


@pytest.fixture
def pairs_file(client: TestClient) -> str:
    """Id of an uploaded file with forty preferences."""
    rows = b"".join(json.dumps(openai_row(f"Why {number}?")).encode() + b"\n" for number in range(40))
    return str(client.post("/v1/files", data={"purpose": "fine-tune"}, files={"file": ("p.jsonl", rows)}).json()["id"])


@pytest.fixture
def misused(app: FastAPI, client: TestClient) -> dict[str, str]:
    """Ids of adapters that cannot be continued, by the reason."""
    services = app.state.services
    manifest = manifest_of(services.catalog().get(BASE))
    catalog = load_catalog(services.settings.catalog_path)
    other = catalog.bases[0].model_copy(update={"name": "other", "digests": {"config.json": "f" * 64}})
    save_catalog(services.settings.catalog_path, Catalog(bases=[*catalog.bases, other]))
    gone, going, wide = (another(manifest, name) for name in ("gone", "going", "wide"))
    of_other = another(manifest, "other").model_copy(update={"base_model": "other", "base_digests": other.digests})
    failed: dict[str, Any] = {"published": False, "certificates": {"http://replica": {"failed": ["effect"]}}}
    found = {
        "deleted": add_adapter(services.database, gone),
        "deleting": add_adapter(services.database, going),
        "of another tenant": add_adapter(services.database, another(manifest, "theirs"), "acme"),
        "quarantined": add_adapter(services.database, another(manifest, "bad"), **failed),
        "of a higher rank": add_adapter(services.database, wide.model_copy(update={"rank": 64, "alpha": 128})),
        "of another base": add_adapter(services.database, of_other),
    }
    client.delete(f"/v1/models/{found['deleted']}")
    (pending,) = Deletions(services.database).pending()
    Deletions(services.database).finish(pending, lambda: None)
    client.delete(f"/v1/models/{found['deleting']}")
    return found


@pytest.mark.parametrize("route", ["native", "openai"])
@pytest.mark.parametrize("method", ["supervised", "dpo"])
@pytest.mark.parametrize(
    ("parent_is", "code"),
    [
        ("deleted", "ADAPTER_NOT_FOUND"),
        ("deleting", "CONTINUE_NOT_READY"),
        ("of another tenant", "ADAPTER_NOT_FOUND"),
        ("quarantined", "CONTINUE_NOT_READY"),
        ("of a higher rank", "CONTINUE_SHAPE_UNSUPPORTED"),
        ("of another base", "CONTINUE_BASE_MISMATCH"),
    ],
)
def test_misuse_of_a_parent_has_a_code_before_a_job_exists(
    app: FastAPI,
    client: TestClient,
    train_file: str,
    pairs_file: str,
    misused: dict[str, str],
    route: str,
    method: str,
    parent_is: str,
    code: str,
) -> None:
    file = pairs_file if method == "dpo" else train_file
    adapter = {"continue_from": misused[parent_is], "rank": 16}
    if route == "native":
        sections = {"method": {"type": method}, "adapter": adapter, "model": {"hf_repo": BASE}}
        response = client.post("/v1/jobs", json={"contract": {"data": {"train_file": file}} | sections})
    else:
        body = {"training_file": file, "model": BASE, "method": {"type": method}, "mens": {"adapter": adapter}}
        response = client.post("/v1/fine_tuning/jobs", json=body)
    told = response.json()["error"]["mens"]
    assert (told["code"], bool(told["remedy"])) == (code, True)
    assert app.state.services.job_queue.enqueued == []
    assert {job["kind"] for job in client.get("/v1/jobs").json()["data"]} == {"import"}, "the parents' own jobs"
