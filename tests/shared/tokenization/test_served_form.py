"""Turns and tools in the form in which vLLM passes them to a template: roles, keys, order and nulls affect the text."""

from __future__ import annotations

import copy
import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.datasets.reader import read_rows
from shared.datasets.rows import Message
from shared.tokenization.chat_template import ChatTemplate
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


def test_arguments_that_are_not_an_object_are_unchanged() -> None:
    """The reader refuses such rows."""
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


SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
SENT = {"type": "function", "function": {"name": "weather", "description": "Weather", "parameters": SCHEMA}}
MERGED = {
    "type": "object",
    "properties": {"city": {"type": "string", "enum": None}, "unit": None},
    "required": ["city"],
}
WRITTEN_TOOLS: list[Any] = [
    [SENT],
    json.dumps([SENT]),
    [{"type": "function", **SENT["function"]}],
    [SENT["function"]],
    [{"name": "weather", "description": "Weather", "input_schema": SCHEMA}],
    [{"type": "function", "function": SENT["function"] | {"parameters": MERGED, "strict": None}, "name": None}],
]
CITY = {"city": "Rome"}
WRITTEN_CALLS: list[tuple[dict[str, Any], dict[str, Any]]] = [
    *(({"function": {"name": "weather", "arguments": given}}, {}) for given in ("", " ", "null", None, "{}", {})),
    ({"function": {"name": "weather"}}, {}),
    ({"function": {"name": "weather", "arguments": json.dumps(CITY)}}, CITY),
    ({"function": {"name": "weather", "arguments": CITY | {"unit": None, "day": None}}}, CITY),
    ({"name": "weather", "arguments": CITY}, CITY),
    ({"type": "function_call", "name": "weather", "arguments": json.dumps(CITY)}, CITY),
]
"""A call as rows have it, and the arguments that a client would send."""
TEMPLATE = ChatTemplate(
    "{{ tools | tojson }}{% for m in messages %}<{{ m.role }}>{{ m.content }}"
    "{% for c in m.tool_calls or [] %}[{{ c | tojson }}{{ c.function.name }}({{ c.function.arguments | tojson }})]{% endfor %}{% endfor %}",
    {},
)


@pytest.mark.vllm
@pytest.mark.parametrize("tools", range(len(WRITTEN_TOOLS)))
@pytest.mark.parametrize("call", range(len(WRITTEN_CALLS)))
def test_tools_of_any_form_are_trained_as_a_client_would_have_them_served(tools: int, call: int) -> None:
    """A template gets from a training row what it gets from vLLM for the same chat, sent in the one form that vLLM takes."""
    protocol = pytest.importorskip("vllm.entrypoints.openai.chat_completion.protocol")
    chat_utils = pytest.importorskip("vllm.renderers.chat_utils")
    written, arguments = copy.deepcopy(WRITTEN_CALLS[call])
    user, last = {"role": "user", "content": "Rain?"}, {"role": "assistant", "content": "Yes."}
    result = {"role": "tool", "content": "rain", "tool_call_id": "1"}

    def chat(of: dict[str, Any]) -> list[dict[str, Any]]:
        return [user, {"role": "assistant", "content": "", "tool_calls": [of]}, result, last]

    [row] = read_rows(
        [
            json.dumps(
                {"messages": chat({"id": "1", "type": "function"} | written), "tools": WRITTEN_TOOLS[tools]}
            ).encode()
        ]
    )
    trained = TEMPLATE.render(plain_messages(row.messages), served_tools(row.tools)).text

    function = {"name": "weather", "arguments": json.dumps(arguments)}
    request = protocol.ChatCompletionRequest(
        model="m", messages=chat({"id": "1", "type": "function", "function": function}), tools=[SENT]
    )
    messages = [dict(message) for message in request.messages]
    for message in messages:
        if "tool_calls" in message:
            message["tool_calls"] = [dict(of) for of in message["tool_calls"]]
    chat_utils._postprocess_messages(messages)
    for message in messages:  # the order in which vLLM's own parser of messages puts them is the other test's
        if calls := message.get("tool_calls"):
            message["tool_calls"] = plain_messages(
                [msgspec.convert({"role": "assistant", "tool_calls": calls}, Message)]
            )[0]["tool_calls"]
    served = TEMPLATE.render(messages, [tool.model_dump() for tool in request.tools]).text
    assert trained == served
