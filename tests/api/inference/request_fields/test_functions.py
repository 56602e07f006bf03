"""``functions`` are translated to tools in the request, and tool calls to ``function_call`` in the response."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from api.inference.request_fields.functions import (
    events_with_function_call,
    in_callers_names,
    uses_functions,
    whole_with_function_call,
    with_tools,
)
from shared.errors import Code, InvalidRequest

HELLO = {"role": "user", "content": "Hello"}
ADD = {"name": "add", "parameters": {"type": "object"}}
CALLED = {"name": "add", "arguments": "{}"}


def test_functions_become_tools() -> None:
    body = {"model": "m", "messages": [HELLO], "functions": [ADD], "function_call": {"name": "add"}}
    assert with_tools(body) == {
        "model": "m",
        "messages": [HELLO],
        "tools": [{"type": "function", "function": ADD}],
        "tool_choice": {"type": "function", "function": {"name": "add"}},
        "parallel_tool_calls": False,
    }
    assert with_tools({"functions": [ADD], "function_call": "none"})["tool_choice"] == "none"
    assert "tool_choice" not in with_tools({"functions": [ADD]})


def test_body_without_functions_is_not_copied() -> None:
    body = {"messages": [HELLO], "tools": [], "tool_choice": None}
    assert with_tools(body) is body
    assert not uses_functions(body)
    assert with_tools({"functions": None, "x": 1}) == {"x": 1}


def test_calls_and_results_in_the_chat_become_those_of_tools() -> None:
    asked = {"role": "assistant", "content": None, "function_call": CALLED}
    answered = {"role": "function", "name": "add", "content": "3"}
    (_, call, result) = with_tools({"messages": [HELLO, asked, answered]})["messages"]
    assert call == {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": "call_1", "type": "function", "function": CALLED}],
    }
    assert result == {"role": "tool", "content": "3", "tool_call_id": "call_1"}


@pytest.mark.parametrize("role", [{}, {"role": None}, {"role": "user"}, {"role": ["assistant"]}])
def test_only_calls_of_the_assistant_are_translated(role: dict[str, Any]) -> None:
    body = {"messages": [HELLO, {**role, "content": "x", "function_call": CALLED}]}
    assert with_tools(body) is body


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"functions": []}, "functions"),
        ({"functions": "x"}, "functions"),
        ({"functions": [ADD, {}]}, "functions[1].name"),
        ({"functions": ["add"]}, "functions[0].name"),
        ({"functions": [ADD], "tools": [{}]}, "functions"),
        ({"functions": [ADD], "function_call": "required"}, "function_call"),
        ({"functions": [ADD], "function_call": {"name": 3}}, "function_call"),
    ],
)
def test_wrong_functions_are_refused(body: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        with_tools({"messages": [HELLO], **body})
    assert (refused.value.code, refused.value.param) == ("REQUEST_INVALID", param)


@pytest.mark.parametrize(
    ("translated", "written"),
    [
        ("tools[1].function.parameters", "functions[1].parameters"),
        ("tools", "functions"),
        ("tool_choice.function.name", "function_call.name"),
        ("tool_choice", "function_call"),
        ("messages[1].tool_calls[0].function.arguments", "messages[1].function_call.arguments"),
        ("messages[1].tool_calls", "messages[1].function_call"),
        ("messages[0].tool_calls", "messages[0].tool_calls"),
        ("messages[1].content", "messages[1].content"),
        ("toolset", "toolset"),
    ],
)
def test_error_names_the_field_that_the_caller_wrote(translated: str, written: str) -> None:
    body = {"messages": [HELLO, {"role": "assistant", "function_call": CALLED}], "functions": [ADD]}
    details = {"errors": [{"param": translated, "reason": "x"}]}
    error = InvalidRequest(Code.REQUEST_INVALID, f"`{translated}` is wrong.", param=translated, details=details)
    renamed = in_callers_names(error, body)
    assert (renamed.param, renamed.message) == (written, f"`{written}` is wrong.")
    assert renamed.details["errors"][0]["param"] == written


def test_error_about_tools_of_the_callers_own_keeps_its_field() -> None:
    body = {"messages": [{"role": "function", "name": "f", "content": "x"}], "tools": [{}]}
    for param in ("tools[0].function", "messages[0].content", None):
        assert in_callers_names(InvalidRequest(Code.REQUEST_INVALID, "x", param=param), body).param == param


async def _pieces(*pieces: bytes) -> AsyncIterator[bytes]:
    for piece in pieces:
        yield piece


async def _read(content: AsyncIterator[bytes]) -> bytes:
    return b"".join([piece async for piece in content])


def choice(field: str, **message: Any) -> dict[str, Any]:
    return {"choices": [{"index": 0, field: message, "finish_reason": "tool_calls"}]}


def test_whole_answer_has_a_function_call() -> None:
    content = json.dumps(choice("message", content=None, tool_calls=[{"id": "x", "function": CALLED}])).encode()
    (found,) = json.loads(asyncio.run(_read(whole_with_function_call(_pieces(content[:20], content[20:])))))["choices"]
    assert found == {
        "index": 0,
        "message": {"content": None, "function_call": CALLED},
        "finish_reason": "function_call",
    }


def test_events_have_a_function_call_wherever_they_are_cut() -> None:
    plain = b'data: {"choices":[{"delta":{"content":"a"}}]}\n\n'
    called = b"data: " + json.dumps(choice("delta", tool_calls=[{"index": 0, "function": CALLED}])).encode() + b"\n\n"
    whole = plain + called + b"data: [DONE]\n\n"
    for cut in range(len(whole)):
        sent = asyncio.run(_read(events_with_function_call(_pieces(whole[:cut], whole[cut:]))))
        first, second, last = sent.split(b"\n\n")[:-1]
        assert (first + b"\n\n", last) == (plain, b"data: [DONE]")
        (found,) = json.loads(second.removeprefix(b"data: "))["choices"]
        assert (found["delta"], found["finish_reason"]) == ({"function_call": CALLED}, "function_call")
