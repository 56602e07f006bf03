"""Messages on which vLLM would fail, or of which it would omit a part, are refused with the field, or translated."""

from __future__ import annotations

from typing import Any

import pytest

from api.inference.request_fields.messages import check_messages, with_refusals, with_whole_texts
from shared.errors import InvalidRequest

HELLO = {"role": "user", "content": "Hello"}
ADD = {"name": "add", "arguments": "{}"}


def assistant(**fields: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": "x", **fields}


@pytest.mark.parametrize(
    ("message", "param"),
    [
        ({"function_call": ADD}, "function_call"),
        (HELLO | {"function_call": ADD}, "function_call"),
        (assistant(function_call="x"), "function_call"),
        (assistant(function_call={}), "function_call.name"),
        (assistant(function_call={"name": ""}), "function_call.name"),
        (assistant(tool_calls=["x"]), "tool_calls[0]"),
        (assistant(tool_calls=[{"function": ADD}, {}]), "tool_calls[1].function"),
        (assistant(tool_calls=[{"function": "x"}]), "tool_calls[0].function"),
        (assistant(tool_calls=[{"function": {"name": 3}}]), "tool_calls[0].function.name"),
        (HELLO | {"content": [{}]}, "content[0].type"),
        (HELLO | {"content": ["x", 3]}, "content[1].type"),
        (HELLO | {"content": [{"type": ["text"]}]}, "content[0].type"),
        ({"role": "tool", "content": [{"type": "input_audio", "input_audio": "x"}]}, "content[0].input_audio"),
    ],
)
def test_malformed_part_of_a_message_is_refused(message: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        check_messages([HELLO, message])
    assert (refused.value.code, refused.value.param) == ("REQUEST_INVALID", f"messages[1].{param}")
    assert refused.value.remedy


def test_other_messages_pass() -> None:
    text = {"type": "text", "text": "Hello"}
    call = {"id": "c", "type": "function", "function": ADD, "index": 0}
    check_messages([HELLO, HELLO | {"content": [text, "Hello"], "function_call": None}])
    check_messages([assistant(tool_calls=[call]), assistant(tool_calls=None), assistant(function_call=ADD)])
    for others in ([None, "x", {}], "x", None, 7):
        check_messages(others)


def test_refusal_stands_for_content_that_is_missing() -> None:
    chat = [HELLO, assistant(content=None, refusal="No."), None]
    assert with_refusals(chat) == [HELLO, assistant(content="No.", refusal="No."), None]
    same = [HELLO, assistant(refusal="No."), assistant(content=None, refusal=None)]
    assert with_refusals(same) is same


@pytest.mark.parametrize(
    ("parts", "text"),
    [
        ([], ""),
        ([{"type": "refusal", "refusal": "No."}], "No."),
        ([{"type": "output_text", "text": "a"}, {"type": "output_text", "text": "b"}], "ab"),
    ],
)
def test_message_of_the_assistant_has_one_text(parts: list[Any], text: str) -> None:
    (item,) = with_whole_texts([{"role": "assistant", "content": parts}])
    assert item == {
        "type": "message",
        "role": "assistant",
        "content": [{"type": "output_text", "text": text, "annotations": []}],
    }


def test_other_items_are_left_alone() -> None:
    malformed = [{"role": "assistant", "content": [part]} for part in ({}, "x", {"text": 3})]
    items = [HELLO, "x", assistant(), {"type": "reasoning", "content": []}, *malformed]
    assert with_whole_texts(items) is items
