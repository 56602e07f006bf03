"""Objects inside a request: ignored fields are refused, and fields that OpenAI, vLLM and clients use there are
accepted.
"""

from __future__ import annotations

import typing
from collections.abc import Callable
from typing import Any

import pytest

from api.inference.request_fields import nested
from api.inference.request_fields.nested import (
    check_nested_chat_fields,
    check_nested_response_fields,
    check_stream_options,
)
from shared.errors import InvalidRequest

ADD = {"name": "add", "parameters": {"type": "object", "whatever": 1}}
HELLO = {"role": "user", "content": "Hello"}


def refusal(check: Callable[[dict[str, Any]], None], body: dict[str, Any]) -> InvalidRequest:
    with pytest.raises(InvalidRequest) as refused:
        check(body)
    assert refused.value.remedy
    return refused.value


@pytest.mark.parametrize(
    ("check", "body", "param", "instead"),
    [
        (check_stream_options, {"stream_options": {"include_usge": True}}, "stream_options.include_usge", "include_usage"),
        (check_nested_chat_fields, {"stream_options": {"x": 1}}, "stream_options.x", ""),
        (
            check_nested_chat_fields,
            {"tools": [{"function": {"name": "f", "parametres": {}}}]},
            "tools[0].function.parametres",
            "tools[0].function.parameters",
        ),
        (check_nested_chat_fields, {"tools": [{"function": ADD, "strict": True}]}, "tools[0].strict", ""),
        (check_nested_chat_fields, {"functions": [{"name": "f", "parametres": {}}]}, "functions[0].parametres", ""),
        (check_nested_chat_fields, {"messages": [HELLO, HELLO | {"contnt": "x"}]}, "messages[1].contnt", "messages[1].content"),
        (
            check_nested_chat_fields,
            {"messages": [{"role": "assistant", "tool_calls": [{"function": {"name": "f", "args": "{}"}}]}]},
            "messages[0].tool_calls[0].function.args",
            "",
        ),
        (check_nested_response_fields, {"tools": [{"type": "function", "parametres": {}}]}, "tools[0].parametres", ""),
        (check_nested_response_fields, {"reasoning": {"efort": "low"}}, "reasoning.efort", "reasoning.effort"),
    ],
)  # fmt: skip
def test_unknown_field_of_an_object_is_refused(
    check: Callable[[dict[str, Any]], None], body: dict[str, Any], param: str, instead: str
) -> None:
    error = refusal(check, body)
    assert (error.code, error.param) == ("FIELD_UNKNOWN", param)
    assert instead in error.remedy


@pytest.mark.parametrize(
    ("tool", "whose"),
    [
        ({"type": "function", "name": "f", "parameters": {}}, "the Responses API"),
        ({"name": "f", "input_schema": {}}, "Anthropic's API"),
        ({"name": "f", "inputSchema": {}}, "the Model Context Protocol"),
        ({"functionDeclarations": [{"name": "f"}]}, "Gemini's API"),
        ({"function_declarations": [{"name": "f"}]}, "Gemini's API"),
        ({"toolSpec": {"name": "f"}}, "Amazon Bedrock's API"),
        ({"name": "f", "parameter_definitions": {}}, "Cohere's API"),
        ({"type": "custom", "custom": {"name": "f"}}, "a tool of type 'custom', and only functions are served"),
        ({"type": "web_search"}, "a tool of type 'web_search'"),
        ({"type": "function"}, "only functions are served"),
        ({"x": 1}, "only functions are served"),
    ],
)
def test_tool_of_another_api_is_named_with_the_form_to_write(tool: dict[str, Any], whose: str) -> None:
    error = refusal(check_nested_chat_fields, {"tools": [{"function": ADD}, tool]})
    assert (error.code, error.param) == ("REQUEST_INVALID", "tools[1].function")
    assert whose in error.message
    assert '{"type": "function", "function": {"name"' in error.remedy


@pytest.mark.parametrize(
    ("check", "body", "param", "form"),
    [
        (check_nested_chat_fields, {"tools": [{"function": {"name": "f", "input_schema": {}}}]}, "tools[0].function.input_schema", "`parameters`"),
        (check_nested_chat_fields, {"messages": [{"role": "assistant", "tool_calls": [{"id": "1", "name": "f", "arguments": "{}"}]}]}, "messages[0].tool_calls[0].function", '"function": {"name": …, "arguments": …}'),
        (check_nested_response_fields, {"tools": [{"type": "function", "function": ADD}]}, "tools[0].function", '{"type": "function", "name": …,'),
    ],
)  # fmt: skip
def test_function_of_another_api_is_named_with_the_form_to_write(
    check: Callable[[dict[str, Any]], None], body: dict[str, Any], param: str, form: str
) -> None:
    error = refusal(check, body)
    assert (error.code, error.param, form in error.remedy) == ("REQUEST_INVALID", param, True)


@pytest.mark.parametrize(
    ("check", "body", "param"),
    [
        (check_nested_chat_fields, {"messages": [{"role": "assistant", "audio": {"id": "a"}}]}, "messages[0].audio"),
        (check_nested_response_fields, {"text": {"verbosity": "low"}}, "text.verbosity"),
        (check_nested_response_fields, {"reasoning": {"summary": "auto"}}, "reasoning.summary"),
        (check_nested_response_fields, {"reasoning": {"mode": "pro"}}, "reasoning.mode"),
    ],
)
def test_part_that_nothing_serves_is_refused(
    check: Callable[[dict[str, Any]], None], body: dict[str, Any], param: str
) -> None:
    error = refusal(check, body)
    assert (error.code, error.param) == ("FIELD_UNSUPPORTED", param)


def test_what_clients_send_passes() -> None:
    """As OpenAI's client, litellm and LangChain send an answer back, and null of any name."""
    call = {"id": "c", "type": "function", "index": 0, "function": {"name": "add", "arguments": "{}"}}
    parsed = call | {"function": {"name": "add", "arguments": "{}", "parsed_arguments": None}}
    answer = {"role": "assistant", "content": None, "refusal": None, "annotations": [], "audio": None, "parsed": None}
    messages = [HELLO | {"name": "ann", "x": None}, answer | {"tool_calls": [call, parsed], "reasoning_content": "Hm."}]
    tool = {"type": "function", "function": ADD | {"strict": False, "description": "Adds."}}
    options = {"include_usage": True, "continuous_usage_stats": True, "include_obfuscation": False}
    check_nested_chat_fields({"messages": messages, "tools": [tool], "stream_options": options})
    check_nested_response_fields(
        {"tools": [{"type": "function", **ADD, "strict": None}], "reasoning": {"effort": "low", "summary": None}}
    )
    check_nested_response_fields({"text": {"format": {"type": "text"}, "verbosity": "medium"}, "reasoning": None})


def test_other_types_are_not_looked_into() -> None:
    for value in ("x", 3, [], ["x"], [None], {"a": None}):
        body = dict.fromkeys(("messages", "tools", "functions", "stream_options", "text", "reasoning"), value)
        check_nested_chat_fields(body)
        check_nested_response_fields(body)


def test_every_field_of_openais_client_is_known() -> None:
    from openai.types import chat, responses, shared_params

    for fields, params in (
        (nested.MESSAGE, chat.ChatCompletionAssistantMessageParam),
        (nested.MESSAGE, chat.ChatCompletionUserMessageParam),
        (nested.MESSAGE, chat.ChatCompletionToolMessageParam),
        (nested.CALL, chat.ChatCompletionMessageFunctionToolCallParam),
        (nested.CHAT_TOOL, chat.ChatCompletionFunctionToolParam),
        (nested.FUNCTION, shared_params.FunctionDefinition),
        (nested.STREAM_OPTIONS, chat.ChatCompletionStreamOptionsParam),
        (nested.RESPONSE_TOOL, responses.FunctionToolParam),
        (nested.TEXT, responses.ResponseTextConfigParam),
        (nested.REASONING, shared_params.Reasoning),
    ):
        assert not set(typing.get_type_hints(params)) - fields
    assert not set(chat.ParsedChatCompletionMessage.model_fields) - nested.MESSAGE


@pytest.mark.torch
def test_every_field_of_the_installed_vllm_is_known() -> None:
    base = pytest.importorskip("vllm.entrypoints.generate.base.protocol")
    chats = pytest.importorskip("vllm.entrypoints.openai.chat_completion.protocol")
    rendered = pytest.importorskip("vllm.renderers.chat_utils")
    assert not set(base.StreamOptions.model_fields) - nested.STREAM_OPTIONS
    assert not set(base.FunctionDefinition.model_fields) - nested.FUNCTION
    assert not set(chats.ChatCompletionToolsParam.model_fields) - nested.CHAT_TOOL
    assert not set(chats.ChatMessage.model_fields) - nested.MESSAGE
    assert not set(rendered.CustomChatCompletionMessageParam.__annotations__) - nested.MESSAGE
