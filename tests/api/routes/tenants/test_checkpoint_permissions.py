"""Checkpoint permissions: another tenant's alias can point to an adapter only with a permission."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import openai
import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient

from shared.database.tenancy import SHARED, Role
from tests.support.tenants import Installation

OWNER, GUEST = "acme", "guest"


@pytest.fixture
def installation(app: FastAPI) -> Installation:
    return Installation(app)


@pytest.fixture
def owner(anonymous: TestClient, installation: Installation) -> dict[str, str]:
    return installation.bearer(OWNER, Role.ADMIN)


@pytest.fixture
def guest(anonymous: TestClient, installation: Installation) -> dict[str, str]:
    return installation.bearer(GUEST, Role.ADMIN)


@pytest.fixture
def adapter(installation: Installation) -> str:
    return installation.adapter(OWNER)


@pytest.fixture
def stock(anonymous: TestClient, owner: dict[str, str]) -> Iterator[openai.OpenAI]:
    """OpenAI's Python client with the owner's key, strict about what comes back."""
    secret = owner["Authorization"].removeprefix("Bearer ")
    with openai.OpenAI(
        base_url="http://testserver/v1", api_key=secret, http_client=anonymous, _strict_response_validation=True
    ) as client:
        yield client


def path(adapter: str, permission: str = "") -> str:
    return f"/v1/fine_tuning/checkpoints/{adapter}/permissions{permission and '/'}{permission}"


def grant(client: TestClient, headers: dict[str, str], adapter: str, *projects: str) -> Any:
    return client.post(path(adapter), json={"project_ids": projects}, headers=headers)


def point(client: TestClient, headers: dict[str, str], adapter: str) -> Any:
    return client.put("/v1/aliases/support", json={"adapter": adapter}, headers=headers)


def code_of(response: Any) -> tuple[int, str]:
    return response.status_code, response.json()["error"]["mens"]["code"]


def test_openais_client_gives_lists_and_takes_back(stock: openai.OpenAI, adapter: str) -> None:
    verbs = stock.fine_tuning.checkpoints.permissions
    made = {one.project_id: one for one in verbs.create(adapter, project_ids=["guest", "other", "third"])}
    assert list(made) == ["guest", "other", "third"]
    assert {one.object for one in made.values()} == {"checkpoint.permission"}
    assert verbs.create(adapter, project_ids=["guest"]).data == [made["guest"]], "a repeated call changes nothing"
    newest = [one.id for one in verbs.list(adapter, limit=2)]
    assert newest == [one.id for one in verbs.list(adapter, order="ascending")][::-1], "two pages, and one"
    assert [one.project_id for one in verbs.list(adapter, project_id="other")] == ["other"]
    with pytest.deprecated_call():
        page = verbs.retrieve(adapter, limit=1, order="ascending", after=newest[-1])
    assert (page.has_more, page.first_id) == (True, newest[1])
    deleted = verbs.delete(made["guest"].id, fine_tuned_model_checkpoint=adapter)
    assert (deleted.id, deleted.deleted) == (made["guest"].id, True)
    assert [one.project_id for one in verbs.list(adapter, project_id="guest")] == []
    with pytest.raises(openai.NotFoundError, match=r"The permission .* does not exist"):
        verbs.delete(made["guest"].id, fine_tuned_model_checkpoint=adapter)


def test_an_alias_of_another_tenant_takes_the_adapter_with_a_permission_alone(
    anonymous: TestClient, owner: dict[str, str], guest: dict[str, str], adapter: str
) -> None:
    assert code_of(point(anonymous, guest, adapter)) == (404, "ADAPTER_NOT_FOUND")
    permission = grant(anonymous, owner, adapter, GUEST).json()["data"][0]["id"]
    assert point(anonymous, guest, adapter).status_code == 200
    assert anonymous.get(f"/v1/models/{adapter}", headers=guest).json()["owned_by"] == GUEST
    job = anonymous.get(f"/v1/adapters/{adapter}", headers=guest).json()["job_id"]
    assert code_of(anonymous.get(f"/v1/jobs/{job}", headers=guest)) == (404, "JOB_NOT_FOUND")
    used = anonymous.delete(path(adapter, permission), headers=owner)
    assert code_of(used) == (409, "MODEL_IN_USE")
    assert "support" not in used.text, "names of another tenant's aliases are its own"
    anonymous.delete("/v1/aliases/support", headers=guest)
    assert anonymous.delete(path(adapter, permission), headers=owner).status_code == 200
    assert code_of(point(anonymous, guest, adapter)) == (404, "ADAPTER_NOT_FOUND")
    assert anonymous.get(f"/v1/models/{adapter}", headers=guest).status_code == 404
    assert anonymous.get(f"/v1/models/{adapter}", headers=owner).status_code == 200
    assert grant(anonymous, owner, adapter, GUEST).status_code == 200
    assert point(anonymous, guest, adapter).status_code == 200, "given again after it was taken back"


def test_what_was_lent_is_not_lent_on_nor_by_others(
    anonymous: TestClient, owner: dict[str, str], guest: dict[str, str], adapter: str
) -> None:
    assert code_of(grant(anonymous, guest, adapter, "third")) == (404, "MODEL_NOT_FOUND")
    grant(anonymous, owner, adapter, GUEST)
    assert code_of(grant(anonymous, guest, adapter, "third")) == (403, "TENANT_FORBIDDEN")
    assert code_of(anonymous.get(path(adapter), headers=guest)) == (403, "TENANT_FORBIDDEN")


def test_only_an_operator_lends_to_everyone(
    client: TestClient, installation: Installation, owner: dict[str, str], guest: dict[str, str], adapter: str
) -> None:
    assert code_of(grant(client, owner, adapter, SHARED)) == (403, "TENANT_FORBIDDEN")
    operator = installation.bearer(SHARED, Role.ADMIN) | {"X-Mens-Tenant": OWNER}
    assert grant(client, operator, adapter, SHARED).status_code == 200
    assert point(client, guest, adapter).status_code == 200


def test_a_lent_adapter_is_deleted_once_nobody_may_use_it(
    anonymous: TestClient, owner: dict[str, str], guest: dict[str, str], adapter: str
) -> None:
    permission = grant(anonymous, owner, adapter, GUEST).json()["data"][0]["id"]
    refused = anonymous.delete(f"/v1/models/{adapter}", headers=owner)
    assert code_of(refused) == (409, "MODEL_IN_USE")
    assert refused.json()["error"]["mens"]["details"] == {"permissions": [permission]}
    assert anonymous.delete(f"/v1/models/{adapter}", headers=guest).status_code == 200, "its own record"
    assert anonymous.get(f"/v1/models/{adapter}", headers=owner).status_code == 200
    assert anonymous.delete(path(adapter, permission), headers=owner).status_code == 200
    assert anonymous.delete(f"/v1/models/{adapter}", headers=owner).status_code == 200


@pytest.mark.parametrize("projects", [[], ["No Name"], [OWNER], "guest", ["a"] * 101])
def test_wrong_projects_are_refused(anonymous: TestClient, owner: dict[str, str], adapter: str, projects: Any) -> None:
    response = anonymous.post(path(adapter), json={"project_ids": projects}, headers=owner)
    assert response.status_code in (400, 422)
    assert "project_ids" in response.json()["error"]["param"]
