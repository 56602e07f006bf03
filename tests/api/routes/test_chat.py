"""The routes that ask models in OpenAI's shapes, against a replica that answers what a test wrote down."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from fastapi import FastAPI

from shared.job import new_id
from shared.tenancy import Role
from tests.api.scripted_replica import ScriptedReplica
from tests.api.test_gateway import ADAPTER, register_adapters, serve

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


@pytest.fixture
def replica() -> ScriptedReplica:
    replica = ScriptedReplica()
    replica.answers({"said": "so"})
    return replica


@pytest.fixture
def front_door(app: FastAPI, replica: ScriptedReplica) -> Iterator[httpx.Client]:
    """A client without a key."""
    register_adapters(app)
    for replica_url in serve(replica):
        app.state.services.settings.serving_urls[:] = [replica_url]
        for url in serve(app, "on"):
            with httpx.Client(base_url=url, timeout=10) as client:
                yield client


def ask(app: FastAPI, front_door: httpx.Client, route: str, role: Role = Role.TRAINER, **body: Any) -> httpx.Response:
    _, secret = app.state.services.keys.create(new_id("test"), role=role)
    return front_door.post(route, json={"model": "helper", **body}, headers={"Authorization": f"Bearer {secret}"})


def test_each_route_has_its_path_at_the_replica(
    app: FastAPI, front_door: httpx.Client, replica: ScriptedReplica
) -> None:
    for route, path in PATHS.items():
        answer = ask(app, front_door, route, input="Hello")
        assert (answer.status_code, answer.json()) == (200, {"said": "so"})
        assert answer.headers["x-mens-adapter"] == ADAPTER
        asked_path, asked = replica.asked[-1]
        assert (asked_path, asked["model"], asked["input"]) == (path, ADAPTER, "Hello")


def test_tokens_are_for_those_who_train(app: FastAPI, front_door: httpx.Client, replica: ScriptedReplica) -> None:
    for route in PATHS:
        answer = ask(app, front_door, route, Role.VIEWER, input="Hello")
        assert answer.status_code == (403 if route in FOR_TRAINERS else 200), route
    assert not {"/tokenize", "/detokenize"} & {path for path, _ in replica.asked}


def test_only_a_model_that_one_may_see_is_asked(
    app: FastAPI, front_door: httpx.Client, replica: ScriptedReplica
) -> None:
    for route in PATHS:
        answer = ask(app, front_door, route, model="nobody")
        assert (answer.status_code, answer.json()["error"]["code"]) == (404, "MODEL_NOT_FOUND")
    assert not replica.asked


def test_no_response_is_stored(app: FastAPI, front_door: httpx.Client, replica: ScriptedReplica) -> None:
    assert ask(app, front_door, "/v1/responses", input="Hello").is_success
    assert replica.asked[0][1]["store"] is False
    refused = ask(app, front_door, "/v1/responses", input="Hello", previous_response_id="resp_1")
    assert (refused.status_code, refused.json()["error"]["code"]) == (400, "RESPONSE_NOT_STORED")
    assert len(replica.asked) == 1


def test_what_asks_nothing_is_asked_of_no_replica(
    app: FastAPI, front_door: httpx.Client, replica: ScriptedReplica
) -> None:
    for route, body, param in (
        ("/v1/chat/completions", {"messages": [{"role": "user"}]}, "messages[0].content"),
        ("/v1/completions", {"prompt": []}, "prompt"),
        ("/v1/responses", {"input": []}, "input"),
    ):
        answer = ask(app, front_door, route, **body)
        error = answer.json()["error"]
        assert (answer.status_code, error["code"], error["param"]) == (400, "REQUEST_INVALID", param)
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


def test_what_a_replica_refuses_is_told_in_our_shape(
    app: FastAPI, front_door: httpx.Client, replica: ScriptedReplica
) -> None:
    for status, said, expected in REFUSALS:
        for stream in (False, True):
            replica.answers(said, status)
            answer = ask(app, front_door, "/v1/chat/completions", stream=stream)
            error = answer.json()["error"]
            assert (answer.status_code, error["code"], error["param"]) == expected
            assert answer.headers["content-type"] == "application/json"
            assert {"message", "type", "mens"} <= set(error)


def test_a_stream_that_begins_with_an_error_is_one(
    app: FastAPI, front_door: httpx.Client, replica: ScriptedReplica
) -> None:
    said = {"error": {"message": "Grammar error: bogus.", "type": "BadRequestError", "param": None, "code": 400}}
    replica.pieces = [f"data: {json.dumps(said)}\n\n".encode(), b"data: [DONE]\n\n"]
    for route in ("/v1/chat/completions", "/v1/completions", "/v1/responses"):
        answer = ask(app, front_door, route, stream=True, input="Hello")
        assert (answer.status_code, answer.json()["error"]["code"]) == (400, "REQUEST_REJECTED")
    replica.pieces = [b'data: {"choices": []}\n\n', *replica.pieces]
    late = ask(app, front_door, "/v1/completions", stream=True)
    assert (late.status_code, late.content) == (200, b"".join(replica.pieces)), "then it is vLLM's to tell"
