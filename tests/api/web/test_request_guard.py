"""The request guard: no body is read before the key is known, and every body has its limit."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient

from api.body_buffers import BodyBuffers
from api.inference.rate_limits.failed_authentications import FailedAuthentications
from api.routes import chat, ollama
from api.web.request_body import MODEL_PATHS
from shared.database.tenancy import Role
from shared.errors import Unavailable
from tests.api.web.access_matrix import MATRIX

TRIES = 3


def headers_of(app: FastAPI, role: Role = Role.ADMIN) -> dict[str, str]:
    return {"Authorization": f"Bearer {app.state.services.keys.create('k', 'acme', role)[1]}"}


async def forbidden_receive() -> Any:
    raise AssertionError("the body was read")


@pytest.mark.parametrize("header", [None, "Bearer wrong", "Basic abc"])
@pytest.mark.parametrize("path", ["/v1/jobs", "/v1/files", "/v1/chat/completions", "/api/chat", "/v1/nothing"])
def test_body_is_not_read_before_the_key_is_known(app: FastAPI, header: str | None, path: str) -> None:
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    headers = [(b"content-length", b"48000000"), (b"content-type", b"application/json")]
    headers += [(b"authorization", header.encode())] if header else []
    scope = {"type": "http", "method": "POST", "path": path, "raw_path": path.encode(), "headers": headers}
    asyncio.run(app({**scope, "query_string": b"", "client": ("1.2.3.4", 5)}, forbidden_receive, send))
    assert sent[0]["status"] == 401


@pytest.mark.parametrize(
    ("path", "limit", "code"),
    [
        ("/v1/jobs", 1 << 20, "BODY_TOO_LARGE"),
        ("/v1/keys", 1 << 20, "BODY_TOO_LARGE"),
        ("/v1/nothing", 1 << 20, "BODY_TOO_LARGE"),
        ("/v1/chat/completions", 10_000, "BODY_TOO_LARGE"),
        ("/api/chat", 10_000, "BODY_TOO_LARGE"),
        ("/v1/files", 100_000 + (64 << 10), "FILE_TOO_LARGE"),
    ],
)
@pytest.mark.parametrize("is_declared", [True, False])
def test_body_over_the_routes_limit_is_refused(
    app: FastAPI, client: TestClient, path: str, limit: int, code: str, is_declared: bool
) -> None:
    piece = b"[]" * 1000
    pieces = [piece] * (limit // len(piece) + 2)
    kind = "multipart/form-data; boundary=x" if path == "/v1/files" else "application/json"
    content = b"".join(pieces) if is_declared else iter(pieces)
    if path == "/v1/files":
        start = b'--x\r\nContent-Disposition: form-data; name="other"\r\n\r\n'
        content = start + b"".join(pieces) if is_declared else iter([start, *pieces])
    response = client.post(path, content=content, headers={"Content-Type": kind})
    error = response.json()
    assert response.status_code == 413
    assert (error["code"] if path.startswith("/api/") else error["error"]["mens"]["code"]) == code


@pytest.mark.parametrize(
    ("path", "begins"), [("/v1/jobs", "Upload the rows with POST /v1/files"), ("/v1/keys", "Shorten it")]
)
def test_remedy_for_a_job_that_is_too_large_is_to_upload_its_rows(client: TestClient, path: str, begins: str) -> None:
    response = client.post(path, content=b"{}", headers={"Content-Length": "9" * 9})
    remedy = response.json()["error"]["mens"]["remedy"]
    assert (response.status_code, remedy.startswith(begins)) == (413, True)
    assert "have the operator raise MENS_MAX_REQUEST_BYTES" in remedy


def test_length_of_many_digits_is_refused(client: TestClient) -> None:
    response = client.post("/v1/keys", content=b"{}", headers={"Content-Length": "9" * 5000})
    assert response.status_code == 413


def test_every_route_to_a_model_has_the_limit_of_models() -> None:
    routes = {
        route.path for router in (chat.router, ollama.router) for route in router.routes if "POST" in route.methods
    }
    assert routes - {"/api/{path:path}"} == MODEL_PATHS


# -- texts that are none ------------------------------------------------------------------------------------------------------


HALF = "half of a surrogate pair"


def with_lone_surrogates(body: Any) -> Any:
    """A JSON body with half of a surrogate pair at the end of each of its texts."""
    if isinstance(body, dict):
        return {name: with_lone_surrogates(value) for name, value in body.items()}
    if isinstance(body, list):
        return [with_lone_surrogates(value) for value in body]
    return body + "\ud800" if isinstance(body, str) else body


def test_half_of_a_surrogate_pair_reaches_no_route(app: FastAPI, client: TestClient) -> None:
    headers = headers_of(app) | {"Content-Type": "application/json"}
    for route, case in [(route, case) for route, cases in MATRIX.items() for case in cases]:
        method, path = route.split(" ")
        content = json.dumps(with_lone_surrogates(case.body("x").get("json")))
        if "\\ud800" in content:
            response = client.request(method, case.url(path, "x"), content=content, headers=headers)
            assert (response.status_code in (400, 422), HALF in response.text) == (True, True), route
    lists = [
        path for method, _, path in (route.partition(" ") for route in MATRIX) if method == "GET" and "{" not in path
    ]
    lists.remove("/v1/events")  # a stream without an end
    assert {client.get(path, headers=headers).status_code for path in lists} <= {200, 403}


@pytest.mark.parametrize("sent", [b'{"name": "\xed\xa0\x80"}', '{"name": "\\udc00"}'.encode("utf-16"), b"\xff\xfe\x00"])
def test_half_of_a_surrogate_pair_is_found_however_it_is_written(app: FastAPI, client: TestClient, sent: bytes) -> None:
    headers = headers_of(app) | {"Content-Type": "application/json"}
    assert client.post("/v1/keys", content=sent, headers=headers).status_code in (400, 422)


def test_paths_and_queries_bring_none(app: FastAPI, client: TestClient) -> None:
    headers = headers_of(app)
    for path in (
        "/v1/files/%ED%A0%80",
        "/v1/models/%ED%A0%80",
        "/v1/jobs?after=%ED%A0%80",
        "/v1/evals?after=%ED%A0%80",
    ):
        assert client.get(path, headers=headers).status_code < 500, path


# -- bodies that are held ----------------------------------------------------------------------------------------------------


def send_beside(app: FastAPI, held: int, size: int, tenant: str = "acme", *, is_declared: bool = True) -> int:
    """Return the status of a request whose body has this many bytes, while others of ``acme`` hold some of its 1000."""
    buffers = BodyBuffers(1000)
    object.__setattr__(app.state.services, "body_buffers", buffers)
    secret = app.state.services.keys.create(f"{tenant}-{size}-{held}-{is_declared}", tenant)[1]
    content = b" " * size if is_declared else iter([b" " * (size // 2)] * 2)
    headers = {"Authorization": f"Bearer {secret}", "Content-Type": "application/json"}
    with buffers.of("acme") as hold, TestClient(app) as client:
        hold(held)
        return client.post("/v1/keys", content=content, headers=headers).status_code


@pytest.mark.parametrize("is_declared", [True, False])
def test_bytes_that_a_tenant_holds_are_limited(app: FastAPI, is_declared: bool) -> None:
    assert send_beside(app, 500, 500, is_declared=is_declared) == 422
    assert send_beside(app, 500, 502, is_declared=is_declared) == 429
    assert send_beside(app, 1000, 502, "other", is_declared=is_declared) == 422, "another tenant has its own"


def test_declared_bytes_count_before_they_come(app: FastAPI) -> None:
    # A client that declares much and sends nothing holds no more than its tenant's share.
    object.__setattr__(app.state.services, "body_buffers", BodyBuffers(1000))
    headers = [(b"content-length", b"2000"), (b"authorization", headers_of(app)["Authorization"].encode())]
    scope = {"type": "http", "method": "POST", "path": "/v1/jobs", "raw_path": b"/v1/jobs", "headers": headers}
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    asyncio.run(app({**scope, "query_string": b"", "client": ("1.2.3.4", 5)}, forbidden_receive, send))
    assert (sent[0]["status"], (b"retry-after", b"1") in sent[0]["headers"]) == (429, True)


@pytest.mark.parametrize("path", ["/v1/keys", "/v1/chat/completions"])
def test_bytes_are_given_back_with_the_answer(app: FastAPI, client: TestClient, path: str) -> None:
    object.__setattr__(app.state.services, "body_buffers", BodyBuffers(1000))
    for size in (900, 900, 2000, 900):
        status = client.post(path, content=b"{" * size, headers={"Content-Type": "application/json"}).status_code
        assert (status == 429) is (size == 2000)


def test_uploads_do_not_count(app: FastAPI, client: TestClient) -> None:
    object.__setattr__(app.state.services, "body_buffers", BodyBuffers(10))
    form = {"data": {"purpose": "fine-tune"}, "files": {"file": ("rows.jsonl", b"x" * 1000)}}
    assert client.post("/v1/files", **form).status_code == 200


# -- failed authentications ----------------------------------------------------------------------------------------------


@pytest.fixture
def throttled(app: FastAPI) -> FastAPI:
    """An application where an address may try three unknown keys a minute."""
    object.__setattr__(app.state.services, "failed_authentications", FailedAuthentications(TRIES))
    return app


def guess(client: TestClient) -> Any:
    return client.get("/v1/models", headers={"Authorization": "Bearer mens-guess"})


def test_guessing_keys_is_throttled(throttled: FastAPI, anonymous: TestClient) -> None:
    assert [guess(anonymous).status_code for _ in range(TRIES)] == [401] * TRIES
    response = guess(anonymous)
    assert (response.status_code, response.json()["error"]["mens"]["code"]) == (429, "AUTHENTICATION_THROTTLED")
    assert 1 <= int(response.headers["Retry-After"]) <= 20


def test_guessing_delays_nobody_else(throttled: FastAPI, anonymous: TestClient) -> None:
    known = headers_of(throttled)
    assert anonymous.get("/v1/models", headers=known).status_code == 200
    for _ in range(TRIES + 1):
        guess(anonymous)
    throttled.state.services.lookup.invalidate()
    assert anonymous.get("/v1/models", headers=known).status_code == 200, "a known key of the same address"
    other = TestClient(throttled, client=("10.0.0.9", 1))
    assert guess(other).status_code == 401, "another address"


def test_key_that_this_process_has_not_seen_is_not_refused_for_guesses(
    throttled: FastAPI, anonymous: TestClient
) -> None:
    unseen = headers_of(throttled)
    for _ in range(2 * TRIES):
        guess(anonymous)
    assert guess(anonymous).status_code == 429
    assert anonymous.get("/v1/models", headers=unseen).status_code == 200, "as after a restart"


def test_known_keys_never_count(throttled: FastAPI, anonymous: TestClient) -> None:
    for number in range(2 * TRIES):
        headers = {"Authorization": f"Bearer {throttled.state.services.keys.create(f'k{number}')[1]}"}
        assert anonymous.get("/v1/models", headers=headers).status_code == 200


def test_revoked_key_counts_from_its_second_try(throttled: FastAPI, anonymous: TestClient) -> None:
    key, secret = throttled.state.services.keys.create("k")
    headers = {"Authorization": f"Bearer {secret}"}
    assert anonymous.get("/v1/models", headers=headers).status_code == 200
    throttled.state.services.keys.revoke(key.id)
    statuses = [anonymous.get("/v1/models", headers=headers).status_code for _ in range(TRIES + 2)]
    assert statuses == [401] * (TRIES + 1) + [429]


def test_outage_of_the_database_is_not_a_failure(
    throttled: FastAPI, anonymous: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def unavailable(_: str) -> Any:
        raise Unavailable("DATABASE_UNAVAILABLE", "away")

    monkeypatch.setattr(throttled.state.services.lookup, "authenticate", unavailable)
    assert [guess(anonymous).status_code for _ in range(2 * TRIES)] == [503] * 2 * TRIES


def test_missing_keys_cost_no_lookup_and_are_not_counted(throttled: FastAPI, anonymous: TestClient) -> None:
    assert [anonymous.get("/v1/models").status_code for _ in range(2 * TRIES)] == [401] * 2 * TRIES
    assert guess(anonymous).status_code == 401


@pytest.mark.parametrize("number", ["NaN", "-Infinity", "1e999", "1" + "0" * 400 + ".0"])
@pytest.mark.parametrize(
    "body",
    [
        '{"model": "tiny", "mode": "lenient", "data": [{"prompt": "a", "completion": "b"}, {"prompt": %s}]}',
        '{"kind": "finetune", "contract": {"data": {"train_file": "f"}}, "metadata": {"a": %s}}',
    ],
)
def test_a_number_that_json_does_not_have_is_refused(client: TestClient, body: str, number: str) -> None:
    response = client.post("/v1/jobs", content=body % number, headers={"Content-Type": "application/json"})
    error = response.json()["error"]
    assert (response.status_code, error["code"]) == (422, "REQUEST_INVALID")
    assert number.removeprefix("-")[:20] in error["message"]


@pytest.mark.parametrize("text", ["NaN of course", "Infinity", "see 1e999", "9" * 400])
def test_a_text_like_such_a_number_is_none(client: TestClient, text: str) -> None:
    assert client.post("/v1/keys", json={"name": text[:60], "role": "viewer"}).status_code == 201


def test_a_body_that_is_not_json_is_left_to_its_route(client: TestClient) -> None:
    response = client.post("/v1/keys", content='{"name": NaN', headers={"Content-Type": "application/json"})
    assert (response.status_code, "not JSON: " in response.json()["error"]["message"]) == (422, True)
