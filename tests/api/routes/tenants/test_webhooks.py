"""/v1/webhook_endpoints: operations of a tenant's admins on its endpoints, over HTTP and with OpenAI's own client."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient

from shared.database.tenancy import Role
from shared.database.webhooks.deliveries import Deliveries, Outcome
from tests.support.builders import submission

PATH = "/v1/webhook_endpoints"
HOOK = {"name": "ci", "url": "https://hooks.example/x", "event_types": ["fine_tuning.job.cancelled"]}


def error_of(response: Any) -> tuple[int, str, str | None]:
    error = response.json()["error"]
    return response.status_code, error["mens"]["code"], error["param"]


def test_secret_is_shown_once(client: TestClient) -> None:
    made = client.post(PATH, json=HOOK).json()
    secret = made.pop("signing_secret")
    assert secret.startswith("whsec_")
    assert made["signing_secret_hint"] == f"whsec_…{secret[-4:]}"
    assert made["mens"] == {
        "enabled": True, "disabled_at": None, "disabled_reason": None, "old_secret_until": None, "last_delivered_at": None,
    }  # fmt: skip
    listed = client.get(PATH)
    assert (listed.json()["data"], listed.json()["has_more"]) == ([made], False)
    assert client.get(f"{PATH}/{made['id']}").json() == made
    assert secret not in listed.text
    rotated = client.post(
        f"{PATH}/{made['id']}/rotate_secret", json={"keep_old_secret_active_for_24_hours": True}
    ).json()
    assert rotated["signing_secret"] not in (None, secret)
    assert rotated["mens"]["old_secret_until"] is not None
    assert client.post(f"{PATH}/{made['id']}/rotate_secret").json()["mens"]["old_secret_until"] is None


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"url": "http://hooks.example/x"}, "url"),
        ({"url": "https://169.254.169.254/latest"}, "url"),
        ({"url": "https://[::ffff:127.0.0.1]/"}, "url"),
    ],
)
def test_urls_inside_are_refused_when_made_and_when_changed(
    client: TestClient, change: dict[str, Any], param: str
) -> None:
    refused = (400, "WEBHOOK_URL_FORBIDDEN", param)
    assert error_of(client.post(PATH, json=HOOK | change)) == refused
    endpoint = client.post(PATH, json=HOOK).json()["id"]
    assert error_of(client.post(f"{PATH}/{endpoint}", json=change)) == refused
    assert client.get(f"{PATH}/{endpoint}").json()["url"] == HOOK["url"]


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"event_types": []}, "event_types"),
        ({"event_types": ["batch.completed"]}, "event_types.0"),
        ({"x": 1}, "x"),
        ({"name": "a\nb"}, "name"),
    ],
)
def test_what_is_not_meant_is_refused_with_its_field(client: TestClient, change: dict[str, Any], param: str) -> None:
    assert error_of(client.post(PATH, json=HOOK | change)) == (400, "REQUEST_INVALID", param)


def test_deliveries_are_shown_and_a_disabled_endpoint_says_so(app: FastAPI, client: TestClient) -> None:
    endpoint = client.post(PATH, json=HOOK | {"event_types": HOOK["event_types"] * 2}).json()
    assert endpoint["event_types"] == HOOK["event_types"]
    jobs, deliveries = app.state.services.jobs, Deliveries(app.state.services.database)
    jobs.cancel(jobs.submit(submission())[0].id)
    (claimed,) = deliveries.claim(16)
    deliveries.settle(claimed, Outcome(410, "HTTP 410"))
    where = f"{PATH}/{endpoint['id']}"
    (delivery,) = client.get(f"{where}/deliveries", params={"status": "failed"}).json()["data"]
    assert (delivery["event_id"], delivery["attempts"], delivery["last_error"]) == (claimed.event_id, 1, "HTTP 410")
    assert client.get(f"{where}/deliveries", params={"status": "pending"}).json()["data"] == []
    state = client.get(where).json()["mens"]
    assert (state["enabled"], state["disabled_reason"]) == (False, "it answered 410 Gone")
    assert error_of(client.post(f"{where}/test"))[:2] == (409, "WEBHOOK_STATE_CONFLICT")
    assert client.post(where, json={"enabled": True}).json()["mens"]["disabled_reason"] is None


def test_a_test_that_no_worker_sends_is_pending(client: TestClient) -> None:
    endpoint = client.post(PATH, json=HOOK).json()["id"]
    began = time.monotonic()
    result = client.post(f"{PATH}/{endpoint}/test", json={"wait_seconds": 0}).json()
    assert time.monotonic() - began < 5
    assert (result["success"], result["status_code"], result["mens"]["status"]) == (False, None, "pending")
    assert result["mens"]["is_test"] is True


@pytest.mark.network
def test_openais_client_manages_endpoints(app: FastAPI) -> None:
    import httpx2
    from openai import NotFoundError, OpenAI

    secret = app.state.services.keys.create("boss", "acme", Role.ADMIN)[1]
    with TestClient(app) as served:

        def forward(request: httpx2.Request) -> httpx2.Response:
            found = served.request(
                request.method, str(request.url), content=request.read(), headers=dict(request.headers)
            )
            return httpx2.Response(
                found.status_code, content=found.content, headers={"content-type": "application/json"}
            )

        http = httpx2.Client(transport=httpx2.MockTransport(forward))
        webhooks = OpenAI(api_key=secret, base_url="http://testserver/v1", http_client=http).webhooks
        made = webhooks.create(name="ci", url="https://hooks.example/x", event_types=["eval.run.failed"])
        assert made.signing_secret.startswith("whsec_")
        assert [each.id for each in webhooks.list()] == [made.id]
        changed = webhooks.update(made.id, event_types=["eval.run.failed", "eval.run.canceled"])
        assert changed.event_types == ["eval.run.failed", "eval.run.canceled"]
        assert webhooks.rotate_secret(made.id).signing_secret != made.signing_secret
        tested = webhooks.test(made.id, event_type="eval.run.failed", extra_body={"wait_seconds": 0})
        assert (tested.object, tested.webhook_endpoint_id) == ("webhook_endpoint.test", made.id)
        deleted = webhooks.delete(made.id)
        assert (deleted.deleted, deleted.object) == (True, "webhook_endpoint.deleted")
        with pytest.raises(NotFoundError) as refusal:
            webhooks.retrieve(made.id)
        assert json.loads(refusal.value.response.text)["error"]["mens"]["code"] == "WEBHOOK_NOT_FOUND"
