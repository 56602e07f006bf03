"""The fields that objects inside a request may have: OpenAI's, vLLM's, and those of answers that clients send back.

As in `known.py`, a field that is not read is refused; here null counts as absent, since clients send objects back as
they got them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from api.inference.request_fields.known import unknown_field, unsupported_field
from shared.errors import Code, InvalidRequest

STREAM_OPTIONS = frozenset(("include_usage", "include_obfuscation", "continuous_usage_stats"))
FUNCTION = frozenset(("name", "description", "parameters", "strict", "defer_loading"))
CHAT_TOOL = frozenset(("type", "function", "defer_loading", "cache_control"))
MESSAGE = frozenset(
    [
        "annotations",
        "audio",
        "cache_control",
        "content",
        "function_call",
        "images",
        "name",
        "parsed",
        "provider_specific_fields",
        "reasoning",
        "reasoning_content",
        "reasoning_details",
        "reasoning_items",
        "refusal",
        "role",
        "task",
        "thinking_blocks",
        "tool_call_id",
        "tool_calls",
        "tools",
    ]
)
"""Fields of a chat message. Clients add ``parsed`` and the like to an answer, and send them back with it."""
CALL = frozenset(("id", "type", "function", "index", "cache_control", "provider_specific_fields"))
CALLED_FUNCTION = frozenset(("name", "arguments", "parsed_arguments", "provider_specific_fields"))
RESPONSE_TOOL = FUNCTION | frozenset(("type", "allowed_callers", "async", "output_schema"))
SCHEMAS_OF_OTHERS = ("input_schema", "inputSchema")
"""Names of a function's parameters in other APIs."""
TOOLS_OF_OTHERS = {
    "functionDeclarations": "Gemini's API",
    "function_declarations": "Gemini's API",
    "toolSpec": "Amazon Bedrock's API",
    "parameter_definitions": "Cohere's API",
    "input_schema": "Anthropic's API",
    "inputSchema": "the Model Context Protocol",
    "name": "the Responses API",
}
"""Fields of tools without a function, each with the API that it belongs to; the first field that a tool has decides."""
WRAPPED_FUNCTION = '{"type": "function", "function": {"name": …, "description": …, "parameters": …}}'
FLAT_FUNCTION = '{"type": "function", "name": …, "description": …, "parameters": …}'
CALL_OF_A_FUNCTION = '{"id": …, "type": "function", "function": {"name": …, "arguments": …}}'
TEXT = frozenset(("format", "verbosity"))
REASONING = frozenset(("context", "effort", "generate_summary", "mode", "summary"))
ONLY_NESTED: dict[tuple[str, str], tuple[Any, ...]] = {
    ("text", "verbosity"): (None, "medium"),
    ("reasoning", "context"): (None, "auto"),
    ("reasoning", "generate_summary"): (None,),
    ("reasoning", "mode"): (None, "standard"),
    ("reasoning", "summary"): (None,),
}
"""Fields of a response's objects that are not served, and their values that are accepted because they have no
effect."""


def check_nested_chat_fields(body: dict[str, Any]) -> None:
    """Check the stream options, functions, tools and messages of a chat.

    Raises:
        InvalidRequest: ``FIELD_UNKNOWN``. ``FIELD_UNSUPPORTED``: a message of the assistant is an earlier answer's audio.
            ``REQUEST_INVALID``: a tool or a call has another API's form.
    """
    check_stream_options(body)
    for path, function in _objects("functions", body.get("functions")):
        _check_names(path, function, FUNCTION)
    for path, tool in _objects("tools", body.get("tools")):
        _refuse_tool_of_another_api(path, tool)
        _check_names(path, tool, CHAT_TOOL)
        _check_names(f"{path}.function", tool.get("function"), FUNCTION)
    for path, message in _objects("messages", body.get("messages")):
        _check_names(path, message, MESSAGE)
        if message.get("audio") is not None:
            raise unsupported_field(f"{path}.audio", (None,))
        _check_names(f"{path}.function_call", message.get("function_call"), CALLED_FUNCTION)
        for call_path, call in _objects(f"{path}.tool_calls", message.get("tool_calls")):
            if call.get("function") is None and call.get("name") is not None:
                raise _another_form(f"`{call_path}` has no `function`.", CALL_OF_A_FUNCTION, f"{call_path}.function")
            _check_names(call_path, call, CALL)
            _check_names(f"{call_path}.function", call.get("function"), CALLED_FUNCTION)


def check_nested_response_fields(body: dict[str, Any]) -> None:
    """Check the stream options, tools, text and reasoning of a request to the Responses API.

    Raises:
        InvalidRequest: ``FIELD_UNKNOWN``, ``FIELD_UNSUPPORTED``; ``REQUEST_INVALID``: a tool has the form of a chat's.
    """
    check_stream_options(body)
    for path, tool in _objects("tools", body.get("tools")):
        if isinstance(tool.get("function"), dict):
            whose = "it has the form of a tool in the chat API"
            raise _another_form(f"`{path}` has a `function`: {whose}.", FLAT_FUNCTION, f"{path}.function")
        _check_names(path, tool, RESPONSE_TOOL)
    _check_names("text", body.get("text"), TEXT)
    _check_names("reasoning", body.get("reasoning"), REASONING)
    for (field, name), values in ONLY_NESTED.items():
        section = body.get(field)
        if isinstance(section, dict) and section.get(name) not in values:
            raise unsupported_field(f"{field}.{name}", values)


def check_stream_options(body: dict[str, Any]) -> None:
    """Check the names of the options of a stream.

    Raises:
        InvalidRequest: ``FIELD_UNKNOWN``.
    """
    _check_names("stream_options", body.get("stream_options"), STREAM_OPTIONS)


def _objects(path: str, values: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    for index, value in enumerate(values if isinstance(values, list) else ()):
        if isinstance(value, dict):
            yield f"{path}[{index}]", value


def _refuse_tool_of_another_api(path: str, tool: dict[str, Any]) -> None:
    """Refuse a tool without a function, and one whose parameters have another API's name: leaving the unknown field out would not help.

    Raises:
        InvalidRequest: ``REQUEST_INVALID``.
    """
    function = tool.get("function")
    if function is None:
        whose = next((whose for key, whose in TOOLS_OF_OTHERS.items() if tool.get(key) is not None), None)
        kind = tool.get("type")
        why = f"it has the form of {whose}" if whose else "only functions are served"
        if kind not in (None, "function") and not whose:
            why = f"it is a tool of type {str(kind)[:40]!r}, and {why}"
        raise _another_form(f"`{path}` has no `function`: {why}.", WRAPPED_FUNCTION, f"{path}.function")
    for name in SCHEMAS_OF_OTHERS if isinstance(function, dict) else ():
        if function.get(name) is not None:
            path = f"{path}.function.{name}"
            raise _another_form(
                f"`{path}` does not exist: it belongs to another API.", "its schema as `parameters`", path
            )


def _another_form(message: str, right: str, param: str) -> InvalidRequest:
    return InvalidRequest(Code.REQUEST_INVALID, message, remedy=f"Write {right}.", param=param)


def _check_names(path: str, value: Any, names: frozenset[str]) -> None:
    if not isinstance(value, dict) or value.keys() <= names:
        return
    for name in value:
        if name not in names and value[name] is not None:
            raise unknown_field(name, names, f"{path}.")
