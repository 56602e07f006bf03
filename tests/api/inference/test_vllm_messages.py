"""vLLM's validation messages, translated for callers. The messages are those of vLLM 0.32.0, collected from its request
models and its error handler; the last test collects them again from the installed vLLM.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient

from api.inference.vllm_messages import ClientError, explain
from shared.errors import Code

NUMBER = "Input should be a valid integer, unable to parse string as an integer"
UNKNOWN_FIELD = "A field of the request has a value of the wrong type; vLLM does not say which."
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
            "messages[0].role: Field required.",
            "messages[0].role",
        ),
        (
            DEEPER,
            "input",
            "input[0].content: Input should be a valid string; or Input should be a valid list.",
            "input[0].content",
        ),
        (FORGED, "n", f"n: {NUMBER}.", "n"),
        (CUT, "stop", "stop: too many.", "stop"),
        (MEDIA, None, "The request body: Unsupported Media Type: Only 'application/json' is allowed.", None),
        (WHOLE, "body", "The request body: one of them, please.", None),
    ],
    ids=["missing", "two fields", "quotes", "branches", "deeper", "forged", "cut off", "words", "whole body"],
)
def test_validation_errors_become_fields_and_reasons(
    text: str, param: str | None, message: str, field: str | None
) -> None:
    error = explain(text, param, {})
    assert (error.message, error.param, error.details["serving_message"]) == (message, field, text)


def test_details_list_every_fault() -> None:
    assert explain(TWO, "max_tokens", {}).details["errors"] == [
        {"param": "max_tokens", "reason": NUMBER},
        {"param": "top_p", "reason": "Input should be a valid number, unable to parse string as a number"},
    ]
    assert [each["param"] for each in explain(BRANCHES, None, {}).details["errors"]] == [
        "messages[0].role", "messages[0].tool_call_id", "messages[0].author",
    ]  # fmt: skip


def test_field_at_the_end_of_a_message_is_cut_off() -> None:
    text = "When using `tool_choice`, `tools` must be set. (parameter=tool_choice)"
    error = ClientError("When using `tool_choice`, `tools` must be set.", "tool_choice", {"serving_message": text})
    assert explain(text, "tool_choice", {}) == error
    text = "`x` must be a number (or null). (parameter=x, value=(1, 2))"
    assert explain(text, "x", {}).message == "`x` must be a number (or null)."


def test_python_type_error_is_not_passed_on() -> None:
    text = "'NoneType' object is not iterable"
    error = explain(text, None, {})
    assert error[:3] == (UNKNOWN_FIELD, None, {"serving_message": text})
    assert "null" in error.remedy


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
def test_text_of_another_form_is_passed_on_unchanged(text: str) -> None:
    assert explain(text, "n", {}) == ClientError(text, "n", {})


def part(**fields: Any) -> dict[str, Any]:
    return {"role": "user", "content": [fields]}


GOOD = part(type="text", text="x")
NO_TEXT = part(type="text")
IMAGE = part(type="image_url", image_url={"uri": "x"})
PRINT = """2 validation errors for ValidatorIterator
0.ChatCompletionContentPartTextParam.text
  Field required [type=missing, input_value={'type': 'text'}, input_type=dict]
    For further information visit https://errors.pydantic.dev/2.14/v/missing
0.ChatCompletionContentPartImageParam.type
  Input should be 'image_url' [type=literal_error, input_value='text', input_type=str]
    For further information visit https://errors.pydantic.dev/2.14/v/literal_error"""


@pytest.mark.parametrize(
    ("messages", "param"),
    [
        ([NO_TEXT], "messages[0].content[0].text"),
        ([{"role": "user", "content": "x"}, GOOD, NO_TEXT, NO_TEXT], "messages[2].content[0].text"),
        ([{"role": "user", "content": []}, GOOD], "messages[1].content[0].text"),
        ([GOOD, GOOD], "messages"),
        ([7, {}], "messages"),
        (7, "messages"),
    ],
)
def test_fault_in_a_content_part_is_located_in_the_request(messages: Any, param: str) -> None:
    error = explain(PRINT, None, {"messages": messages})
    assert (error.message, error.param) == (f"{param}: Field required.", param)
    assert error.details["serving_message"] == PRINT


@pytest.mark.torch
def test_installed_vllm_writes_these_messages() -> None:
    register = pytest.importorskip("vllm.entrypoints.serve.exception_handling.register")
    chats = pytest.importorskip("vllm.entrypoints.openai.chat_completion.protocol")
    completions = pytest.importorskip("vllm.entrypoints.openai.completion.protocol")
    responses = pytest.importorskip("vllm.entrypoints.openai.responses.protocol")
    tokenize = pytest.importorskip("vllm.entrypoints.serve.tokenize.protocol")
    server = FastAPI()
    server.state.args = SimpleNamespace(log_error_stack=False)
    register.init_exception_handler(server)

    def route(path: str, kind: Any) -> None:
        def endpoint(request: Any) -> None:
            for message in getattr(request, "messages", ()):
                list(message.get("content") or ())
            request.to_sampling_params(16, {})

        endpoint.__annotations__["request"] = kind
        server.post(path)(endpoint)

    route("/chat", chats.ChatCompletionRequest)
    route("/completion", completions.CompletionRequest)
    route("/response", responses.ResponsesRequest)
    route("/tokenize", tokenize.TokenizeRequest)
    client = TestClient(server)

    def explained(path: str = "/chat", **fields: Any) -> tuple[str, str | None]:
        body = {"model": "m"} | ({"messages": [{"role": "user", "content": "?"}]} if path == "/chat" else {}) | fields
        error = client.post(path, json=body).json()["error"]
        return explain(error["message"], error["param"] and error["param"].removeprefix("body."), body)[:2]

    assert explained(messages=None) == (UNKNOWN_FIELD, None)
    assert explained(messages="?") == ("messages: Input should be a valid list.", "messages")
    assert explained(messages=[{"content": "?"}]) == ("messages[0].role: Field required.", "messages[0].role")
    content = "messages[0].content: Input should be a valid string; or Input should be iterable."
    assert explained(messages=[{"role": "user", "content": 7}]) == (content, "messages[0].content")
    text, image, kind = (f"messages[1].content[0].{name}" for name in ("text", "image_url.url", "type"))
    assert explained(messages=[GOOD, NO_TEXT]) == (f"{text}: Field required.", text)
    assert explained(messages=[{"role": "user", "content": "?"}, IMAGE]) == (f"{image}: Field required.", image)
    message, param = explained(messages=[GOOD, part(type="poem")])
    assert (message.startswith(f"{kind}: Input should be 'text'; or Input should be 'image_url'"), param) == (
        True,
        kind,
    )
    for fields, param in (
        (
            {"messages": [{"role": "user", "content": "?"}], "tools": [{"type": "function", "function": {}}]},
            "tools[0].function.name",
        ),
        ({"messages": [{"content": "?"}]}, "messages[0].role"),
        ({"messages": 7}, "messages"),
        ({"prompt": 7}, "prompt"),
        ({"prompt": "x", "add_special_tokens": "maybe"}, "add_special_tokens"),
    ):
        message, named = explained("/tokenize", **fields)
        assert (named, message.partition(":")[0]) == (param, param)
        assert named == "prompt" or "prompt" not in message
    assert explained("/tokenize")[1] in {"prompt", "messages"}
    call = {"role": "assistant", "tool_calls": [{"id": "1", "type": "function"}]}
    function = "messages[0].tool_calls[0].function"
    assert explained(messages=[call]) == (f"{function}: Field required.", function)
    assert explained(max_tokens="x", n="y") == (f"max_tokens: {NUMBER}; n: {NUMBER}.", "max_tokens")
    assert explained(tool_choice="auto") == ("When using `tool_choice`, `tools` must be set.", "tool_choice")
    assert explained(tools=[{"type": "function"}]) == ("tools[0].function: Field required.", "tools[0].function")
    stop = "stop: Input should be a valid string; or Input should be a valid list."
    assert explained(stop=5) == (stop, "stop")
    assert explained(stop=[5]) == ("stop[0]: Input should be a valid string.", "stop[0]")

    assert explained(n=0) == ("n must be at least 1, got 0.", "n")
    assert explained(n=99_999) == ("n must be at most 16384, got 99999.", "n")
    assert explained(n=2, temperature=0) == ("n must be 1 when using greedy sampling, got 2.", "n")
    assert explained(frequency_penalty=5) == ("frequency_penalty must be in [-2, 2], got 5.0.", "frequency_penalty")
    body = {"model": "m", "prompt": None}
    error = client.post("/completion", json=body).json()["error"]
    refused = explain(error["message"], error["param"], body)
    assert (refused.code, refused.param) == (Code.REQUEST_INVALID, "prompt")
    many = "prompt list length 3000 exceeds the maximum allowed count of 1024."
    assert explained("/completion", prompt=["x"] * 3000) == (many, "prompt")
    tokens = ("max_output_tokens must be at least 1, got -1.", "max_output_tokens")
    assert explained("/response", input="x", max_output_tokens=-1) == tokens
    item = "input[0].content[0].text"
    message_ = {"role": "user", "content": [{"type": "input_text"}]}
    assert explained("/response", input=[message_]) == (f"{item}: Field required.", item)
