"""Tools in the form in which vLLM gives them to a template: keys, order and nulls are part of the text."""

from __future__ import annotations

import json

import msgspec
import pytest

from shared.datasets.rows import Message
from shared.tokenization.served_form import plain_messages, served_tools


@pytest.mark.parametrize("arguments", ['{"b": 1, "a": 2}', {"b": 1, "a": 2}])
def test_tool_call_has_the_key_order_of_vllm(arguments: object) -> None:
    call = {"type": "function", "function": {"name": "f", "arguments": arguments, "more": 1}, "id": "1", "x": 2}
    turn = msgspec.convert({"role": "assistant", "tool_calls": [call]}, Message)
    (found,) = plain_messages([turn])
    expected = {
        "id": "1",
        "function": {"arguments": {"b": 1, "a": 2}, "name": "f", "more": 1},
        "type": "function",
        "x": 2,
    }
    assert json.dumps(found["tool_calls"]) == json.dumps([expected])


def test_arguments_that_are_no_object_are_unchanged() -> None:
    for arguments in ("[1]", "not json", 3):
        call = {"function": {"name": "f", "arguments": arguments}}
        turn = msgspec.convert({"role": "assistant", "tool_calls": [call]}, Message)
        assert plain_messages([turn])[0]["tool_calls"] == [call]


def test_tool_has_the_keys_of_vllm() -> None:
    tools = [
        {"function": {"parameters": {"b": 1, "a": 2}, "name": "f", "extra": 1}, "type": "function", "x": 1},
        {"type": "function", "function": {"name": "g", "strict": True, "description": "d", "parameters": {}}},
        {"name": "bare"},
    ]
    expected = [
        {"type": "function", "function": {"name": "f", "description": None, "parameters": {"b": 1, "a": 2}}},
        {"type": "function", "function": {"name": "g", "description": "d", "parameters": {}, "strict": True}},
        {"name": "bare"},
    ]
    assert json.dumps(served_tools(tools)) == json.dumps(expected)
    assert served_tools([]) is served_tools(None) is None


@pytest.mark.vllm
def test_vllm_gives_templates_the_same_form() -> None:
    protocol = pytest.importorskip("vllm.entrypoints.openai.chat_completion.protocol")
    tools = [
        {"function": {"parameters": {"b": 1}, "name": "f", "extra": 1}, "type": "function", "x": 1},
        {"type": "function", "function": {"name": "g", "strict": True, "description": "d", "parameters": {}}},
    ]
    served = [protocol.ChatCompletionToolsParam(**tool).model_dump() for tool in tools]
    assert json.dumps(served) == json.dumps(served_tools(tools))
