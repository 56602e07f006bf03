"""The audit log over the API: every route that changes something leaves an event, and each caller can read only its
part.
"""

from __future__ import annotations

import hashlib
from typing import Any

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient

from shared.database.overview.audit_log import AuditEvent, AuditFilter, AuditLog
from shared.database.tenancy import SHARED, Role
from tests.api.web.access_matrix import MATRIX, Rule
from tests.support.tenants import ACME, OTHER, Installation

NO_EVENT = {
    # Requests to models change nothing; metrics and usage count them.
    "POST /v1/chat/completions",
    "POST /v1/completions",
    "POST /v1/responses",
    "POST /v1/embeddings",
    "POST /v1/tokenize",
    "POST /v1/detokenize",
    "POST /api/chat",
    "POST /api/generate",
    # What is checked, planned or judged, and not kept.
    "POST /v1/plans",
    "POST /v1/plans:compare",
    "POST /v1/policies:check",
    "POST /v1/promotions:evaluate",
    "POST /v1/fine_tuning/alpha/graders/run",
    "POST /v1/fine_tuning/alpha/graders/validate",
    # Parts of what has an event when it is begun and when it is completed; a sample, which is sent once and forgotten.
    "POST /v1/uploads/{upload_id}/parts",
    "POST /v1/webhook_endpoints/{webhook_endpoint_id}/test",
    # The beginning of a sign-in, which the provider may refuse.
    "POST /v1/sign_in/oidc",
}
APART = {"POST /v1/uploads/{upload_id}/complete", "POST /v1/sign_in/oidc/callback"}
"""The matrix repeats the first, which changes nothing, and has no identity provider for the second. `test_an_upload_leaves_its_events` and
`test_single_sign_on.py` have them.
"""
CHANGING = [route for route in MATRIX if not route.startswith("GET") and route not in NO_EVENT | APART]


def events(app: FastAPI, **which: Any) -> list[AuditEvent]:
    return list(AuditLog(app.state.services.database).list(AuditFilter(**which)))


@pytest.fixture
def installation(app: FastAPI) -> Installation:
    return Installation(app)


def test_every_route_that_changes_something_leaves_an_event(
    app: FastAPI, anonymous: TestClient, installation: Installation
) -> None:
    admin, operator = installation.bearer(ACME, Role.ADMIN), installation.bearer(SHARED, Role.ADMIN)
    silent = []
    for route in CHANGING:
        case = MATRIX[route][0]
        headers = operator | {"X-Mens-Tenant": ACME} if case.rule is Rule.OPERATE else admin
        thing = case.kind.thing(installation, ACME) if case.kind else ""
        response = case.send(anonymous, route, headers, thing)
        assert response.status_code == case.passes, f"{route}: {response.text}"
        found = [event for event in events(app) if event.request_id == response.headers["x-request-id"]]
        if not found or {event.actor_kind for event in found} != {"key"}:
            silent.append(route)
    assert not silent


def test_an_upload_leaves_its_events(app: FastAPI, client: TestClient) -> None:
    content = b'{"prompt": "a", "response": "b"}\n'
    body = {"bytes": len(content), "filename": "rows.jsonl", "mime_type": "text/jsonl", "purpose": "fine-tune"}
    upload = client.post("/v1/uploads", json=body).json()["id"]
    part = client.post(f"/v1/uploads/{upload}/parts", files={"data": content}).json()["id"]
    done = client.post(f"/v1/uploads/{upload}/complete", json={"part_ids": [part]}).json()
    found = [event for event in events(app) if event.object_type in ("upload", "file")]
    assert sorted((event.action, event.object_id) for event in found) == [
        ("file.created", done["file"]["id"]),
        ("upload.completed", upload),
        ("upload.created", upload),
    ]
    (made,) = (event for event in found if event.action == "file.created")
    assert made.changes["sha256"]["after"] == hashlib.sha256(content).hexdigest()


def test_an_event_says_who_where_and_by_which_request(app: FastAPI, client: TestClient) -> None:
    made = client.post("/v1/keys", json={"name": "bot", "role": "viewer"}, headers={"X-Request-Id": "mine"}).json()
    (event,) = events(app, object_id=made["id"])
    assert (event.actor_kind, event.actor, event.request_id, event.address) == ("key", "test", "mine", "testclient")


def test_a_failed_authentication_leaves_no_event(app: FastAPI, client: TestClient) -> None:
    before = len(events(app))
    assert client.get("/v1/keys", headers={"Authorization": "Bearer mens-wrong"}).status_code == 401
    assert len(events(app)) == before


def test_admins_read_their_tenants_events_and_operators_all(
    app: FastAPI, anonymous: TestClient, installation: Installation
) -> None:
    admin, operator = installation.bearer(ACME, Role.ADMIN), installation.bearer(SHARED, Role.ADMIN)
    installation.key(ACME)
    installation.key(OTHER)

    def tenants(headers: dict[str, str], **query: str) -> set[str]:
        response = anonymous.get("/v1/audit", params=query, headers=headers)
        assert response.status_code == 200, response.text
        return {event["tenant"] for event in response.json()["data"]}

    assert tenants(admin) == tenants(admin, tenant=ACME) == {ACME}
    assert tenants(operator) == {ACME, OTHER, SHARED}
    assert tenants(operator, tenant=OTHER) == {OTHER}
    assert tenants(operator | {"X-Mens-Tenant": ACME}) == {ACME}
    refused = anonymous.get("/v1/audit", params={"tenant": OTHER}, headers=admin)
    assert (refused.status_code, refused.json()["error"]["mens"]["code"]) == (403, "TENANT_FORBIDDEN")


def test_the_log_is_read_page_by_page(client: TestClient, installation: Installation) -> None:
    for _ in range(3):
        installation.key(ACME)
    query: dict[str, Any] = {"tenant": ACME, "limit": 2, "order": "asc"}
    first = client.get("/v1/audit", params=query).json()
    rest = client.get("/v1/audit", params=query | {"after": first["data"][-1]["seq"]}).json()
    assert (len(first["data"]), first["has_more"], len(rest["data"]), rest["has_more"]) == (2, True, 1, False)


@pytest.mark.parametrize(
    "query", ["after=-1", f"after={2**63}", "limit=1001", "since=yesterday", "order=up", "actor=%00"]
)
def test_a_wrong_query_is_refused(client: TestClient, query: str) -> None:
    assert client.get(f"/v1/audit?{query}").status_code == 422
