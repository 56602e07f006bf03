"""Request validation: requests that are certainly mistakes are refused before they reach a replica, and no others."""

from __future__ import annotations

from typing import Any

import pytest

from api.inference.request_validation import (
    BodyCheck,
    validate,
    validate_chat,
    validate_completion,
    validate_response,
)
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
        {"role": "assistant", "content": None, "reasoning": "Hm."},
        {"role": "assistant", "content": None, "reasoning_content": "Hm."},
    ],
)
def test_message_with_content_or_a_substitute_is_accepted(message: dict[str, Any]) -> None:
    body = chat(HELLO, message)
    assert validate_chat(body) is body


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
        {"role": "user", "content": None},
        {"role": "user", "content": []},
        {"role": "user", "content": {}},
    ],
)
def test_message_without_content_is_refused(message: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest, match=r"messages\[1\] has no content") as refused:
        validate_chat(chat(HELLO, message, HELLO))
    assert (refused.value.code, refused.value.param) == (Code.REQUEST_INVALID, "messages[1].content")
    assert "tool_calls" in refused.value.remedy


@pytest.mark.parametrize("role", ["usr", "User", "human", ""])
def test_unknown_role_is_refused(role: str) -> None:
    with pytest.raises(InvalidRequest, match="role") as refused:
        validate_chat(chat(HELLO | {"role": role}))
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
def test_requests_that_vllm_refuses_itself_pass(body: dict[str, Any]) -> None:
    assert validate_chat(body) is body
    assert validate_completion({"prompt": 7}) == {"prompt": 7}
    assert validate_completion({}) == {}
    assert validate_completion({"prompt": None}) == {"prompt": None}
    assert validate_completion({"prompt": "", "prompt_embeds": "x"})["prompt"] == ""
    assert validate_completion({"prompt_embeds": "x"}) == {"prompt_embeds": "x"}


@pytest.mark.parametrize(
    ("validate", "body"),
    [
        (validate_chat, {"messages": []}),
        (validate_chat, {"messages": ""}),
        (validate_completion, {"prompt": []}),
        (validate_completion, {"prompt": ""}),
        (validate_completion, {"prompt": [], "prompt_embeds": None}),
        (validate_response, {"input": []}),
        (validate_response, {"input": {}}),
        (validate_response, {"input": ""}),
    ],
)
def test_empty_prompt_is_refused(validate: Any, body: dict[str, Any]) -> None:
    field = next(iter(body))
    with pytest.raises(InvalidRequest, match="empty") as refused:
        validate(body)
    assert (refused.value.code, refused.value.param) == (Code.REQUEST_INVALID, field)
    assert refused.value.remedy


def test_input_message_without_content_is_refused() -> None:
    for role in ("user", "system", "developer"):
        with pytest.raises(InvalidRequest, match=r"input\[1\] has no content") as refused:
            validate_response({"input": [HELLO, {"role": role, "content": []}]})
        assert (refused.value.code, refused.value.param) == (Code.REQUEST_INVALID, "input[1].content")


@pytest.mark.parametrize(
    "item",
    [
        "Hello",
        HELLO,
        HELLO | {"content": ""},
        {"type": "reasoning", "content": []},
        {"type": "function_call_output", "call_id": "call_1", "output": ""},
    ],
)
def test_input_item_with_content_is_accepted(item: Any) -> None:
    assert validate_response({"input": [item]})["input"] == [item]


def test_refusal_of_the_assistant_is_its_content() -> None:
    """vLLM would leave it out."""
    refusal = {"role": "assistant", "content": None, "refusal": "No."}
    assert validate_chat(chat(HELLO, refusal))["messages"] == [HELLO, refusal | {"content": "No."}]


PAINT = {"name": "paint", "parameters": {}}


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "paint"}}])
def test_forced_call_is_held_to_its_schema(choice: Any) -> None:
    free, loose = {"type": "function", "function": PAINT}, {"type": "function", "function": PAINT | {"strict": False}}
    sent = validate_chat(chat(HELLO) | {"tools": [free, loose], "tool_choice": choice})
    assert [tool["function"].get("strict") for tool in sent["tools"]] == [True, True]
    assert "strict" not in free["function"], "the caller's body is not changed"
    other = {"type": "function", "function": {"name": "other"}}
    (tool,) = validate_chat(chat(HELLO) | {"tools": [other], "tool_choice": choice})["tools"]
    assert ("strict" in tool["function"]) is (choice == "required"), "of a named call only that function"
    body = chat(HELLO) | {"tools": [free], "tool_choice": "auto"}
    assert validate_chat(body) is body
    answer = validate_response({"input": "x", "tools": [{"type": "function", **PAINT}], "tool_choice": choice})
    assert answer["tools"][0]["strict"] is True


def test_functions_are_sent_as_tools() -> None:
    sent = validate_chat(chat(HELLO) | {"functions": [PAINT], "function_call": {"name": "paint"}})
    assert sent["tools"] == [{"type": "function", "function": PAINT | {"strict": True}}]
    result = {"role": "function", "name": "paint", "content": "done"}
    asked = {"role": "assistant", "content": None, "function_call": {"name": "paint", "arguments": "{}"}}
    assert [m["role"] for m in validate_chat(chat(HELLO, asked, result))["messages"]] == ["user", "assistant", "tool"]


@pytest.mark.parametrize(
    ("validate", "wrong", "param"),
    [
        (validate_chat, {"tools": [{}]}, "tools[0].function"),
        (validate_chat, {"temprature": 1}, "temprature"),
        (validate_chat, {"messages": [{"role": "user", "contents": "Hello"}]}, "messages[0].contents"),
        (validate_completion, {"stream_options": {"include_usge": True}}, "stream_options.include_usge"),
        (validate_response, {"input": "x", "text": {"verbosity": "low"}}, "text.verbosity"),
        (validate_completion, {"promt": "x"}, "promt"),
        (validate_response, {"inputs": "x"}, "inputs"),
    ],
)
def test_wrong_field_is_refused(validate: Any, wrong: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        validate({"messages": [HELLO]} | wrong if validate is validate_chat else wrong)
    assert refused.value.param == param


@pytest.mark.torch
def test_installed_vllm_accepts_what_is_refused_here() -> None:
    """No check is needed in each request's path for fields that vLLM itself refuses."""
    chats = pytest.importorskip("vllm.entrypoints.openai.chat_completion.protocol")
    completions = pytest.importorskip("vllm.entrypoints.openai.completion.protocol")
    responses = pytest.importorskip("vllm.entrypoints.openai.responses.protocol")
    for messages in ([], [{"role": "user"}], [{"role": "user", "content": []}], [HELLO | {"role": "usr"}]):
        chats.ChatCompletionRequest(messages=messages)
    completions.CompletionRequest(prompt=[])
    for nothing in ("", [], [{"role": "user", "content": []}]):
        responses.ResponsesRequest(input=nothing)


def test_check_runs_for_bodies_with_its_fields_and_may_change_them() -> None:
    def refuse(_body: dict[str, Any]) -> None:
        raise InvalidRequest(Code.REQUEST_INVALID, "This field is wrong.")

    checks = (BodyCheck(refuse, ("wrong", "bad")), BodyCheck(lambda body: body | {"b": 2}), BodyCheck(lambda _: None))
    assert validate({"a": 1}, checks) == {"a": 1, "b": 2}
    with pytest.raises(InvalidRequest):
        validate({"a": 1, "bad": None}, checks)
