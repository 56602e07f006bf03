"""Errors over HTTP: every class has a status, and every error has the same shape."""

from __future__ import annotations

import errno
import os

import pytest
from fastapi.testclient import TestClient

from api.errors import STATUS, UpstreamError, error_response, status_of, unexpected_error
from api.main import create_app
from api.settings import ApiSettings
from shared.errors import Code, MensError


def subclasses(kind: type[MensError]) -> list[type[MensError]]:
    return [kind_ for child in kind.__subclasses__() for kind_ in (child, *subclasses(child))]


OURS = [kind for kind in subclasses(MensError) if kind is not UpstreamError]  # it has the status of vLLM's response


@pytest.mark.parametrize("kind", OURS)
def test_every_error_class_has_a_status(kind: type[MensError]) -> None:
    response = error_response(kind(Code.REQUEST_INVALID, "what", remedy="how"))
    assert response.status_code == STATUS[kind]
    retried = response.headers.get("x-should-retry") != "false"
    assert retried == kind.default_retryable


def test_unknown_routes_and_methods(client: TestClient) -> None:
    assert client.get("/v1/nothing").json()["error"]["mens"]["code"] == "ROUTE_NOT_FOUND"
    assert client.put("/v1/jobs").json()["error"]["mens"]["code"] == "METHOD_NOT_ALLOWED"


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
def test_remedy_names_the_contract_where_one_is_expected(
    client: TestClient, path: str, body: dict[str, object], names_contract: bool
) -> None:
    response = client.post(path, json=body)
    error = response.json()["error"]
    status = 400 if path.startswith("/v1/fine_tuning") else 422
    assert (response.status_code, error["mens"]["code"]) == (status, "REQUEST_INVALID")
    assert "/v1/openapi.json" in error["mens"]["remedy"]
    assert ("/v1/contract/schema" in error["mens"]["remedy"]) is names_contract


DATA = {"data": {"train_file": "file-1"}}


@pytest.mark.parametrize(
    ("path", "body", "param", "meant"),
    [
        ("/v1/jobs", {"contract": DATA | {"optimizer": {"learnin_rate": 1}}}, "contract.optimizer.learnin_rate",
         "contract.exec.learning_rate"),
        ("/v1/plans", {"contract": {"data": {"train_fil": "x"}}}, "contract.data.train_fil", "contract.data.train_file"),
        ("/v1/plans", {"contrct": DATA}, "contrct", "contract"),
        ("/v1/jobs", {"kind": "finetune", "contrct": DATA}, "contrct", "contract"),
        ("/v1/jobs", {"kind": "merge", "contract": {"adaptr": "x"}}, "contract.adaptr", "contract.adapter"),
        ("/v1/keys", {"nam": "bot"}, "nam", "name"),
    ],
)  # fmt: skip
def test_a_misspelt_field_leads_with_what_was_meant(
    client: TestClient, path: str, body: dict[str, object], param: str, meant: str
) -> None:
    error = client.post(path, json=body).json()["error"]
    assert (error["code"], error["param"], error["mens"]["details"]["fault"]) == (
        "REQUEST_INVALID",
        param,
        "extra_forbidden",
    )
    assert error["message"].startswith(f"{param}: this field does not exist. Did you mean {meant}? ")
    assert error["mens"]["details"]["errors"][0] == {"param": param, "reason": "this field does not exist"}


@pytest.mark.parametrize("kind", ["fine-tune", 7, None])
def test_an_unknown_kind_of_job_is_answered_with_those_there_are(client: TestClient, kind: object) -> None:
    error = client.post("/v1/jobs", json={"kind": kind, "contract": DATA}).json()["error"]
    assert error["param"] == "kind"
    assert error["message"].startswith("kind: it is not one of finetune, merge, import, evaluate.")


@pytest.mark.parametrize(("body", "byte"), [('{"kind": ', 9), ('{"é": tru}', 7), ("", None)])
def test_a_body_that_is_not_json_says_where(client: TestClient, body: str, byte: int | None) -> None:
    response = client.post("/v1/jobs", content=body.encode(), headers={"Content-Type": "application/json"})
    error = response.json()["error"]
    assert (response.status_code, error["param"], bool(error["mens"]["remedy"])) == (422, None, True)
    assert byte is None or f"not JSON: Expecting value (byte {byte})." in error["message"]


@pytest.mark.parametrize("kind", ["application/x-www-form-urlencoded", None])
def test_body_that_is_not_declared_to_be_json_is_refused(client: TestClient, kind: str | None) -> None:
    headers = {"Content-Type": kind} if kind else {}
    response = client.post("/v1/keys", content=b'{"name": "bot"}', headers=headers)
    error = response.json()["error"]
    assert (response.status_code, error["code"], error["param"]) == (422, "REQUEST_INVALID", None)
    assert "Content-Type: application/json" in error["message"]


def test_body_that_is_not_json_has_another_remedy(client: TestClient) -> None:
    response = client.post("/v1/keys", content=b"{", headers={"Content-Type": "application/json"})
    assert "Content-Type" not in response.json()["error"]["message"]


def test_fault_in_a_header_is_named(client: TestClient) -> None:
    response = client.post(
        "/v1/jobs", json={"kind": "finetune", "contract": {}}, headers={"Idempotency-Key": "x" * 256}
    )
    faults = response.json()["error"]["mens"]["details"]["errors"]
    assert "Idempotency-Key" in [fault["param"] for fault in faults]


@pytest.mark.parametrize(("number", "code"), [(errno.EROFS, "STORAGE_UNAVAILABLE"), (errno.ENOSPC, "STORAGE_FULL")])
def test_fault_of_a_disk_is_a_503_without_its_path(number: int, code: str) -> None:
    error = unexpected_error("GET", "/v1/files", OSError(number, os.strerror(number), "/secret"))
    assert (status_of(error), error.code, error.retryable) == (503, code, True)
    assert "secret" not in str(error)


def test_unexpected_error_is_a_500_without_details(settings: ApiSettings) -> None:
    app = create_app(settings)

    def broken() -> None:
        raise RuntimeError("secret detail")

    app.get("/broken")(broken)
    response = TestClient(app, raise_server_exceptions=False).get("/broken")
    assert (response.status_code, response.json()["error"]["mens"]["code"]) == (500, "INTERNAL_ERROR")
    assert "secret" not in response.text


def test_every_response_has_a_request_id(client: TestClient) -> None:
    assert client.get("/health").headers["x-request-id"].startswith("req_")
    assert client.get("/v1/nothing", headers={"X-Request-Id": "mine"}).headers["x-request-id"] == "mine"
