"""/v1/policies, /v1/policy_assignments, /v1/receipts, and moves of aliases under a policy, over HTTP."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient

from api.services import make_services
from api.settings import ApiSettings
from shared.database.connection import whole_milliseconds
from shared.database.gates.policies import Policies
from shared.database.leases import Leases
from shared.database.tenancy import SHARED, Role
from shared.errors import InvalidRequest
from tests.support.api_installation import application_of
from tests.support.builders import claimed, new_adapter
from tests.support.doubles import FakeJobQueue
from tests.support.gate_rows import LAX, STRICT, digest_of, receipt
from tests.support.scorecards import promotion_cycle

A, B = "demo@1", "demo@2"


@pytest.fixture(autouse=True)
def adapters(app: FastAPI, client: TestClient) -> None:
    """Two adapters, and an alias that points to the first."""
    services = app.state.services
    leases = Leases(services.database, 60)
    made = [new_adapter(name, final=False) for name in (A, B)]
    leases.finish(claimed(services.jobs, leases), {}, adapters=made)
    assert client.put("/v1/aliases/prod", json={"adapter": A}).status_code == 200


@pytest.fixture
def trainer(app: FastAPI, client: TestClient) -> dict[str, str]:
    """Headers of a trainer."""
    _, secret = app.state.services.keys.create("tom", SHARED, Role.TRAINER)
    return {"Authorization": f"Bearer {secret}"}


def store(client: TestClient, name: str = "strict", source: str = STRICT, **options: Any) -> dict[str, Any]:
    response = client.post("/v1/policies", json={"name": name, "source": source}, **options)
    assert response.status_code == 200, response.text
    return response.json()


def error(response: Any) -> dict[str, Any]:
    found = response.json()["error"]
    return {"status": response.status_code, "message": found["message"], "param": found["param"], **found["mens"]}


def test_a_policy_is_stored_as_it_was_understood(client: TestClient) -> None:
    stored = store(client)
    assert stored.pop("notes") == [], "an answer, and not a part of the policy"
    assert stored["digest"] == digest_of(STRICT)
    assert stored["policy"]["gates"]["truncation"]["max_fraction"] == 0.5
    assert client.get("/v1/policies/strict").json() == stored
    assert client.get(f"/v1/policies/{stored['digest'][:12]}").json() == stored
    assert [policy["name"] for policy in client.get("/v1/policies").json()["data"]] == ["strict"]


def test_what_is_wrong_with_a_file_is_said_with_path_and_line(client: TestClient) -> None:
    body = {"name": "bad", "source": 'version: "1"\ngates:\n  throughput: {min_tokens: 1}\n'}
    for path in ("/v1/policies", "/v1/policies:check"):
        found = error(
            client.post(path, json={key: body[key] for key in body if key == "source" or "check" not in path})
        )
        assert (found["status"], found["code"], found["param"]) == (
            400,
            "POLICY_INVALID",
            "gates.throughput.min_tokens",
        )
        assert found["details"]["line"] == 3
    assert client.get("/v1/policies").json()["data"] == []


def test_a_name_means_its_newest_policy(client: TestClient) -> None:
    store(client)
    store(client, source=LAX)
    assert client.get("/v1/policies/strict").json()["digest"] == digest_of(LAX)


@pytest.mark.parametrize("sources", [(STRICT, LAX), (LAX, STRICT), (STRICT, LAX, STRICT)])
def test_the_newest_of_a_millisecond_is_the_last_one(
    app: FastAPI, client: TestClient, monkeypatch: pytest.MonkeyPatch, sources: tuple[str, ...]
) -> None:
    now = whole_milliseconds(datetime.now(UTC))
    monkeypatch.setattr(app.state.services.database, "now", lambda _: now)
    for source in sources:
        store(client, source=source)
    assert client.get("/v1/policies/strict").json()["digest"] == digest_of(sources[-1])
    assert client.get("/v1/policies").json()["data"][0]["digest"] == digest_of(sources[-1])


def test_an_alias_under_a_policy_moves_with_a_receipt_alone(app: FastAPI, client: TestClient) -> None:
    store(client)
    put = client.put("/v1/aliases/prod", json={"adapter": A, "policy": "strict", "reason": "from now on"})
    assert put.status_code == 200
    refused = error(client.put("/v1/aliases/prod", json={"adapter": B}))
    assert (refused["status"], refused["code"]) == (409, "GATE_MISSING")
    assert refused["details"]["incumbent"] == A
    receipt(app.state.services.database, B, A)
    assert client.put("/v1/aliases/prod", json={"adapter": B}).json()["adapter_id"] == B
    move = client.get("/v1/aliases/prod/history").json()["data"][0]
    assert move["gate"]["policy"]["name"] == "strict"
    assert client.post("/v1/aliases/prod/rollback").json()["adapter_id"] == A


def test_what_replicas_serve_now_has_to_be_what_was_measured(
    app: FastAPI, client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    store(client)
    client.put("/v1/aliases/prod", json={"adapter": A, "policy": "strict"})
    receipt(app.state.services.database, B, A)
    limits = type(app.state.services.replica_limits)
    monkeypatch.setattr(limits, "served", lambda self: frozenset({"a" * 64}))
    found = error(client.put("/v1/aliases/prod", json={"adapter": B}))
    assert (found["code"], "a base that differs" in found["message"]) == ("GATE_STALE", True)
    monkeypatch.setattr(limits, "served", lambda self: frozenset({"b" * 64}))
    assert client.put("/v1/aliases/prod", json={"adapter": B}).status_code == 200


def test_an_override_takes_an_admin_and_a_reason(client: TestClient, trainer: dict[str, str]) -> None:
    store(client)
    client.put("/v1/aliases/prod", json={"adapter": A, "policy": "strict"})
    body: dict[str, Any] = {"adapter": B, "override": True}
    assert error(client.put("/v1/aliases/prod", json=body, headers=trainer))["code"] == "ROLE_INSUFFICIENT"
    assert error(client.put("/v1/aliases/prod", json=body))["param"] == "reason"
    assert client.put("/v1/aliases/prod", json=body | {"reason": "an outage"}).status_code == 200
    move = client.get("/v1/aliases/prod/history").json()["data"][0]
    assert (move["gate"]["override"], move["reason"]) == (True, "an outage")


def test_a_trainer_lets_a_policy_govern_and_does_not_take_it_away(client: TestClient, trainer: dict[str, str]) -> None:
    store(client, headers=trainer)
    store(client, "lax", LAX, headers=trainer)
    scope = "/v1/policy_assignments/alias:prod"
    assert client.put(scope, json={"policy": "strict"}, headers=trainer).status_code == 200
    assert error(client.put(scope, json={"policy": "lax"}, headers=trainer))["code"] == "ROLE_INSUFFICIENT"
    body = {"adapter": A, "policy": "lax"}
    assert error(client.put("/v1/aliases/prod", json=body, headers=trainer))["code"] == "ROLE_INSUFFICIENT"
    assert error(client.delete(scope, headers=trainer))["code"] == "ROLE_INSUFFICIENT"
    assert client.delete(scope, params={"reason": "no longer"}).json()["deleted"]
    moves = client.get(f"{scope}/history").json()["data"]
    assert [(move["reason"], move["to"] and move["to"]["name"]) for move in moves] == [
        ("no longer", None),
        ("", "strict"),
    ]
    assert client.get("/v1/policy_assignments").json()["data"] == []


def test_alias_says_what_governs_it_and_is_another_content_then(client: TestClient) -> None:
    store(client)
    first = client.put("/v1/aliases/prod", json={"adapter": A}).headers["etag"]
    client.put("/v1/policy_assignments/alias:prod", json={"policy": "strict"})
    found = client.get("/v1/aliases/prod", headers={"If-None-Match": first})
    assert found.status_code == 200
    governs = found.json()["governed_by"]
    assert (governs["policy"]["name"], governs["scope"], governs["tenant"]) == ("strict", "alias:prod", "shared")
    assert client.get("/v1/aliases").json()["data"][0]["governed_by"] == governs
    assert client.get("/v1/aliases/prod", headers={"If-None-Match": found.headers["etag"]}).status_code == 304
    forced = {"adapter": A, "override": True, "reason": "because"}
    whole = found.headers["etag"]
    for etag, status in ((whole.replace("1-", "7-"), 409), ('"7"', 409), (whole, 200), ('"1"', 200)):
        assert client.put("/v1/aliases/prod", json=forced, headers={"If-Match": etag}).status_code == status


def test_the_job_of_an_alias_under_a_policy_succeeds_and_says_that_it_stays(app: FastAPI, client: TestClient) -> None:
    store(client)
    client.put("/v1/aliases/prod", json={"adapter": A, "policy": "strict"})
    services = app.state.services
    leases = Leases(services.database, 60)
    job = leases.finish(claimed(services.jobs, leases), {}, adapters=[new_adapter("new@1")], alias="prod")
    found = client.get(f"/v1/jobs/{job.id}").json()
    assert (found["state"], found["result"]["alias"]["moved"]) == ("succeeded", False)
    assert client.get("/v1/aliases/prod").json()["adapter_id"] == A


def test_receipts_are_listed_and_have_a_published_schema(app: FastAPI, client: TestClient) -> None:
    first, second = (receipt(app.state.services.database, name) for name in (A, B))
    assert [each["id"] for each in client.get("/v1/receipts").json()["data"]] == [second.id, first.id]
    page = client.get("/v1/receipts", params={"limit": 1}).json()
    assert page["has_more"] and [each["id"] for each in page["data"]] == [second.id]
    assert [each["id"] for each in client.get("/v1/receipts", params={"adapter": A}).json()["data"]] == [first.id]
    assert client.get(f"/v1/receipts/{first.id}").json()["adapter_id"] == A
    schema = client.get("/v1/receipts/schema").json()
    jsonschema.Draft202012Validator.check_schema(schema)
    golden = Path(__file__).parents[3] / "shared" / "golden" / "gate_receipt.schema.json"
    assert schema == json.loads(golden.read_text())


def test_a_receipt_is_requested_by_adapter_and_alias(app: FastAPI, client: TestClient) -> None:
    body = {"adapter": B, "alias": "prod"}
    assert error(client.post("/v1/receipts", json=body))["code"] == "POLICY_NOT_FOUND"
    store(client)
    client.put("/v1/aliases/prod", json={"adapter": A, "policy": "strict"})
    response = client.post("/v1/receipts", json=body)
    job = response.json()
    assert (response.status_code, job["kind"], job["state"]) == (202, "judge", "queued")
    assert job["plan"]["policy"] == {"tenant": SHARED, "name": "strict", "digest": digest_of(STRICT)}
    assert app.state.services.job_queue.enqueued[-1] == job["id"]
    assert error(client.post("/v1/receipts", json=body | {"adapter": "none@1"}))["code"] == "ADAPTER_NOT_FOUND"
    store(client, "lax", LAX)
    tried = client.post("/v1/receipts", json=body | {"policy": "lax"}).json()
    assert tried["plan"]["policy"]["name"] == "lax"


def test_a_receipt_may_rest_on_a_file_of_cycles(client: TestClient) -> None:
    def upload(content: str) -> str:
        sent = {"data": {"purpose": "evals"}, "files": {"file": ("cycles.jsonl", content.encode())}}
        return str(client.post("/v1/files", **sent).json()["id"])

    store(client, "lax", LAX)
    body = {"adapter": B, "alias": "prod", "policy": "lax"}
    lines = [promotion_cycle(seed, tasks=2).model_dump_json() + "\n" for seed in (1, 2)]
    file = upload("".join(lines))
    assert client.post("/v1/receipts", json=body | {"cycles": file}).json()["plan"]["cycles"]["file_id"] == file
    assert error(client.delete(f"/v1/files/{file}"))["code"] == "FILE_IN_USE"
    assert "cycles" not in client.post("/v1/receipts", json=body).json()["plan"]
    wrong = error(client.post("/v1/receipts", json=body | {"cycles": upload(lines[0] + '{"spec": {}}\n')}))
    assert (wrong["code"], wrong["param"]) == ("REQUEST_INVALID", "cycles")
    assert error(client.post("/v1/receipts", json=body | {"cycles": "file-none"}))["code"] == "FILE_NOT_FOUND"


# -- the server's policy -------------------------------------------------------------------------------------------


def started(settings: ApiSettings, **changes: Any) -> FastAPI:
    services = make_services(settings.model_copy(update=changes), job_queue=FakeJobQueue())
    return application_of(services)


def test_the_servers_policy_governs_from_the_start_and_stays(
    app: FastAPI, client: TestClient, settings: ApiSettings, tmp_path: Path
) -> None:
    file = tmp_path / "policy.yaml"
    file.write_text(STRICT)
    with TestClient(started(settings, gate_policy=file)) as other:
        other.headers.update(client.headers)
        assert error(other.put("/v1/aliases/prod", json={"adapter": B}))["details"]["scope"] == "server"
    with TestClient(started(settings)) as other:
        other.headers.update(client.headers)
        assert error(other.put("/v1/aliases/prod", json={"adapter": B}))["code"] == "GATE_MISSING"
    history = Policies(app.state.services.database).history("server")
    assert [(move.actor, move.reason) for move in history] == [("MENS_GATE_POLICY", "the file policy.yaml")]


@pytest.mark.parametrize("content", [None, b"gates: 1", b"\xff\xfe"])
def test_an_api_without_its_policy_does_not_start(
    settings: ApiSettings, app: FastAPI, tmp_path: Path, content: bytes | None
) -> None:
    file = tmp_path / "policy.yaml"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(InvalidRequest), TestClient(started(settings, gate_policy=file)):
        pass
