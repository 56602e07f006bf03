"""Turns and tools in the form in which vLLM gives them to a template: roles, keys, order and nulls are part of the text."""

from __future__ import annotations

import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.datasets.rows import Message
from shared.tokenization.served_form import plain_messages, served_roles, served_tools


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


turns = st.builds(
    Message,
    st.sampled_from(["system", "developer", "user", "assistant"]),
    st.sampled_from(["", "a", "b"]),
    st.sampled_from([None, "Ann"]),
)


@pytest.mark.vllm
@given(st.lists(turns, max_size=5), st.sampled_from(["{{ m }}", "'developer'", '"developer"', "developer"]))
def test_vllm_gives_turns_the_same_roles(messages: list[Message], template: str) -> None:
    vllm = pytest.importorskip("vllm.renderers.hf")
    served = plain_messages(messages)
    if any(turn["role"] == "developer" for turn in served) and not vllm._detect_developer_role_support(template):
        served = vllm._consolidate_system_messages(vllm._convert_developer_to_system(served))
    assert plain_messages(served_roles(messages, template)) == served


@pytest.mark.vllm
def test_vllm_gives_templates_the_same_form() -> None:
    protocol = pytest.importorskip("vllm.entrypoints.openai.chat_completion.protocol")
    tools = [
        {"function": {"parameters": {"b": 1}, "name": "f", "extra": 1}, "type": "function", "x": 1},
        {"type": "function", "function": {"name": "g", "strict": True, "description": "d", "parameters": {}}},
    ]
    served = [protocol.ChatCompletionToolsParam(**tool).model_dump() for tool in tools]
    assert json.dumps(served) == json.dumps(served_tools(tools))
