"""Requests to models in OpenAI's shapes, against a scripted replica."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from fastapi import FastAPI

from api.inference.request_fields.known import TOKEN_IDS
from shared.database.records import new_id
from shared.database.tenancy import KeyLimits, Role
from tests.support.asgi_server import serve
from tests.support.gateway import ADAPTER, register_adapters
from tests.support.scripted_replica import ScriptedReplica

pytestmark = pytest.mark.network

PATHS = {
    "/v1/chat/completions": "/v1/chat/completions",
    "/v1/completions": "/v1/completions",
    "/v1/responses": "/v1/responses",
    "/v1/embeddings": "/v1/embeddings",
    "/v1/tokenize": "/tokenize",
    "/v1/detokenize": "/detokenize",
}
FOR_TRAINERS = {"/v1/tokenize", "/v1/detokenize"}
PROMPTS = {"/v1/chat/completions": "user", "/v1/completions": "prompt"}
"""A field that the route takes a text in; `input` for the others."""


@pytest.fixture
def replica() -> ScriptedReplica:
    replica = ScriptedReplica()
    replica.answers({"said": "so"})
    return replica


@pytest.fixture
def api(app: FastAPI, replica: ScriptedReplica) -> Iterator[httpx.Client]:
    """A client without a key."""
    register_adapters(app)
    for replica_url in serve(replica):
        app.state.services.settings.serving_urls[:] = [replica_url]
        for url in serve(app, "on"):
            with httpx.Client(base_url=url, timeout=60) as client:
                yield client


def post(app: FastAPI, api: httpx.Client, route: str, role: Role = Role.TRAINER, **body: Any) -> httpx.Response:
    _, secret = app.state.services.keys.create(new_id("test"), role=role)
    return api.post(route, json={"model": "helper", **body}, headers={"Authorization": f"Bearer {secret}"})


def test_each_route_is_sent_to_its_path_of_the_replica(
    app: FastAPI, api: httpx.Client, replica: ScriptedReplica
) -> None:
    for route, path in PATHS.items():
        field = PROMPTS.get(route, "input")
        response = post(app, api, route, **{field: "Hello"})
        assert (response.status_code, response.json()) == (200, {"said": "so"})
        assert response.headers["x-mens-adapter"] == ADAPTER
        sent_path, sent = replica.asked[-1]
        assert (sent_path, sent["model"], sent[field]) == (path, ADAPTER, "Hello")


def test_tokenization_requires_a_trainer(app: FastAPI, api: httpx.Client, replica: ScriptedReplica) -> None:
    for route in PATHS:
        response = post(app, api, route, Role.VIEWER, **{PROMPTS.get(route, "input"): "Hello"})
        assert response.status_code == (403 if route in FOR_TRAINERS else 200), route
    assert not {"/tokenize", "/detokenize"} & {path for path, _ in replica.asked}


@pytest.mark.parametrize("field", TOKEN_IDS)
def test_token_ids_in_an_answer_require_a_trainer(
    app: FastAPI, api: httpx.Client, replica: ScriptedReplica, field: str
) -> None:
    for route in ("/v1/chat/completions", "/v1/completions", "/v1/responses"):
        for value in (0, 1, True):
            response = post(app, api, route, Role.VIEWER, **{field: value})
            assert (response.status_code, response.json()["error"]["param"]) == (403, field)
        assert not replica.asked
        assert post(app, api, route, Role.VIEWER, **{field: None}).status_code != 403
        assert post(app, api, route, **{field: 1}).status_code != 403
        replica.asked.clear()


def test_every_answer_has_openais_headers(app: FastAPI, api: httpx.Client, replica: ScriptedReplica) -> None:
    limits = KeyLimits(requests_per_minute=90)
    _, secret = app.state.services.keys.create("limited", role=Role.VIEWER, limits=limits)
    for route in ("/v1/chat/completions", "/v1/completions", "/v1/responses"):
        field = PROMPTS.get(route, "input")
        for body, status in (
            ({"model": "helper"}, 200),
            ({"model": "nobody"}, 404),
            ({"model": "helper", "x": 1}, 400),
            ({"model": "helper", "top_k": 1 << 64}, 400),
        ):
            headers = {"Authorization": f"Bearer {secret}"}
            response = api.post(route, json={field: "Hello", **body}, headers=headers)
            assert response.status_code == status
            assert response.headers["openai-version"]
            assert float(response.headers["openai-processing-ms"]) >= 0
            assert response.headers["x-ratelimit-limit-requests"] == "90"
        response = api.post(route, content=b"{", headers=headers | {"Content-Type": "application/json"})
        assert (response.status_code, response.headers["x-ratelimit-limit-requests"]) == (400, "90")
    assert response.headers["x-ratelimit-remaining-requests"] == str(90 - 3 * 5), "what is wrong counts, as at OpenAI"


def test_unknown_model_is_sent_to_no_replica(app: FastAPI, api: httpx.Client, replica: ScriptedReplica) -> None:
    for route in PATHS:
        response = post(app, api, route, model="nobody")
        assert (response.status_code, response.json()["error"]["mens"]["code"]) == (404, "MODEL_NOT_FOUND")
    assert not replica.asked


def test_no_response_is_stored(app: FastAPI, api: httpx.Client, replica: ScriptedReplica) -> None:
    assert post(app, api, "/v1/responses", input="Hello").is_success
    assert replica.asked[0][1]["store"] is False
    refused = post(app, api, "/v1/responses", input="Hello", previous_response_id="resp_1")
    assert (refused.status_code, refused.json()["error"]["mens"]["code"]) == (400, "RESPONSE_NOT_STORED")
    assert len(replica.asked) == 1


def test_empty_request_is_sent_to_no_replica(app: FastAPI, api: httpx.Client, replica: ScriptedReplica) -> None:
    for route, body, param in (
        ("/v1/chat/completions", {"messages": [{"role": "user"}]}, "messages[0].content"),
        ("/v1/completions", {"prompt": []}, "prompt"),
        ("/v1/responses", {"input": []}, "input"),
    ):
        response = post(app, api, route, **body)
        error = response.json()["error"]
        assert (response.status_code, error["mens"]["code"], error["param"]) == (400, "REQUEST_INVALID", param)
        assert error["mens"]["remedy"]
    assert not replica.asked


REFUSALS: list[tuple[int, Any, tuple[int, str, str | None]]] = [
    (400, {"error": {"message": "too hot", "param": "temperature"}}, (400, "REQUEST_REJECTED", "temperature")),
    (422, {"error": {"message": "too hot", "param": None}}, (422, "REQUEST_REJECTED", None)),
    (500, {"error": {"message": "EngineCore died"}}, (500, "SERVING_FAILED", None)),
    (404, {"detail": "Not Found"}, (400, "TASK_UNSUPPORTED", "model")),
    (404, {"error": {"message": "no model"}}, (503, "SERVING_REFUSED", None)),
    (401, {"error": {"code": "KEY_INVALID"}}, (503, "SERVING_UNAVAILABLE", None)),
]


def test_replicas_errors_have_the_apis_shape(app: FastAPI, api: httpx.Client, replica: ScriptedReplica) -> None:
    for status, body, expected in REFUSALS:
        for stream in (False, True):
            replica.answers(body, status)
            response = post(app, api, "/v1/chat/completions", stream=stream)
            error = response.json()["error"]
            assert (response.status_code, error["mens"]["code"], error["param"]) == expected
            assert response.headers["content-type"] == "application/json"
            assert {"message", "type", "mens"} <= set(error)


def test_stream_that_begins_with_an_error_is_an_error_response(
    app: FastAPI, api: httpx.Client, replica: ScriptedReplica
) -> None:
    body = {"error": {"message": "Grammar error: bogus.", "type": "BadRequestError", "param": None, "code": 400}}
    replica.pieces = [f"data: {json.dumps(body)}\n\n".encode(), b"data: [DONE]\n\n"]
    for route in ("/v1/chat/completions", "/v1/completions", "/v1/responses"):
        response = post(app, api, route, stream=True, **{PROMPTS.get(route, "input"): "Hello"})
        assert (response.status_code, response.json()["error"]["mens"]["code"]) == (400, "REQUEST_REJECTED")


@pytest.mark.parametrize("together", [False, True])
def test_stream_in_which_the_engine_dies_ends_with_our_error(
    app: FastAPI, api: httpx.Client, replica: ScriptedReplica, together: bool
) -> None:
    """vLLM writes an error with a number for a code, and ``[DONE]``, as if all were well."""
    died = {"message": "EngineCore encountered an issue.", "type": "InternalServerError", "param": None, "code": 500}
    first = b'data: {"choices": []}\n\n'
    last = [f"data: {json.dumps({'error': died})}\n\n".encode(), b"data: [DONE]\n\n"]
    replica.pieces = [b"".join([first, *last])] if together else [first, *last]
    for route in ("/v1/chat/completions", "/v1/completions"):
        response = post(app, api, route, stream=True)
        begun, *events = [event for event in response.text.split("\n\n") if event]
        assert (response.status_code, begun + "\n\n") == (200, first.decode())
        (error,) = [json.loads(event.removeprefix("data: "))["error"] for event in events]
        assert error["mens"]["code"] == "SERVING_FAILED"


def test_responses_stream_in_which_the_engine_dies_ends_with_our_error(
    app: FastAPI, api: httpx.Client, replica: ScriptedReplica
) -> None:
    """vLLM writes no error into it: it ends the connection, maybe in the middle of an event."""
    created = b'event: response.created\ndata: {"response":{"id":"r"}}\n\n'
    for begun in ([], [b"event: response.output_text.delta\nda"]):
        replica.pieces, replica.breaks = [created, *begun], True
        response = post(app, api, "/v1/responses", input="Hello", stream=True)
        first, last = [event for event in response.text.split("\n\n") if event]
        assert (response.status_code, first + "\n\n") == (200, created.decode())
        assert json.loads(last.removeprefix("data: "))["error"]["mens"]["code"] == "SERVING_FAILED"


def test_functions_are_answered_with_a_function_call(app: FastAPI, api: httpx.Client, replica: ScriptedReplica) -> None:
    called = {"name": "add", "arguments": "{}"}
    message = {"role": "assistant", "content": None, "tool_calls": [{"id": "x", "function": called}]}
    replica.answers({"choices": [{"message": message, "finish_reason": "tool_calls"}]})
    ask = {"messages": [{"role": "user", "content": "?"}], "functions": [{"name": "add"}], "function_call": "auto"}
    (choice,) = post(app, api, "/v1/chat/completions", **ask).json()["choices"]
    assert choice["message"]["function_call"] == called
    assert (choice["finish_reason"], "tool_calls" in choice["message"]) == ("function_call", False)
    (_, sent), *_ = replica.asked
    assert (sent["tools"][0]["function"]["name"], sent["tool_choice"]) == ("add", "auto")


def test_error_about_functions_names_them(app: FastAPI, api: httpx.Client, replica: ScriptedReplica) -> None:
    """The replica knows them as tools, and so do the limits of schemas."""
    large = {"name": "add", "parameters": {"enum": ["x" * 9_000]}}
    ask = {"messages": [{"role": "user", "content": "?"}], "function_call": {"name": "add"}}
    error = post(app, api, "/v1/chat/completions", functions=[large], **ask).json()["error"]
    assert (error["mens"]["code"], error["param"]) == ("GRAMMAR_TOO_LARGE", "functions[0].parameters")
    assert not replica.asked
    replica.answers({"error": {"message": "`tool_choice` is not there.", "param": "tool_choice"}}, 400)
    error = post(app, api, "/v1/chat/completions", functions=[{"name": "add"}], **ask).json()["error"]
    assert (error["mens"]["code"], error["param"]) == ("REQUEST_REJECTED", "function_call")


def test_malformed_field_is_sent_to_no_replica(app: FastAPI, api: httpx.Client, replica: ScriptedReplica) -> None:
    """vLLM would answer 500 and close the connection."""
    for route, body, param in (
        ("/v1/chat/completions", {"structured_outputs": ""}, "structured_outputs"),
        ("/v1/chat/completions", {"tools": [{}], "tool_choice": {"function": {"name": "x"}}}, "tools[0].function"),
        ("/v1/chat/completions", {"messages": [{"function_call": {"name": "f"}}]}, "messages[0].function_call"),
        ("/v1/completions", {"top_k": 1 << 64}, "top_k"),
        ("/v1/responses", {"structured_outputs": [], "input": "x"}, "structured_outputs"),
    ):
        response = post(app, api, route, **body)
        error = response.json()["error"]
        assert (response.status_code, error["mens"]["code"], error["param"]) == (400, "REQUEST_INVALID", param)
    assert not replica.asked


def test_large_schema_is_sent_to_no_replica(app: FastAPI, api: httpx.Client, replica: ScriptedReplica) -> None:
    schema = {"enum": ["x" * 9_000]}
    for route, body in (
        ("/v1/chat/completions", {"response_format": {"type": "json_schema", "json_schema": {"schema": schema}}}),
        ("/v1/completions", {"structured_outputs": {"json": schema}}),
        ("/v1/responses", {"input": "x", "text": {"format": {"type": "json_schema", "schema": schema}}}),
    ):
        error = post(app, api, route, **body).json()["error"]
        assert error["mens"]["code"] == "GRAMMAR_TOO_LARGE"
    assert not replica.asked
