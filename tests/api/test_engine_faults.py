"""vLLM's validation texts in words. The texts are those of vLLM 0.32.0, collected from its request models and its handler;
the last test asks the installed one for them again."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient

from api.engine_faults import Told, in_words

NUMBER = "Input should be a valid integer, unable to parse string as an integer"
UNSAID = "A field of the request has a value of the wrong type; vLLM does not say which."
MISSING = """1 validation error:
  {'type': 'missing', 'loc': 'body.messages', 'msg': 'Field required', 'input': '<dict of 1 items>'}"""
TWO = """2 validation errors:
  {'type': 'int_parsing', 'loc': 'body.max_tokens', 'msg': 'Input should be a valid integer, unable to parse string as an integer', 'input': 'x'}
  {'type': 'float_parsing', 'loc': 'body.top_p', 'msg': 'Input should be a valid number, unable to parse string as a number', 'input': 'y'}"""
QUOTED = """1 validation error:
  {'type': 'literal_error', 'loc': 'body.reasoning_effort', 'msg': "Input should be 'none' or 'max'", 'input': 'wild', 'ctx': {'expected': "'none' or 'max'"}}"""
BRANCHES = """11 validation errors:
  {'type': 'missing', 'loc': 'body.messages.0.ChatCompletionDeveloperMessageParam.role', 'msg': 'Field required', 'input': '<dict of 1 items>'}
  {'type': 'missing', 'loc': 'body.messages.0.ChatCompletionToolMessageParam.tool_call_id', 'msg': 'Field required', 'input': '<dict of 1 items>'}
  {'type': 'missing', 'loc': 'body.messages.0.Message.author', 'msg': 'Field required', 'input': '<dict of 1 items>'}
  ...and 1 more errors"""
DEEPER = """234 validation errors:
  {'type': 'string_type', 'loc': 'body.input', 'msg': 'Input should be a valid string', 'input': '<list of 1 items>'}
  {'type': 'string_type', 'loc': 'body.input.0.EasyInputMessageParam.content', 'msg': 'Input should be a valid string', 'input': '7'}
  {'type': 'list_type', 'loc': 'body.input.0.Message.content', 'msg': 'Input should be a valid list', 'input': '7'}
  ...and 224 more errors"""
FORGED = r"""1 validation error:
  {'type': 'int_parsing', 'loc': 'body.n', 'msg': 'Input should be a valid integer, unable to parse string as an integer', 'input': 'it\'s "two"\n  {\'type\': \'forged\', \'loc\': \'body.x\', \'msg\': \'y\'}'}"""
CUT = """2 validation errors:
  {'type': 'value_error', 'loc': 'body.stop', 'msg': 'Value error, too many', 'input': 'x', 'ctx': {'error': ValueError('too ...[truncated]
  {'type': 'value_error', 'loc': 'body.tools', 'msg': 'Value err...[truncated]"""
MEDIA = "1 validation error:\n  Unsupported Media Type: Only 'application/json' is allowed"
WHOLE = """1 validation error:
  {'type': 'value_error', 'loc': 'body', 'msg': 'Value error, one of them, please.', 'input': '<dict of 1 items>', 'ctx': {'error': ValueError('one of them, please.')}}"""


@pytest.mark.parametrize(
    ("text", "param", "message", "field"),
    [
        (MISSING, "messages", "messages: Field required.", "messages"),
        (
            TWO,
            "max_tokens",
            f"max_tokens: {NUMBER}; top_p: Input should be a valid number, unable to parse string as a number.",
            "max_tokens",
        ),
        (QUOTED, "reasoning_effort", "reasoning_effort: Input should be 'none' or 'max'.", "reasoning_effort"),
        (
            BRANCHES,
            "messages.0.ChatCompletionDeveloperMessageParam.role",
            "messages.0.role: Field required.",
            "messages.0.role",
        ),
        (
            DEEPER,
            "input",
            "input.0.content: Input should be a valid string; or Input should be a valid list.",
            "input.0.content",
        ),
        (FORGED, "n", f"n: {NUMBER}.", "n"),
        (CUT, "stop", "stop: too many.", "stop"),
        (MEDIA, None, "The request body: Unsupported Media Type: Only 'application/json' is allowed.", None),
        (WHOLE, "body", "The request body: one of them, please.", None),
    ],
    ids=["missing", "two fields", "quotes", "branches", "deeper", "forged", "cut off", "words", "whole body"],
)
def test_fields_and_reasons(text: str, param: str | None, message: str, field: str | None) -> None:
    told = in_words(text, param)
    assert (told.message, told.param, told.details["serving_message"]) == (message, field, text)


def test_every_fault_is_among_the_details() -> None:
    assert in_words(TWO, "max_tokens").details["errors"] == [
        {"param": "max_tokens", "reason": NUMBER},
        {"param": "top_p", "reason": "Input should be a valid number, unable to parse string as a number"},
    ]
    assert [each["param"] for each in in_words(BRANCHES, None).details["errors"]] == [
        "messages.0.role", "messages.0.tool_call_id", "messages.0.author",
    ]  # fmt: skip


def test_a_field_that_is_named_beside_the_message_is_not_named_in_it() -> None:
    said = "When using `tool_choice`, `tools` must be set. (parameter=tool_choice)"
    told = Told("When using `tool_choice`, `tools` must be set.", "tool_choice", {"serving_message": said})
    assert in_words(said, "tool_choice") == told
    said = "`x` must be a number (or null). (parameter=x, value=(1, 2))"
    assert in_words(said, "x").message == "`x` must be a number (or null)."


def test_what_python_says_is_not_passed_on() -> None:
    said = "'NoneType' object is not iterable"
    assert in_words(said, None) == Told(UNSAID, None, {"serving_message": said})


@pytest.mark.parametrize(
    "text",
    [
        "temperature must be non-negative, got -3.0.",
        "`n` is wrong (parameter=n) here.",
        "3 validation errors:\n  {'type': 'of another form'}",
        "1 validation error for Request\nmessages\n  Field required",
        "",
    ],
)
def test_a_text_of_another_form_stays_as_it_is(text: str) -> None:
    assert in_words(text, "n") == Told(text, "n", {})


@pytest.mark.engine
def test_the_installed_engine_says_it_so() -> None:
    register = pytest.importorskip("vllm.entrypoints.serve.exception_handling.register")
    protocol = pytest.importorskip("vllm.entrypoints.openai.chat_completion.protocol")
    engine = FastAPI()
    engine.state.args = SimpleNamespace(log_error_stack=False)
    register.init_exception_handler(engine)

    def chat(request: Any) -> None:
        pass

    chat.__annotations__["request"] = protocol.ChatCompletionRequest
    engine.post("/")(chat)
    client = TestClient(engine)

    def told(**body: Any) -> tuple[str, str | None]:
        said = client.post("/", json={"model": "m", "messages": [{"role": "user", "content": "?"}]} | body)
        error = said.json()["error"]
        return in_words(error["message"], error["param"] and error["param"].removeprefix("body."))[:2]

    assert told(messages=None) == (UNSAID, None)
    assert told(messages="?") == ("messages: Input should be a valid list.", "messages")
    assert told(messages=[{"content": "?"}]) == ("messages.0.role: Field required.", "messages.0.role")
    assert told(max_tokens="x", n="y") == (f"max_tokens: {NUMBER}; n: {NUMBER}.", "max_tokens")
    assert told(tool_choice="auto") == ("When using `tool_choice`, `tools` must be set.", "tool_choice")
    stop = "stop: Input should be a valid string; or Input should be a valid list."
    assert told(stop=5) == (stop, "stop")
