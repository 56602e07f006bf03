"""Every error class has its status, and every error one shape."""

from __future__ import annotations

import pytest
from fastapi.testclient import TestClient

from api.main import create_app
from api.problems import STATUS, problem_response
from api.rejections import Rejection
from api.settings import ApiSettings
from shared.errors import Code, MensError


def subclasses(kind: type[MensError]) -> list[type[MensError]]:
    return [kind_ for child in kind.__subclasses__() for kind_ in (child, *subclasses(child))]


OURS = [kind for kind in subclasses(MensError) if kind is not Rejection]  # that one has the status that vLLM gave


@pytest.mark.parametrize("kind", OURS)
def test_every_class_has_a_status(kind: type[MensError]) -> None:
    answer = problem_response(kind(Code.REQUEST_INVALID, "what", remedy="how"))
    assert answer.status_code == STATUS[kind]
    retried = answer.headers.get("x-should-retry") != "false"
    assert retried == kind.default_retryable


def test_unknown_routes_and_methods(client: TestClient) -> None:
    assert client.get("/v1/nothing").json()["error"]["code"] == "ROUTE_NOT_FOUND"
    assert client.put("/v1/jobs").json()["error"]["code"] == "METHOD_NOT_ALLOWED"


@pytest.mark.parametrize(
    ("path", "body", "names_contract"),
    [
        ("/v1/jobs", {"kind": "finetune", "contract": {"exec": {"epochs": "x"}}}, True),
        ("/v1/jobs", {"kind": "merge", "contract": {}}, False),
        ("/v1/jobs", {"kind": "else"}, False),
        ("/v1/plans", {}, True),
        ("/v1/fine_tuning/jobs", {"model": "tiny", "training_file": "file-1", "mens": 7}, True),
        ("/v1/fine_tuning/jobs", {"model": "tiny"}, False),
        ("/v1/keys", {"role": "king"}, False),
    ],
)
def test_a_remedy_names_the_contract_where_one_is_expected(
    client: TestClient, path: str, body: dict[str, object], names_contract: bool
) -> None:
    answer = client.post(path, json=body)
    said = answer.json()["error"]
    assert (answer.status_code, said["code"]) == (422, "REQUEST_INVALID")
    assert "/v1/openapi.json" in said["mens"]["remedy"]
    assert ("/v1/contract/schema" in said["mens"]["remedy"]) is names_contract


@pytest.mark.parametrize("kind", ["application/x-www-form-urlencoded", None])
def test_a_body_that_is_not_said_to_be_json(client: TestClient, kind: str | None) -> None:
    headers = {"Content-Type": kind} if kind else {}
    answer = client.post("/v1/keys", content=b'{"name": "bot"}', headers=headers)
    said = answer.json()["error"]
    assert (answer.status_code, said["code"], said["param"]) == (422, "REQUEST_INVALID", None)
    assert "Content-Type: application/json" in said["message"]


def test_a_body_that_is_no_json_is_told_so(client: TestClient) -> None:
    answer = client.post("/v1/keys", content=b"{", headers={"Content-Type": "application/json"})
    assert "Content-Type" not in answer.json()["error"]["message"]


def test_a_fault_outside_the_body_is_named_too(client: TestClient) -> None:
    answer = client.post("/v1/jobs", json={"kind": "finetune", "contract": {}}, headers={"Idempotency-Key": "x" * 256})
    faults = answer.json()["error"]["mens"]["details"]["errors"]
    assert "Idempotency-Key" in [fault["param"] for fault in faults]


def test_a_bug_is_a_coded_500_that_tells_nothing(settings: ApiSettings) -> None:
    app = create_app(settings)

    def broken() -> None:
        raise RuntimeError("secret detail")

    app.get("/broken")(broken)
    answer = TestClient(app, raise_server_exceptions=False).get("/broken")
    assert (answer.status_code, answer.json()["error"]["code"]) == (500, "INTERNAL_ERROR")
    assert "secret" not in answer.text


def test_every_answer_has_a_request_id(client: TestClient) -> None:
    assert client.get("/health").headers["x-request-id"].startswith("req_")
    assert client.get("/v1/nothing", headers={"X-Request-Id": "mine"}).headers["x-request-id"] == "mine"
