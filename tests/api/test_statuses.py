"""Statuses of invalid requests: each is a 4xx with an explanation, in OpenAI's form on OpenAI's routes."""

from __future__ import annotations

from typing import Any

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient
from sqlalchemy.exc import OperationalError

from shared.contract.contracts import FineTuneContract
from shared.database.records import Kind, Submission
from tests.support.builders import BASE

ADDRESS = "postgres.internal"


def job_of(app: FastAPI, **labels: str) -> str:
    contract = FineTuneContract.model_validate({"model": {"hf_repo": BASE}, "data": {"train_file": "file-1"}})
    submission = Submission(
        kind=Kind.FINETUNE,
        base_model=BASE,
        name="helper",
        contract=contract.model_dump(mode="json"),
        plan={"contract_digest": "0" * 64},
        labels=labels,
    )
    return str(app.state.services.jobs.submit(submission)[0].id)


@pytest.mark.parametrize("version", ["1" * 5000, "9" * 10, "\u0661".encode(), '"', ""])
def test_etag_that_is_none_is_refused(client: TestClient, version: str) -> None:
    response = client.delete("/v1/aliases/a", headers={"If-Match": version})
    assert (response.status_code, response.json()["error"]["param"]) == (400, "If-Match")


def form(filename: bytes, content: bytes = b'{"prompt": "a", "response": "b"}') -> dict[str, Any]:
    purpose = b'--x\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nfine-tune\r\n'
    disposition = b'--x\r\nContent-Disposition: form-data; name="file"; filename="' + filename + b'"\r\n\r\n'
    body = purpose + disposition + content + b"\r\n--x--\r\n"
    return {"content": body, "headers": {"Content-Type": "multipart/form-data; boundary=x"}}


def test_file_name_that_is_not_utf8_is_refused(client: TestClient) -> None:
    response = client.post("/v1/files", **form(b"\xff\xfe.jsonl"))
    assert (response.status_code, response.json()["error"]["param"]) == (400, "file")


def test_empty_file_is_refused(client: TestClient) -> None:
    response = client.post("/v1/files", **form(b"rows.jsonl", b""))
    assert (response.status_code, response.json()["error"]["mens"]["code"]) == (400, "DATASET_EMPTY")
    assert not client.get("/v1/files").json()["data"]


@pytest.mark.parametrize("option", ["top_k", "seed", "num_predict"])
def test_number_that_no_replica_can_take_is_refused(client: TestClient, option: str) -> None:
    body = {"model": BASE, "messages": [{"role": "user", "content": "a"}], "options": {option: 2**64}}
    response = client.post("/api/chat", json=body)
    assert (response.status_code, response.json()["code"]) == (400, "REQUEST_INVALID")


def test_many_filters_are_refused(client: TestClient) -> None:
    response = client.get("/v1/fine_tuning/jobs", params={f"metadata[{number}]": "x" for number in range(1200)})
    assert (response.status_code, response.json()["error"]["param"]) == (400, "metadata")


def test_jobs_without_metadata_are_found(app: FastAPI, client: TestClient) -> None:
    plain = job_of(app)
    job_of(app, team="a")
    response = client.get("/v1/fine_tuning/jobs?metadata=null")
    assert [job["id"] for job in response.json()["data"]] == [plain]
    assert client.get("/v1/fine_tuning/jobs?metadata=team").status_code == 400


@pytest.mark.parametrize("sent", [{"headers": {"Last-Event-ID": "x"}}, {"params": {"after": "x"}}])
def test_event_stream_after_no_event_is_refused(app: FastAPI, client: TestClient, sent: Any) -> None:
    response = client.get(f"/v1/jobs/{job_of(app)}/events", **sent)
    assert (response.status_code, response.json()["error"]["mens"]["code"]) == (400, "REQUEST_INVALID")


@pytest.mark.parametrize("day", ["0", "1", "2026-11-30T00:00:00", "-1"])
@pytest.mark.parametrize("name", ["from", "to"])
def test_day_that_is_none_is_refused(client: TestClient, name: str, day: str) -> None:
    assert client.get("/v1/usage", params={name: day}).status_code == 422


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/v1/files?limit=0", 400),
        ("GET", "/v1/fine_tuning/jobs?limit=x", 400),
        ("POST", "/v1/fine_tuning/jobs", 400),
        ("GET", "/v1/jobs?limit=0", 422),
        ("POST", "/v1/jobs", 422),
    ],
)
def test_wrong_fields_have_openais_status_on_openais_routes(
    client: TestClient, method: str, path: str, status: int
) -> None:
    assert client.request(method, path, json={"model": 1} if method == "POST" else None).status_code == status


def test_rejected_contract_is_a_bad_request_to_openais_clients(client: TestClient, train_file: str) -> None:
    body = {"model": BASE, "training_file": train_file, "mens": {"exec": {"seq_len": 10_000_000}}}
    assert client.post("/v1/fine_tuning/jobs", json=body).status_code == 400


# -- methods and paths -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "methods"),
    [
        ("/v1/files", "GET, HEAD, OPTIONS, POST"),
        ("/v1/aliases/a", "DELETE, GET, HEAD, OPTIONS, PUT"),
        ("/v1/chat/completions", "OPTIONS, POST"),
        ("/health", "GET, HEAD, OPTIONS"),
    ],
)
def test_allowed_methods_are_reported(client: TestClient, path: str, methods: str) -> None:
    refused, asked = client.patch(path), client.options(path)
    assert (refused.status_code, refused.headers["Allow"]) == (405, methods)
    assert (asked.status_code, asked.headers["Allow"], asked.content) == (204, methods, b"")


def test_options_of_no_route_are_not_found(client: TestClient) -> None:
    assert client.options("/v1/nothing").status_code == 404


@pytest.mark.parametrize("path", ["/health", "/v1/files", "/v1/models", "/api/tags", "/v1/nothing"])
def test_head_is_get_without_a_body(client: TestClient, path: str) -> None:
    got, asked = client.get(path), client.head(path)
    assert (asked.status_code, asked.content) == (got.status_code, b"")
    assert asked.headers["Content-Type"] == got.headers["Content-Type"]


def test_head_of_an_endless_stream_ends(app: FastAPI, client: TestClient) -> None:
    assert client.head(f"/v1/jobs/{job_of(app)}/events").status_code == 200


@pytest.mark.parametrize("path", ["/v1/models/", "/v1/files/", "/v1/jobs/", "/v1/fine_tuning/jobs//", "/health/"])
def test_trailing_slash_changes_nothing(client: TestClient, path: str) -> None:
    response = client.get(path, follow_redirects=False)
    assert (response.status_code, response.text) == (200, client.get(path.rstrip("/")).text)


def test_first_and_last_file_are_named(client: TestClient, train_file: str) -> None:
    page = client.get("/v1/files").json()
    assert (page["first_id"], page["last_id"]) == (train_file, train_file)
    nothing = client.get("/v1/files?purpose=none").json()
    assert (nothing["first_id"], nothing["last_id"]) == (None, None)


# -- responses to strangers ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["/ready", "/v1/models", "/api/tags"])
def test_address_of_the_database_is_not_reported(
    client: TestClient, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, path: str
) -> None:
    def fail(*_: object) -> Any:
        raise OperationalError("", {}, Exception(f"connection to {ADDRESS} failed"))

    monkeypatch.setattr("shared.database.connection.Session.execute", fail)
    monkeypatch.setattr("shared.database.connection.Session.scalar", fail)
    response = client.get(path, headers={"Authorization": "Bearer mens-unknown"})
    assert (response.status_code, "DATABASE_UNAVAILABLE" in response.text) == (503, True)
    assert ADDRESS not in response.text
    assert ADDRESS in caplog.text


def test_every_refusal_is_in_the_openapi_document(client: TestClient) -> None:
    document = client.get("/v1/openapi.json").json()
    for path, methods in document["paths"].items():
        for operation in methods.values():
            (shape,) = operation["responses"]["4XX"]["content"].values()
            wanted = "OllamaErrorAnswer" if path.startswith("/api/") else "ErrorAnswer"
            assert shape["schema"]["$ref"].endswith(f"/{wanted}")
    assert "HTTPValidationError" not in document["components"]["schemas"]


# -- headers of every answer ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/v1/models", 200),
        ("HEAD", "/v1/models", 200),
        ("OPTIONS", "/v1/chat/completions", 204),
        ("GET", "/v1/models/none", 404),
        ("PATCH", "/v1/files", 405),
        ("POST", "/v1/chat/completions", 400),
        ("POST", "/v1/embeddings", 400),
        ("POST", "/v1/fine_tuning/jobs", 400),
        ("POST", "/v1/files", 400),
    ],
)
def test_every_answer_on_openais_routes_has_its_headers(
    client: TestClient, method: str, path: str, status: int
) -> None:
    known = client.request(method, path)
    unknown = client.request(method, path, headers={"Authorization": "Bearer mens-wrong"})
    assert (known.status_code, unknown.status_code) == (status, 401)
    for response in (known, unknown):
        assert response.headers["openai-version"] == "2020-10-01"
        assert int(response.headers["openai-processing-ms"]) >= 0
        assert response.headers["x-request-id"].startswith("req_")


@pytest.mark.parametrize("path", ["/health", "/v1/jobs", "/api/tags"])
def test_other_answers_do_not(client: TestClient, path: str) -> None:
    response = client.get(path)
    assert "openai-version" not in response.headers
    assert response.headers["x-request-id"]
