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
TEXT = frozenset(("format", "verbosity"))
REASONING = frozenset(("context", "effort", "generate_summary", "mode", "summary"))
ONLY_NESTED: dict[tuple[str, str], tuple[Any, ...]] = {
    ("text", "verbosity"): (None, "medium"),
    ("reasoning", "context"): (None, "auto"),
    ("reasoning", "generate_summary"): (None,),
    ("reasoning", "mode"): (None, "standard"),
    ("reasoning", "summary"): (None,),
}
"""Fields of a response's objects that are not served, and the values that request nothing."""


def check_nested_chat_fields(body: dict[str, Any]) -> None:
    """Check the stream options, functions, tools and messages of a chat.

    Raises:
        InvalidRequest: ``FIELD_UNKNOWN``. ``FIELD_UNSUPPORTED``: a message of the assistant is an earlier answer's audio.
            ``REQUEST_INVALID``: a tool has a name and no function.
    """
    check_stream_options(body)
    for path, function in _objects("functions", body.get("functions")):
        _check_names(path, function, FUNCTION)
    for path, tool in _objects("tools", body.get("tools")):
        _refuse_flat(path, tool)
        _check_names(path, tool, CHAT_TOOL)
        _check_names(f"{path}.function", tool.get("function"), FUNCTION)
    for path, message in _objects("messages", body.get("messages")):
        _check_names(path, message, MESSAGE)
        if message.get("audio") is not None:
            raise unsupported_field(f"{path}.audio", (None,))
        _check_names(f"{path}.function_call", message.get("function_call"), CALLED_FUNCTION)
        for call_path, call in _objects(f"{path}.tool_calls", message.get("tool_calls")):
            _check_names(call_path, call, CALL)
            _check_names(f"{call_path}.function", call.get("function"), CALLED_FUNCTION)


def check_nested_response_fields(body: dict[str, Any]) -> None:
    """Check the stream options, tools, text and reasoning of a request to the Responses API.

    Raises:
        InvalidRequest: ``FIELD_UNKNOWN``, ``FIELD_UNSUPPORTED``.
    """
    check_stream_options(body)
    for path, tool in _objects("tools", body.get("tools")):
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


def _refuse_flat(path: str, tool: dict[str, Any]) -> None:
    """Refuse a tool in another API's form, which has a name but no function: leaving the name out would not help.

    Raises:
        InvalidRequest: ``REQUEST_INVALID``.
    """
    if tool.get("function") is None and tool.get("name") is not None:
        whose = "Anthropic's API" if "input_schema" in tool else "the Responses API"
        raise InvalidRequest(
            Code.REQUEST_INVALID,
            f"`{path}` has no `function`: it has the form of {whose}.",
            remedy='Write {"type": "function", "function": {"name": …, "description": …, "parameters": …}}.',
            param=f"{path}.function",
        )


def _check_names(path: str, value: Any, names: frozenset[str]) -> None:
    if not isinstance(value, dict) or value.keys() <= names:
        return
    for name in value:
        if name not in names and value[name] is not None:
            raise unknown_field(name, names, f"{path}.")
