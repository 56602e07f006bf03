"""Responses of the API itself on OpenAI's routes match OpenAI's specification; for responses of models, see
tests/system/test_openai_specification.py.
"""

from __future__ import annotations

from typing import Any

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient

from shared.database.tenancy import SHARED, Role
from tests.support.openai_specification import OpenAISpecification
from tests.support.tenants import Installation
from tests.system.fetched import environment

pytestmark = pytest.mark.network

CONTENT = b'{"prompt": "Hi", "response": "Hello"}\n'
CHECK = {"type": "string_check", "name": "same", "operation": "eq", "input": "{{sample.output_text}}"}


@pytest.fixture(scope="module")
def specification() -> OpenAISpecification:
    return OpenAISpecification(environment("checkers").parents[1])


@pytest.fixture
def installation(app: FastAPI) -> Installation:
    return Installation(app)


@pytest.fixture
def admin(anonymous: TestClient, installation: Installation) -> TestClient:
    anonymous.headers.update(installation.bearer(SHARED, Role.ADMIN))
    return anonymous


def begun(admin: TestClient) -> Any:
    body = {"filename": "rows.jsonl", "mime_type": "text/jsonl", "purpose": "fine-tune", "bytes": len(CONTENT)}
    return admin.post("/v1/uploads", json=body).json()


def test_uploads_are_as_specified(specification: OpenAISpecification, admin: TestClient) -> None:
    upload, other = begun(admin), begun(admin)
    part = admin.post(f"/v1/uploads/{upload['id']}/parts", files={"data": CONTENT}).json()
    assert specification.fault("UploadPart", part) is None
    completed = admin.post(f"/v1/uploads/{upload['id']}/complete", json={"part_ids": [part["id"]]}).json()
    assert completed["file"]["object"] == "file"
    cancelled = admin.post(f"/v1/uploads/{other['id']}/cancel").json()
    for answer, status in ((upload, "pending"), (completed, "completed"), (cancelled, "cancelled")):
        assert answer["status"] == status
        assert specification.fault("Upload", answer) is None


def test_permissions_are_as_specified(
    specification: OpenAISpecification, admin: TestClient, installation: Installation
) -> None:
    route = f"/v1/fine_tuning/checkpoints/{installation.adapter(SHARED)}/permissions"
    made = admin.post(route, json={"project_ids": ["acme", "other"]}).json()
    for page in (made, admin.get(route).json(), admin.get(route, params={"project_id": "nobody"}).json()):
        assert specification.fault("ListFineTuningCheckpointPermissionResponse", page) is None
    deleted = admin.delete(f"{route}/{made['data'][0]['id']}").json()
    assert specification.fault("DeleteFineTuningCheckpointPermissionResponse", deleted) is None


def test_deletion_of_a_model_is_as_specified(
    specification: OpenAISpecification, admin: TestClient, installation: Installation
) -> None:
    deleted = admin.delete(f"/v1/models/{installation.adapter(SHARED)}").json()
    assert specification.fault("DeleteModelResponse", deleted) is None


@pytest.mark.parametrize("reference", ["Hello", "{{item.missing}}"])
def test_graders_are_as_specified(specification: OpenAISpecification, admin: TestClient, reference: str) -> None:
    grader = CHECK | {"reference": reference}
    graders = "/v1/fine_tuning/alpha/graders"
    checked = admin.post(f"{graders}/validate", json={"grader": grader}).json()
    assert specification.fault("ValidateGraderResponse", checked) is None
    body = {"grader": grader, "item": {}, "model_sample": "Hello"}
    run = admin.post(f"{graders}/run", json=body).json()
    assert run["metadata"]["errors"]["invalid_variable_error"] is (reference != "Hello")
    assert specification.fault("RunGraderResponse", run) is None
