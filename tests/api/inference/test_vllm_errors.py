"""A replica's error responses in the API's shape: vLLM's message and status, a stable code, and only faults of the
caller's own request.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any, cast

import pytest

from api.errors import error_response, headers_of, status_of
from api.inference.replicas.client import ReplicaDisconnected, ReplicaResponse
from api.inference.vllm_errors import error_from_replica
from shared.errors import MensError

VLLM = {"message": "temperature must be non-negative, got -3.0.", "type": "BadRequestError", "param": "temperature"}
UNKNOWN = {"message": "The model `x` does not exist.", "type": "NotFoundError", "param": "model", "code": 404}


@dataclass
class FakeResponse:
    """A replica's response, as far as it is read."""

    status: int
    content: bytes
    breaks: bool = False
    closed: bool = False

    async def __aiter__(self) -> AsyncIterator[bytes]:
        yield self.content[:7]
        if self.breaks:
            raise ReplicaDisconnected
        yield self.content[7:]

    def close(self) -> None:
        self.closed = True


def refused(status: int, body: Any, *, breaks: bool = False, **body_fields: Any) -> MensError:
    response = FakeResponse(status, body if isinstance(body, bytes) else json.dumps(body).encode(), breaks)
    error = asyncio.run(
        error_from_replica(cast("ReplicaResponse", response), {"model": "prod", **body_fields}, "helper@aa")
    )
    assert response.closed
    return error


@pytest.mark.parametrize("status", [400, 413, 422])
def test_refusal_keeps_vllms_message_field_and_status(status: int) -> None:
    error = refused(status, {"error": {**VLLM, "code": status}})
    assert (error.code, error.message, error.param) == ("REQUEST_REJECTED", VLLM["message"], "temperature")
    assert (status_of(error), error.retryable) == (status, False)
    assert headers_of(error, status) == {"x-should-retry": "false"}


def test_refusal_is_in_openais_shape() -> None:
    response = error_response(refused(400, {"error": VLLM}))
    error = json.loads(response.body)["error"]
    assert (response.status_code, error["type"], error["code"]) == (400, "invalid_request_error", "REQUEST_REJECTED")
    assert error["message"] == f"{VLLM['message']} Correct `temperature`, or leave it out."
    assert error["param"] == "temperature"


@pytest.mark.parametrize(
    ("status", "text", "param", "remedy"),
    [
        (400, "temperature must be non-negative, got -1.0.", "temperature", "Correct `temperature`, or leave it out."),
        (400, "1 validation error:\n  {'type': 'list_type', 'loc': 'body.messages', 'msg': 'Not a list'}", None,
         "Correct `messages`."),
        (400, "Something is wrong.", None, "Correct the request; docs/openai.md lists the supported fields."),
        (500, "Boom.", None, "Try again; if it fails again, read the serving replica's log."),
    ],
)  # fmt: skip
def test_every_refusal_has_a_remedy(status: int, text: str, param: str | None, remedy: str) -> None:
    body = {"error": {"message": text, "type": "x", "param": param, "code": status}}
    assert refused(status, body, messages="hi", temperature=-1.0).remedy == remedy


def test_grammar_that_allows_no_token_is_the_callers() -> None:
    """vLLM answers 500 as if it had failed."""
    body = {"error": {"message": "Internal server error", "type": "InternalServerError", "code": 500}}
    error = refused(500, body, structured_outputs={"grammar": "root ::= root"})
    assert (error.code, status_of(error), error.param) == ("REQUEST_REJECTED", 400, "structured_outputs.grammar")
    assert not error.retryable
    assert refused(500, body).code == "SERVING_FAILED"


def test_field_has_the_path_in_the_callers_body() -> None:
    assert refused(400, {"error": {**VLLM, "param": "body.tools.0.function"}}).param == "tools[0].function"


@pytest.mark.parametrize(
    ("code", "status", "expected"), [(400, 400, "REQUEST_REJECTED"), (None, 500, "SERVING_FAILED")]
)
def test_first_event_of_a_stream_may_be_an_error(code: int | None, status: int, expected: str) -> None:
    event = b"data: " + json.dumps({"error": {**VLLM, "code": code}}).encode() + b"\n\ndata: [DONE]\n\n"
    error = refused(200, event)
    assert (status_of(error), error.code, error.message) == (status, expected, VLLM["message"])


@pytest.mark.parametrize("echo", [" Set --", " Set", "x", "\\x", "{'type': '"])
def test_message_that_repeats_the_request_is_cut_off(echo: str) -> None:
    error = refused(400, {"error": {"message": f"Got bad_words=[{echo * 200_000}]"}}, bad_words=[echo * 200_000])
    assert error.message.startswith("Got bad_words=[")
    assert len(json.dumps([error.message, error.details])) < 10_000


@pytest.mark.parametrize(
    "text",
    [
        "1 validation error:\n  {'type': 'literal_error', 'loc': 'body', 'msg': 'x', 'input': 1}",
        "1 validation error for X\n\u00b2.A\n  Field required [type=missing, input_value=1]",
        "1 validation error:\n  {'type': 'a', 'loc': 'body.\\x', 'msg': 'x'}",
    ],
)
def test_text_of_an_unknown_form_is_passed_on(text: str) -> None:
    error = refused(400, {"error": {"message": text}})
    assert (status_of(error), error.code) == (400, "REQUEST_REJECTED")


def test_body_that_nests_too_deeply_has_a_message_of_ours() -> None:
    assert refused(400, b'{"a":' * 100_000).message == "The serving replica answered with status 400."


@pytest.mark.parametrize("body", [{"messages": [], "input": ""}, {"prompt": "x"}, {"input": ["x"]}])
def test_prompt_that_is_too_long_has_a_code_of_its_own(body: dict[str, Any]) -> None:
    limit = "This model's maximum context length is 64 tokens. However, your prompt contains 99 input tokens."
    text = f"{limit} Please reduce the length of the input prompt. (parameter=input_tokens, value=99)"
    error = refused(400, {"error": {"message": text, "param": "input_tokens"}}, **body)
    assert (error.code, error.message, error.param) == ("CONTEXT_LENGTH_EXCEEDED", limit, next(iter(body)))
    assert "Shorten" in error.remedy
    assert error.details == {"serving_message": text}


def test_failure_that_reads_like_a_refusal_is_a_failure() -> None:
    error = refused(500, {"error": {"message": "The decoder prompt (length 9) broke it."}}, prompt="x")
    assert error.code == "SERVING_FAILED"


def test_faults_are_explained_and_vllms_text_is_kept() -> None:
    text = "1 validation error:\n  {'type': 'missing', 'loc': 'body.messages', 'msg': 'Field required'}"
    error = refused(400, {"error": {"message": text, "param": "body.messages"}})
    assert (error.message, error.param) == ("messages: Field required.", "messages")
    assert error.details == {"errors": [{"param": "messages", "reason": "Field required"}], "serving_message": text}


@pytest.mark.parametrize(("status", "retryable"), [(500, True), (501, False), (504, True)])
def test_server_error_is_a_failure(status: int, retryable: bool) -> None:
    error = refused(status, {"error": {"message": "EngineCore died", "param": None}})
    assert (error.code, error.message) == ("SERVING_FAILED", "EngineCore died")
    assert (status_of(error), error.retryable) == (status, retryable)
    assert ("Retry-After" in headers_of(error, status)) is retryable


@pytest.mark.parametrize(
    "body", [b"", b"<html>", b"[]", b"7", {}, {"error": None}, {"error": {}}, b'{"error": {"message": ""}}', b"\xff"]
)
def test_body_without_an_error_has_a_message_of_ours(body: Any) -> None:
    error = refused(400, body)
    assert (error.code, error.param) == ("REQUEST_REJECTED", None)
    assert error.message


def test_interrupted_error_response_has_a_message_of_ours() -> None:
    assert "status 500" in refused(500, {"error": VLLM}, breaks=True).message


@pytest.mark.parametrize("body", [{"detail": "Not Found"}, {"error": {"code": "ROUTE_NOT_FOUND", "message": "No."}}])
def test_missing_route_is_an_unsupported_task(body: Any) -> None:
    error = refused(404, body)
    assert (error.code, status_of(error), error.param) == ("TASK_UNSUPPORTED", 400, "model")
    assert "'prod'" in error.message


@pytest.mark.parametrize("body", [{"error": UNKNOWN}, {"error": {"code": "ADAPTER_NOT_FOUND"}}, b""])
def test_published_adapter_that_is_not_found_is_unavailable(body: Any) -> None:
    error = refused(404, body)
    assert (error.code, status_of(error), error.retryable) == ("SERVING_REFUSED", 503, False)
    assert "helper@aa" in error.message


@pytest.mark.parametrize("status", [401, 403])
def test_key_that_the_replica_refuses_is_unavailable(status: int) -> None:
    error = refused(status, {"error": {"code": "KEY_INVALID", "message": "The key is not known."}})
    assert (error.code, status_of(error), error.retryable) == ("SERVING_UNAVAILABLE", 503, False)
    assert "MENS_SERVING_KEY" in error.remedy
