"""The gateway against a fake replica; `tests/system/test_gateway.py` runs it against the real vLLM."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient

from shared.base_models.catalog import Catalog, save_catalog
from shared.database.records import new_id
from shared.database.tenancy import KeyLimits, Role
from shared.errors import Code, Unavailable
from tests.support.builders import BASE
from tests.support.gateway import ADAPTER, UNPUBLISHED, FakeReplica, client_of, register_adapters, running
from tests.support.raw_http import connect, head
from tests.support.waiting import eventually

pytestmark = pytest.mark.network


@pytest.fixture
def replica() -> Iterator[FakeReplica]:
    yield from running(FakeReplica())


@pytest.fixture
def api(app: FastAPI, replica: FakeReplica) -> Iterator[httpx.Client]:
    """A client of the API on a real socket: a disconnect is a real one."""
    register_adapters(app)
    yield from client_of(app, replica.url)


@pytest.mark.parametrize(("model", "served"), [(BASE, BASE), (ADAPTER, ADAPTER), ("helper", ADAPTER)])
def test_model_is_sent_by_the_name_that_the_replica_serves(
    api: httpx.Client, replica: FakeReplica, model: str, served: str
) -> None:
    messages = [{"role": "user", "content": "?"}]
    response = api.post("/v1/chat/completions", json={"model": model, "messages": messages, "stop": ["x"]})
    assert response.json() == {"served": served}
    assert response.headers.get("x-mens-adapter") == (None if served == BASE else served)
    (sent,) = replica.asked
    assert sent.pop("cache_salt")
    assert sent == {"path": "/v1/chat/completions", "model": served, "messages": messages, "stop": ["x"]}


@pytest.mark.parametrize("given", ["trace-1", None, "no id: a space"])
def test_request_has_its_id_at_the_replica_too(api: httpx.Client, replica: FakeReplica, given: str | None) -> None:
    headers = {} if given is None else {"X-Request-Id": given}
    answers = [api.post("/v1/completions", json={"model": BASE, "prompt": "x"}, headers=headers) for _ in range(2)]
    for answer, seen in zip(answers, replica.request_ids, strict=True):
        assert seen.startswith(f"{answer.headers['x-request-id']}-")
    assert len(set(replica.request_ids)) == 2, "vLLM makes the answer's id of it, also where a caller repeats its own"


def test_new_base_is_served_at_once(app: FastAPI, api: httpx.Client, replica: FakeReplica) -> None:
    assert api.post("/v1/completions", json={"model": BASE, "prompt": "x"}).json() == {"served": BASE}
    path, bases = app.state.services.settings.catalog_path, app.state.services.catalog().bases
    save_catalog(path, Catalog(bases=[*bases, bases[0].model_copy(update={"name": "new-base"})]))
    assert api.post("/v1/completions", json={"model": "new-base", "prompt": "x"}).json() == {"served": "new-base"}


@pytest.mark.parametrize("model", ["nobody", UNPUBLISHED, "../etc/passwd", "", None, 3, [BASE]])
def test_unknown_names_do_not_reach_the_replica(api: httpx.Client, replica: FakeReplica, model: object) -> None:
    response = api.post("/v1/chat/completions", json={"model": model})
    assert response.status_code in (400, 404)
    assert response.json()["error"]["param"] == "model"
    assert response.json()["error"]["mens"]["remedy"]
    assert not replica.asked


@pytest.mark.parametrize(
    ("content", "code"),
    [
        (b"{", "REQUEST_INVALID"),
        (b"[]", "REQUEST_INVALID"),
        (b"[" * 9_000, "REQUEST_INVALID"),
        (b'{"model": "\\ud800"}', "REQUEST_INVALID"),
        (b'{"model": "\xff"}', "REQUEST_INVALID"),
        (b"x" * 10_001, "BODY_TOO_LARGE"),
    ],
)
def test_invalid_bodies_are_refused(api: httpx.Client, content: bytes, code: str) -> None:
    error = api.post("/v1/completions", content=content).json()["error"]["mens"]
    assert (error["code"], bool(error["remedy"])) == (code, True)


@pytest.mark.parametrize("text", ["half \\ud83d", "\\ud83d half", "\\udc00"])
def test_half_of_a_surrogate_pair_is_named_wherever_it_stands(api: httpx.Client, text: str) -> None:
    content = '{"model": "m", "messages": [{"role": "user", "content": "' + text + '"}]}'
    error = api.post("/v1/chat/completions", content=content).json()["error"]
    assert (error["param"], error["mens"]["code"]) == ("messages.0.content", "REQUEST_INVALID")
    assert "half of a surrogate pair" in error["message"]


def test_a_large_body_that_is_not_json_is_not_parsed_again_for_its_field(
    api: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("api.inference.gateway.MAX_EXPLAINED_BYTES", 50)
    content = '{"model": "m", "messages": [{"role": "user", "content": "half \\ud83d"}]}'
    error = api.post("/v1/chat/completions", content=content).json()["error"]
    assert (error["param"], error["mens"]["code"]) == (None, "REQUEST_INVALID")
    assert "is not JSON" in error["message"]


def test_a_body_that_is_cut_off_is_not_json(api: httpx.Client) -> None:
    error = api.post("/v1/chat/completions", content=b'{"model": "m').json()["error"]
    assert error["message"].startswith("The request body is not JSON: Input data was truncated. Correct it")


def test_stream_is_passed_on_as_it_comes(api: httpx.Client, replica: FakeReplica) -> None:
    replica.held.set()
    with api.stream("POST", "/v1/completions", json={"model": BASE, "stream": True}) as response:
        assert response.headers["content-type"] == "text/event-stream"
        chunks = response.iter_raw()
        first = next(chunks)  # while the last one is held back
        replica.held.clear()
        assert (first + b"".join(chunks)).endswith(b"data: 49\n\n")


def test_disconnect_from_a_stream_cancels_it_at_the_replica(api: httpx.Client, replica: FakeReplica) -> None:
    with api.stream("POST", "/v1/completions", json={"model": BASE, "stream": True}) as response:
        next(response.iter_raw())
    assert replica.abandoned.wait(30)


def test_disconnect_before_the_response_cancels_it_at_the_replica(api: httpx.Client, replica: FakeReplica) -> None:
    replica.delay = 300
    body = json.dumps({"model": BASE}).encode()
    lines = f"Authorization: {api.headers['authorization']}", f"Content-Length: {len(body)}"
    with connect(str(api.base_url)) as caller:
        caller.sendall(head("POST", "/v1/completions", *lines) + body)
        eventually(lambda: replica.asked)
    assert replica.abandoned.wait(30)


def test_replica_that_is_down_is_skipped(app: FastAPI, api: httpx.Client, replica: FakeReplica) -> None:
    app.state.services.settings.serving_urls[:] = ["http://127.0.0.1:9", "http://127.0.0.1:10", replica.url]
    for _ in range(3):
        assert api.post("/v1/completions", json={"model": BASE}).status_code == 200


def test_no_replica_is_a_503(app: FastAPI, client: TestClient) -> None:
    register_adapters(app)
    response = client.post("/v1/chat/completions", json={"model": "helper"})
    assert (response.status_code, response.json()["error"]["mens"]["code"]) == (503, "SERVING_UNAVAILABLE")
    assert response.headers["retry-after"]


def test_adapter_that_the_replica_refuses_is_a_503(api: httpx.Client) -> None:
    response = api.post("/v1/chat/completions", json={"model": f"helper@{'c' * 64}"})
    assert (response.status_code, response.json()["error"]["mens"]["code"]) == (503, "SERVING_REFUSED")


def test_other_paths_of_the_replica_are_not_reachable(api: httpx.Client, replica: FakeReplica) -> None:
    for path in (
        "/v1/load_lora_adapter",
        "/invocations",
        "/tokenize",
        "/metrics",
        "/v1/chat/completions/../../metrics",
    ):
        assert api.post(path, json={"model": BASE}).status_code in (404, 405)
    assert not replica.asked


# -- tenants, moves and limits ---------------------------------------------------------------------------------------


def complete_as(app: FastAPI, api: httpx.Client, tenant: str, **body: Any) -> httpx.Response:
    """A completion with a new key of a tenant."""
    _, secret = app.state.services.keys.create(new_id("k"), tenant)
    headers = {"Authorization": f"Bearer {secret}"}
    return api.post("/v1/completions", json={"model": BASE} | body, headers=headers)


def test_tenants_have_different_cache_salts(app: FastAPI, api: httpx.Client, replica: FakeReplica) -> None:
    for tenant, own in (("acme", None), ("acme", None), ("other", None), ("acme", "mine"), ("other", "mine")):
        assert complete_as(app, api, tenant, **({"cache_salt": own} if own else {})).status_code == 200
    salts = [str(asked["cache_salt"]) for asked in replica.asked]
    assert salts[0] == salts[1]
    assert len(set(salts)) == 4
    assert "mine" not in " ".join(salts)


def test_moved_alias_is_followed_by_the_next_request(app: FastAPI, api: httpx.Client, replica: FakeReplica) -> None:
    another = f"helper@{'c' * 64}"
    assert api.post("/v1/completions", json={"model": "helper"}).headers["x-mens-adapter"] == ADAPTER
    for number in range(10):
        adapter = (another, ADAPTER)[number % 2]
        assert api.put("/v1/aliases/helper", json={"adapter": adapter}).status_code == 200
        api.post("/v1/completions", json={"model": "helper"})
        assert replica.asked[-1]["model"] == adapter
    assert api.delete("/v1/aliases/helper").status_code == 200
    assert api.post("/v1/completions", json={"model": "helper"}).status_code == 404


@pytest.mark.parametrize("ending", ["read", "disconnected", "refused", "unknown"])
def test_slot_is_held_until_the_response_ends(
    app: FastAPI, api: httpx.Client, replica: FakeReplica, ending: str
) -> None:
    limits = KeyLimits(concurrent_requests=1)
    _, secret = app.state.services.keys.create("one", "acme", Role.VIEWER, limits)
    api.headers["Authorization"] = f"Bearer {secret}"
    body = {"model": {"refused": f"helper@{'c' * 64}", "unknown": "nobody"}.get(ending, BASE), "stream": True}
    is_served = ending in ("read", "disconnected")
    if is_served:
        replica.held.set()  # else the stream might end before the second request has come
    with api.stream("POST", "/v1/completions", json=body) as response:
        assert response.is_success is is_served
        if response.is_success:
            second = api.post("/v1/completions", json={"model": BASE})
            assert (second.status_code, second.json()["error"]["mens"]["code"]) == (429, "CONCURRENCY_LIMITED")
        if ending == "read":
            replica.held.clear()
        if ending == "disconnected":
            next(response.iter_raw())
        else:
            response.read()
    if ending == "disconnected":
        assert replica.abandoned.wait(30)
    assert api.post("/v1/completions", json={"model": BASE}).status_code == 200


def test_successful_requests_are_counted(app: FastAPI, api: httpx.Client) -> None:
    for model in ("helper", "helper", BASE, "nobody", f"helper@{'c' * 64}"):
        api.post("/v1/completions", json={"model": model, "stream": model == BASE})
    app.state.services.gateway.meter._interval = 0.0
    eventually(lambda: len(api.get("/v1/usage").json()["data"]) == 2)
    counted = {line["model"]: line["requests"] for line in api.get("/v1/usage").json()["data"]}
    assert counted == {ADAPTER: 2, BASE: 1}


@pytest.mark.parametrize("path", ["chat/completions", "completions", "responses"])
def test_stream_of_a_key_that_is_revoked_ends_with_an_error(
    app: FastAPI, api: httpx.Client, replica: FakeReplica, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    monkeypatch.setattr("api.inference.response.RECHECK_SECONDS", 0.0)
    key, secret = app.state.services.keys.create("leaves", "acme", Role.VIEWER)
    replica.held.set()
    body = {"model": BASE, "stream": True, "messages": [{"role": "user", "content": "?"}], "prompt": "?", "input": "?"}
    fields = {"chat/completions": "messages", "completions": "prompt", "responses": "input"}
    sent = {name: body[name] for name in ("model", "stream", fields[path])}
    with api.stream("POST", f"/v1/{path}", json=sent, headers={"Authorization": f"Bearer {secret}"}) as response:
        pieces = response.iter_text()
        assert "data: 0" in next(pieces)
        app.state.services.keys.revoke(key.id)
        replica.held.clear()
        *_, last = "".join(pieces).strip().split("\n\n")
    error = json.loads(last.removeprefix("data: "))["error"]
    assert (error["mens"]["code"], error["code"]) == ("KEY_INVALID", "invalid_api_key")


def test_streams_continue_while_the_database_is_away(
    app: FastAPI, api: httpx.Client, replica: FakeReplica, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("api.inference.response.RECHECK_SECONDS", 0.0)

    def fail(*_: Any) -> Any:
        raise Unavailable(Code.DATABASE_UNAVAILABLE, "away")

    with api.stream("POST", "/v1/completions", json={"model": BASE, "stream": True}) as response:
        monkeypatch.setattr("shared.database.callers.keys.Keys.accept", fail)
        monkeypatch.setattr("shared.database.change_counter.Changes.count", fail)
        app.state.services.lookup.invalidate()
        assert response.read().endswith(b"data: 49\n\n")
