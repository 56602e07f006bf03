"""Questions that ask nothing, or not what they say: refused before a replica is asked, and no others are."""

from __future__ import annotations

from typing import Any

import pytest

from api.openai_questions import asks_chat, asks_completion
from api.responses import stateless
from shared.errors import Code, InvalidRequest

HELLO = {"role": "user", "content": "Hello"}
CALL = {"id": "call_1", "type": "function", "function": {"name": "add", "arguments": "{}"}}


def chat(*messages: Any) -> dict[str, Any]:
    return {"model": "m", "messages": list(messages)}


@pytest.mark.parametrize(
    "message",
    [
        HELLO,
        HELLO | {"content": ""},
        HELLO | {"content": [{"type": "text", "text": "Hello"}]},
        {"role": "system", "content": "Be kind."},
        {"role": "developer", "content": "Be kind."},
        {"role": "developer", "tools": [{"type": "function"}]},
        {"role": "tool", "tool_call_id": "call_1", "content": ""},
        {"role": "assistant", "tool_calls": [CALL]},
        {"role": "assistant", "content": None, "tool_calls": [CALL]},
        {"role": "assistant", "content": [], "tool_calls": [CALL]},
        {"role": "assistant", "content": None, "refusal": None, "tool_calls": []},
        {"role": "assistant", "refusal": "No."},
        {"role": "assistant", "content": None, "reasoning": "Hm."},
        {"role": "assistant", "content": None, "reasoning_content": "Hm."},
    ],
)
def test_a_message_that_says_something(message: dict[str, Any]) -> None:
    body = chat(HELLO, message)
    assert asks_chat(body) is body


@pytest.mark.parametrize(
    "message",
    [
        {"role": "user"},
        {"role": "system"},
        {"role": "developer"},
        {"role": "tool", "tool_call_id": "call_1"},
        {"role": "assistant"},
        {"role": "assistant", "tool_calls": []},
        {"role": "assistant", "tool_calls": None},
        {"role": "assistant", "content": []},
        {"role": "user", "tool_calls": [CALL]},
        {"role": "user", "contents": "Hello"},
        {"role": "user", "content": None},
        {"role": "user", "content": []},
        {"role": "user", "content": {}},
    ],
)
def test_a_message_without_content(message: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest, match=r"messages\[1\] has no content") as refused:
        asks_chat(chat(HELLO, message, HELLO))
    assert (refused.value.code, refused.value.param) == (Code.REQUEST_INVALID, "messages[1].content")
    assert "tool_calls" in refused.value.remedy


@pytest.mark.parametrize("role", ["usr", "User", "human", "function", ""])
def test_a_role_that_chats_do_not_have(role: str) -> None:
    with pytest.raises(InvalidRequest, match="role") as refused:
        asks_chat(chat(HELLO | {"role": role}))
    assert (refused.value.code, refused.value.param) == (Code.REQUEST_INVALID, "messages[0].role")
    assert "system, developer, user, assistant, tool" in refused.value.remedy


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"messages": None},
        {"messages": "Hello"},
        {"messages": 7},
        chat("Hello"),
        chat(None),
        chat({"content": "Hello"}),
        chat({"role": 7}),
        chat({"role": [{}]}),
        chat(HELLO | {"content": 7}),
    ],
)
def test_what_vllm_refuses_is_left_to_it(body: dict[str, Any]) -> None:
    assert asks_chat(body) is body
    assert asks_completion({"prompt": 7}) == {"prompt": 7}
    assert asks_completion({}) == {}
    assert asks_completion({"prompt": None}) == {"prompt": None}
    assert asks_completion({"prompt": "", "prompt_embeds": "x"})["prompt"] == ""
    assert asks_completion({"prompt_embeds": "x"}) == {"prompt_embeds": "x"}


@pytest.mark.parametrize(
    ("prepare", "body"),
    [
        (asks_chat, {"messages": []}),
        (asks_chat, {"messages": ""}),
        (asks_completion, {"prompt": []}),
        (asks_completion, {"prompt": ""}),
        (asks_completion, {"prompt": [], "prompt_embeds": None}),
        (stateless, {"input": []}),
        (stateless, {"input": {}}),
        (stateless, {"input": ""}),
    ],
)
def test_nothing_is_asked(prepare: Any, body: dict[str, Any]) -> None:
    field = next(iter(body))
    with pytest.raises(InvalidRequest, match="empty") as refused:
        prepare(body)
    assert (refused.value.code, refused.value.param) == (Code.REQUEST_INVALID, field)
    assert refused.value.remedy


def test_a_message_of_an_input_without_content() -> None:
    for role in ("user", "system", "developer"):
        with pytest.raises(InvalidRequest, match=r"input\[1\] has no content") as refused:
            stateless({"input": [HELLO, {"role": role, "content": []}]})
        assert (refused.value.code, refused.value.param) == (Code.REQUEST_INVALID, "input[1].content")


@pytest.mark.parametrize(
    "item",
    [
        "Hello",
        HELLO,
        HELLO | {"content": ""},
        {"role": "assistant", "content": [], "type": "message"},
        {"type": "reasoning", "content": []},
        {"type": "function_call_output", "call_id": "call_1", "output": ""},
    ],
)
def test_an_item_of_an_input_that_says_something(item: Any) -> None:
    assert stateless({"input": [item]})["input"] == [item]


@pytest.mark.engine
def test_the_installed_engine_takes_what_is_refused_here() -> None:
    """What it refuses by itself needs no check in the way of each request."""
    chats = pytest.importorskip("vllm.entrypoints.openai.chat_completion.protocol")
    completions = pytest.importorskip("vllm.entrypoints.openai.completion.protocol")
    responses = pytest.importorskip("vllm.entrypoints.openai.responses.protocol")
    for messages in ([], [{"role": "user"}], [{"role": "user", "content": []}], [HELLO | {"role": "usr"}]):
        chats.ChatCompletionRequest(messages=messages)
    completions.CompletionRequest(prompt=[])
    for nothing in ("", [], [{"role": "user", "content": []}]):
        responses.ResponsesRequest(input=nothing)
