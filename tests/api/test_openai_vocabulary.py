"""Errors on OpenAI's routes have OpenAI's types and codes, with ours in addition; on our own routes they have ours."""

from __future__ import annotations

from typing import Any

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient

from api.errors import OPENAI_PATHS
from api.openai_vocabulary import CODES, FIELD_CODES, openai_code, openai_type
from shared.errors import Code, InvalidRequest, TooMany
from tests.support.builders import BASE

TYPES = {"invalid_request_error", "requests", "insufficient_quota", "server_error"}
CHAT: dict[str, Any] = {"model": BASE, "messages": [{"role": "user", "content": "?"}]}


def fault(response: Any) -> tuple[int, str, str | None, str]:
    error = response.json()["error"]
    return response.status_code, error["type"], error["code"], error["mens"]["code"]


INVALID = "invalid_request_error"


@pytest.mark.parametrize(
    ("method", "path", "sent", "expected"),
    [
        ("POST", "/v1/chat/completions", {"json": CHAT | {"model": "x"}}, (404, "model_not_found", "MODEL_NOT_FOUND")),
        ("GET", "/v1/models/x", {}, (404, "model_not_found", "MODEL_NOT_FOUND")),
        ("POST", "/v1/chat/completions", {"json": CHAT | {"modell": 1}}, (400, "unknown_parameter", "FIELD_UNKNOWN")),
        ("POST", "/v1/chat/completions", {"content": b"{"}, (400, None, "REQUEST_INVALID")),
        ("POST", "/v1/chat/completions", {"json": CHAT | {"messages": []}}, (400, "invalid_value", "REQUEST_INVALID")),
        ("POST", "/v1/fine_tuning/jobs", {"json": {}}, (400, "missing_required_parameter", "REQUEST_INVALID")),
        ("POST", "/v1/fine_tuning/jobs", {"json": {"model": 1, "training_file": "f"}}, (400, "invalid_type", "REQUEST_INVALID")),
        ("POST", "/v1/fine_tuning/jobs", {"json": {"model": "m", "training_file": "f", "modell": 1}}, (400, "unknown_parameter", "REQUEST_INVALID")),
        ("POST", "/v1/fine_tuning/jobs", {"json": {"model": "m", "training_file": "f", "seed": -1}}, (400, "invalid_value", "REQUEST_INVALID")),
        ("GET", "/v1/fine_tuning/jobs?limit=x", {}, (400, "invalid_type", "REQUEST_INVALID")),
        ("GET", "/v1/fine_tuning/jobs?limit=0", {}, (400, "invalid_value", "REQUEST_INVALID")),
        ("GET", "/v1/files/none", {}, (404, "FILE_NOT_FOUND", "FILE_NOT_FOUND")),
        ("GET", "/v1/files/a/b/c", {}, (404, "unknown_url", "ROUTE_NOT_FOUND")),
        ("PATCH", "/v1/files", {}, (405, "METHOD_NOT_ALLOWED", "METHOD_NOT_ALLOWED")),
        ("POST", "/v1/uploads", {"json": {}}, (400, "missing_required_parameter", "REQUEST_INVALID")),
    ],
)  # fmt: skip
def test_openais_routes_speak_its_vocabulary(
    client: TestClient, method: str, path: str, sent: Any, expected: tuple[int, str | None, str]
) -> None:
    status, code, own = expected
    assert fault(client.request(method, path, **sent)) == (status, INVALID, code, own)


@pytest.mark.parametrize("header", ["", "Bearer mens-wrong", "Basic x"])
@pytest.mark.parametrize("path", ["/v1/models", "/v1/chat/completions", "/v1/fine_tuning/jobs"])
def test_unknown_keys_are_openais_invalid_api_key(anonymous: TestClient, path: str, header: str) -> None:
    response = anonymous.get(path, headers={"Authorization": header} if header else {})
    own = "KEY_INVALID" if "wrong" in header else "KEY_MISSING"
    assert fault(response) == (401, INVALID, "invalid_api_key", own)


def test_failure_of_ours_is_a_server_error(app: FastAPI, client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(type(app.state.services.files), "list", lambda *_, **__: 1 / 0)
    assert fault(client.get("/v1/files")) == (500, "server_error", "INTERNAL_ERROR", "INTERNAL_ERROR")


@pytest.mark.parametrize("path", ["/v1/jobs/none", "/v1/aliases/none", "/v1/nothing", "/v1/jobs?limit=0"])
def test_our_routes_speak_ours(client: TestClient, path: str) -> None:
    error = client.get(path).json()["error"]
    assert error["code"] == error["mens"]["code"] == error["code"].upper()


def test_every_openai_route_refuses_wrong_fields_with_400(app: FastAPI, client: TestClient) -> None:
    # Query parameters, bodies and paths: what FastAPI would refuse with 422.
    document, asked = app.openapi()["paths"], 0
    for path, methods in document.items():
        if not path.startswith(OPENAI_PATHS):
            continue
        for method, operation in methods.items():
            for parameter in operation.get("parameters", []):
                if parameter["in"] == "query" and parameter["name"] in ("limit", "order", "after"):
                    url = path.replace("{job_id}", "ftjob-1")
                    response = client.request(method, url, params={parameter["name"]: "\0"})
                    assert (response.status_code, fault(response)[1]) == (400, INVALID), (method, path, parameter)
                    asked += 1
            if "application/json" in operation.get("requestBody", {}).get("content", {}):
                url = path.replace("{upload_id}", "upload-1")
                response = client.request(method, url, json=[])
                assert (response.status_code, fault(response)[1]) == (400, INVALID), (method, path)
                asked += 1
    assert asked > 15


def test_types_and_codes_are_openais() -> None:
    limited = TooMany(Code.RATE_LIMITED, "x")
    assert (openai_type(limited, 429), openai_code(limited)) == ("requests", "rate_limit_exceeded")
    assert all(code == code.lower() for code in CODES.values())
    assert not FIELD_CODES & CODES.keys()
    for code in Code:
        for status in (400, 401, 403, 404, 409, 413, 429, 500, 503):
            assert openai_type(InvalidRequest(code, "x"), status) in TYPES
