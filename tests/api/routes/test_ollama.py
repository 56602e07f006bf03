"""Ollama's routes on real sockets, against a scripted replica."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from fastapi import FastAPI

from shared.database.tenancy import KeyLimits
from tests.support.asgi_server import serve
from tests.support.builders import BASE
from tests.support.gateway import ADAPTER, client_of, register_adapters
from tests.support.scripted_replica import ScriptedReplica

pytestmark = pytest.mark.network

HELLO = [{"role": "user", "content": "Hello"}]
USAGE = {"prompt_tokens": 11, "completion_tokens": 2, "total_tokens": 13}


def event(**chunk: Any) -> bytes:
    return b"data: " + json.dumps({"id": "x", "object": "chat.completion.chunk", **chunk}).encode() + b"\n\n"


def piece(content: str, finish_reason: str | None = None) -> bytes:
    return event(choices=[{"index": 0, "delta": {"content": content}, "finish_reason": finish_reason}])


STREAM = [piece("Hel"), piece("lo", "stop"), event(choices=[], usage=USAGE), b"data: [DONE]\n\n"]
WHOLE = {"choices": [{"index": 0, "message": {"content": "Hello"}, "finish_reason": "stop"}], "usage": USAGE}


@pytest.fixture
def replica() -> ScriptedReplica:
    return ScriptedReplica(list(STREAM))


@pytest.fixture
def ollama(app: FastAPI, replica: ScriptedReplica) -> Iterator[httpx.Client]:
    """A client with a key."""
    register_adapters(app)
    for replica_url in serve(replica):
        yield from client_of(app, replica_url)


def lines(response: httpx.Response) -> list[dict[str, Any]]:
    assert response.headers["content-type"] == "application/x-ndjson"
    return [json.loads(line) for line in response.text.splitlines()]


def test_chat_is_streamed_as_json_lines(ollama: httpx.Client, replica: ScriptedReplica) -> None:
    response = ollama.post("/api/chat", json={"model": "helper", "messages": HELLO, "options": {"num_predict": 9}})
    first, second, last = lines(response)
    assert (first["message"]["content"], second["message"]["content"]) == ("Hel", "lo")
    assert (last["done"], last["prompt_eval_count"], last["eval_count"]) == (True, 11, 2)
    assert {line["model"] for line in (first, second, last)} == {"helper"}
    assert response.headers["x-mens-adapter"] == ADAPTER
    ((path, sent),) = replica.asked
    assert path == "/v1/chat/completions"
    assert (sent["model"], sent["messages"], sent["max_tokens"]) == (ADAPTER, HELLO, 9)


def test_line_is_sent_before_the_next_is_generated(ollama: httpx.Client, replica: ScriptedReplica) -> None:
    replica.go_on.clear()
    with ollama.stream("POST", "/api/chat", json={"model": BASE, "messages": HELLO}) as response:
        received = response.iter_lines()
        assert json.loads(next(received))["message"]["content"] == "Hel"
        replica.go_on.set()
        assert [json.loads(line)["done"] for line in received] == [False, True]


def test_disconnect_cancels_the_request_at_the_replica(ollama: httpx.Client, replica: ScriptedReplica) -> None:
    replica.go_on.clear()
    with ollama.stream("POST", "/api/generate", json={"model": BASE, "prompt": "Hello"}) as response:
        next(response.iter_lines())
    assert replica.abandoned.wait(30)
    replica.go_on.set()


@pytest.mark.parametrize(
    ("route", "fields", "text_field"),
    [("chat", {"messages": HELLO}, "message"), ("generate", {"prompt": "Hello"}, "response")],
)
def test_whole_response(
    ollama: httpx.Client, replica: ScriptedReplica, route: str, fields: dict[str, Any], text_field: str
) -> None:
    replica.answers(WHOLE)
    response = ollama.post(f"/api/{route}", json={"model": "helper", "stream": False, **fields})
    assert response.headers["content-type"] == "application/json"
    assert response.headers["x-mens-adapter"] == ADAPTER
    body = response.json()
    text = body[text_field]["content"] if text_field == "message" else body[text_field]
    assert (text, body["done"], body["eval_count"]) == ("Hello", True, 2)
    assert replica.asked[0][1]["stream"] is False


@pytest.mark.parametrize(("route", "fields"), [("chat", {"messages": []}), ("generate", {})])
def test_request_without_a_prompt_loads_the_model(
    ollama: httpx.Client, replica: ScriptedReplica, route: str, fields: dict[str, Any]
) -> None:
    replica.answers({"choices": [{"index": 0, "text": "x", "finish_reason": "length"}]})
    response = ollama.post(f"/api/{route}", json={"model": "helper", **fields}).json()
    assert (response["done"], response["done_reason"]) == (True, "load")
    assert replica.asked[0][1]["model"] == ADAPTER


@pytest.mark.parametrize("pieces", [STREAM[:1], [STREAM[0], b'data: {"error": {"message": "EngineCore died"}}\n\n']])
@pytest.mark.parametrize("breaks", [True, False])
def test_error_in_a_stream_is_its_last_line(
    ollama: httpx.Client, replica: ScriptedReplica, pieces: list[bytes], breaks: bool
) -> None:
    replica.pieces, replica.breaks = pieces, breaks
    *whole, last = lines(ollama.post("/api/chat", json={"model": BASE, "messages": HELLO}))
    assert [line["done"] for line in whole] == [False]
    assert (last["code"], "done" in last) == ("SERVING_FAILED", False)


def test_stream_of_a_key_that_is_revoked_ends_with_an_error(
    app: FastAPI, ollama: httpx.Client, replica: ScriptedReplica, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("api.inference.response.RECHECK_SECONDS", 0.0)
    replica.go_on.clear()
    with ollama.stream("POST", "/api/chat", json={"model": BASE, "messages": HELLO}) as response:
        received = response.iter_lines()
        next(received)
        (key,) = app.state.services.keys.all()
        app.state.services.keys.revoke(key.id)
        replica.go_on.set()
        *_, last = received
    assert json.loads(last)["code"] == "KEY_INVALID"


def test_errors_have_ollamas_shape(ollama: httpx.Client, replica: ScriptedReplica) -> None:
    def refused(status: int, code: str, route: str = "chat", **body: Any) -> str:
        response = ollama.post(f"/api/{route}", json={"model": BASE, **body})
        error = response.json()
        assert (response.status_code, error["code"], set(error)) == (status, code, {"error", "code"})
        return str(error["error"])

    unknown = refused(404, "MODEL_NOT_FOUND", messages=HELLO, model="nobody")
    assert "nobody" in unknown
    assert "/api/tags" in unknown
    assert "/v1/" not in unknown
    unsupported = refused(400, "REQUEST_INVALID", messages=HELLO, options={"mirostat": 1})
    assert "options.mirostat" in unsupported
    assert "docs/ollama.md" in unsupported
    assert "/v1/" not in unsupported
    assert "not supported" in refused(400, "REQUEST_INVALID", "generate", prompt="x", images=["aGk="])
    assert "/api/pull" in refused(404, "ROUTE_NOT_FOUND", "pull")
    assert not replica.asked
    replica.answers({"error": {"message": "too long", "param": "messages"}}, 400)
    assert refused(400, "REQUEST_REJECTED", messages=HELLO) == "too long Correct `messages`."


@pytest.mark.parametrize("content", [b"{", b'{"model": 1}', b'{"model": "helper", "messages": 5}'])
def test_requests_that_are_wrong_are_counted(app: FastAPI, ollama: httpx.Client, content: bytes) -> None:
    _, secret = app.state.services.keys.create("limited", limits=KeyLimits(requests_per_minute=2))
    ollama.headers["Authorization"] = f"Bearer {secret}"
    assert [ollama.post("/api/chat", content=content).status_code for _ in range(2)] == [400, 400]
    assert ollama.post("/api/chat", json={"model": "helper", "messages": HELLO}).status_code == 429


def test_errors_before_the_route_have_ollamas_shape(ollama: httpx.Client) -> None:
    broken = ollama.post("/api/chat", content=b"{", headers={"content-type": "application/json"})
    assert (broken.status_code, broken.json()["code"]) == (400, "REQUEST_INVALID")
    large = ollama.post("/api/chat", json={"model": BASE, "messages": [{"role": "user", "content": "x" * 20_000}]})
    assert (large.status_code, large.json()["code"]) == (413, "BODY_TOO_LARGE")
    for method in ("GET", "PATCH", "PUT"):
        wrong = ollama.request(method, "/api/chat")
        assert (wrong.status_code, wrong.json()["code"]) == (405, "METHOD_NOT_ALLOWED")
        assert wrong.headers["Allow"] == "OPTIONS, POST"
    for path in ("/api/tags", "/api/version", "/api/anything"):
        unauthenticated = ollama.get(path, headers={"Authorization": "Bearer wrong"})
        assert (unauthenticated.status_code, unauthenticated.json()["code"]) == (401, "KEY_INVALID")
        assert isinstance(unauthenticated.json()["error"], str)


def test_tags_list_all_models(ollama: httpx.Client) -> None:
    listed = [model["id"] for model in ollama.get("/v1/models").json()["data"]]
    tags = ollama.get("/api/tags").json()["models"]
    assert [tag["name"] for tag in tags] == listed
    assert {BASE, ADAPTER, "helper"} <= set(listed)
    assert all(len(tag["digest"]) == 64 for tag in tags)


def test_version_can_be_compared_as_numbers(ollama: httpx.Client) -> None:
    version = ollama.get("/api/version").json()
    assert [int(part) for part in version["version"].split(".")]
    assert version["ollama"] == "compat-subset"
