"""Tools and calls as other programs write them, in the one form that a client of the chat API can send.

    flat (Responses API, or a bare function)   {"type": "function", "name": …, "parameters": …}
    Anthropic, MCP                             {"name": …, "input_schema": …}, {"name": …, "inputSchema": …}
    a flat call                                {"name": …, "arguments": …}
    nulls of a merged schema                   properties, schema keywords and arguments whose value is null

A file that went through a typed table has the union of all keys in every object, filled with unintended nulls.
Tools that no client can send in any form (built-in tools, Gemini's declarations) are refused with the form's name, and
so are tools whose parameters would be left out because they are under another name.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Literal

import msgspec

from shared.datasets.forms.schemas import OLDER_DRAFT, object_fault, schema_faults, without_nulls
from shared.datasets.rows import Message, Record, RowCode, RowError

ToolConversion = Literal["flat tools", "tools as text", "flat calls", "nulls of a merged schema"]
Tool = dict[str, Any]
Note = Callable[[ToolConversion], object]

_SCHEMA_NAMES = ("input_schema", "inputSchema")
"""Names of a tool's parameters at Anthropic and in MCP."""
_BARE_KEYS = ("parameters", *_SCHEMA_NAMES, "description", "strict")
_FOREIGN_TOOLS = {
    "functionDeclarations": "Gemini's",
    "function_declarations": "Gemini's",
    "toolSpec": "Amazon Bedrock's",
    "parameter_definitions": "Cohere's",
}
"""Keys of tools that are not converted, and the program that each belongs to."""
_OTHER_PARAMETERS = (
    "parameter_definitions",
    "params",
    "args",
    "args_schema",
    "arguments",
    "properties",
    "inputs",
    "schema",
)
"""Names under which some programs write parameters, in none of the known forms."""
MOST_NAMED = 3
_UNUSABLE = re.compile(r"[\s\x00-\x1f\x7f\"<>\\]")
"""Characters that would end a function's name too early when a model writes it in a call."""


class WrittenOtherwise(msgspec.ValidationError):
    """A row that the strict decoder accepts, but that has to be translated (``written_rows.translate``)."""


def refuse_foreign_tools(record: Record) -> None:
    """Refuse tools and calls that are not in the form of the chat API; a translation may convert them.

    Raises:
        WrittenOtherwise: a tool or a call has another form.
    """
    if record.tools and any(not _is_clean(tool) for tool in record.tools):
        raise WrittenOtherwise
    for message in record.messages or record.turns or ():
        for call in message.tool_calls or ():
            function = call.get("function")
            is_flat = function is None and isinstance(call.get("name"), str)
            arguments = function.get("arguments") if isinstance(function, dict) else None
            if is_flat or (isinstance(arguments, dict) and _has_null(arguments)):
                raise WrittenOtherwise


def translated_tools(tools: list[Tool] | None, note: Note) -> list[Tool] | None:
    """Translate tools to the form of the chat API.

    Args:
        note: called with the name of each conversion.

    Raises:
        RowError: ``ROW_TOOL_INVALID``: no client can send the tool.
    """
    return tools and [_translated_tool(tool, f"tools[{index}]", note) for index, tool in enumerate(tools)]


def tools_of_text(text: str, note: Note) -> list[Tool] | None:
    """Parse tools that are written as JSON in a string, as tables keep them; None for an empty string.

    Raises:
        RowError: ``ROW_TOOL_INVALID``: it is not a JSON list of tools.
    """
    if not text.strip():
        return None
    try:
        tools = msgspec.json.decode(text, type=list[dict[str, Any]] | dict[str, Any] | None)
    except (msgspec.DecodeError, RecursionError, UnicodeEncodeError):
        reason = "tools is a string, but not a JSON list of tools"
        raise RowError(RowCode.ROW_TOOL_INVALID, reason, "tools") from None
    if tools is None:
        return None
    note("tools as text")
    return [tools] if isinstance(tools, dict) else tools


def translated_turns(turns: list[Message] | None, tools: list[Tool] | None, note: Note) -> list[Message] | None:
    """Translate the calls of turns to the chat API's form, without null arguments that the called tool does not have.

    Args:
        tools: the row's tools, in the form of the chat API.
        note: called with the name of each conversion.
    """
    if not turns or not any(turn.tool_calls for turn in turns):
        return turns
    schemas = {tool["function"].get("name"): tool["function"].get("parameters") for tool in tools or ()}
    return [
        msgspec.structs.replace(turn, tool_calls=[_translated_call(call, schemas, note) for call in turn.tool_calls])
        if turn.tool_calls
        else turn
        for turn in turns
    ]


def check_tools(tools: list[Tool]) -> None:
    """Check tools in the form of the chat API: names, each once, and parameters that are a schema.

    Raises:
        RowError: ``ROW_TOOL_INVALID``.
    """
    names = set()
    for index, tool in enumerate(tools):
        place = f"tools[{index}]"
        function = tool.get("function")
        name = function.get("name") if isinstance(function, dict) else None
        if not isinstance(function, dict) or not isinstance(name, str) or not name.strip():
            raise _invalid(f"{place} has no function with a name", f"{place}.function.name")
        if bad := _UNUSABLE.search(name):
            character = "white space" if bad[0].isspace() else f"the character {bad[0]!r}"
            raise _invalid(f"{place}.function.name {name[:40]!r} contains {character}", f"{place}.function.name")
        if name in names:
            raise _invalid(f"{place} is a second tool with the name {name[:40]!r}", f"{place}.function.name")
        names.add(name)
        if function.get("parameters") is not None:
            _check_parameters(function["parameters"], f"{place}.function.parameters")


def unlisted_call(record: Record) -> RowError | None:
    """Return the warning of a row's first learnt call of a tool that is not among the row's own tools.

    Chats give a model its tools with each request, so such a call teaches it to invent one. OpenAI and TRL train on it.
    """
    names = {tool["function"]["name"] for tool in record.tools or ()}
    place, turns = ("messages", record.messages) if record.messages else ("turns", record.turns or [])
    for index, turn in enumerate(turns):
        for number, call in enumerate((turn.weight != 0 and turn.tool_calls) or ()):
            name = call.get("function", call)["name"]
            if name not in names:
                field = f"{place}[{index}].tool_calls[{number}].function.name"
                missing = f"the row's tools are {_listed(sorted(names))}" if names else "the row has no `tools`"
                code = RowCode.ROW_TOOL_NOT_LISTED if names else RowCode.ROW_TOOLS_MISSING
                return RowError(code, f"{field} is {name[:40]!r}, and {missing}", field)
    return None


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
    return ", ".join(repr(name[:40]) for name in names[:MOST_NAMED]) + more


def _check_parameters(parameters: Any, field: str) -> None:
    if fault := object_fault(parameters):
        raise _invalid(f"{field} must be the JSON schema of an object: {fault}", field)
    for path, reason in schema_faults(parameters, field):
        if reason != OLDER_DRAFT:
            raise _invalid(f"{path} {reason}", path)


# --- tools


def _is_clean(tool: Tool) -> bool:
    function = tool.get("function")
    if not isinstance(function, dict) or tool.get("type", "function") != "function":
        return False
    parameters = function.get("parameters")
    if parameters is None and not function.keys().isdisjoint((*_SCHEMA_NAMES, *_OTHER_PARAMETERS)):
        return False
    return not (isinstance(parameters, dict) and without_nulls(parameters) != parameters)


def _translated_tool(tool: Tool, place: str, note: Note) -> Tool:
    tool = {key: value for key, value in tool.items() if value is not None}
    _refuse_other_forms(tool, place)
    function = tool.get("function")
    if isinstance(function, dict) and tool.get("type", "function") == "function":
        translated = tool
    elif isinstance(tool.get("name"), str) and function is None and _is_function(tool):
        translated = _wrapped(tool)
        note("flat tools")
    elif isinstance(kind := tool.get("type"), str) and kind != "function":
        reason = (
            f"{place} is a tool of type {kind[:40]!r}, which runs at another provider; chats support only functions"
        )
        raise _invalid(reason, f"{place}.type")
    else:
        raise _invalid(f"{place} has no function with a name", f"{place}.function.name")
    function = translated["function"] = _with_parameters(translated["function"], f"{place}.function", note)
    parameters = function.get("parameters")
    if isinstance(parameters, dict) and (cleaned := without_nulls(parameters)) != parameters:
        translated = translated | {"function": function | {"parameters": cleaned}}
        note("nulls of a merged schema")
    return translated


def _refuse_other_forms(tool: Tool, place: str) -> None:
    for key, owner in _FOREIGN_TOOLS.items():
        if key in tool:
            form = "{type: function, function: {name, parameters}}"
            raise _invalid(f"{place} has {owner} `{key}`; write each function as {form}", place)


def _with_parameters(function: Tool, place: str, note: Note) -> Tool:
    """Return a function with its parameters under the chat API's name.

    Raises:
        RowError: ``ROW_TOOL_INVALID``: they are under another name, in an unknown form.
    """
    if function.get("parameters") is not None:
        return function
    others = [name for name in _OTHER_PARAMETERS if isinstance(function.get(name), dict | list) and function[name]]
    if others:
        raise _invalid(f"{place} has `{others[0]}`; write its parameters as a JSON schema in `parameters`", place)
    if (name := next((name for name in _SCHEMA_NAMES if function.get(name) is not None), None)) is None:
        return function
    note("flat tools")
    return {key: value for key, value in function.items() if key not in _SCHEMA_NAMES} | {"parameters": function[name]}


def _is_function(tool: Tool) -> bool:
    # Anthropic's functions have the type `custom`; OpenAI's custom tools have no schema.
    kind = tool.get("type", "function")
    return kind == "function" or (kind == "custom" and not tool.keys().isdisjoint(_SCHEMA_NAMES))


def _wrapped(tool: Tool) -> Tool:
    keys = ("name", *_BARE_KEYS, *_OTHER_PARAMETERS)
    function = {key: tool[key] for key in keys if key in tool}
    others = {key: value for key, value in tool.items() if key not in {"type", *keys}}
    return {"type": "function", "function": function, **others}


# --- calls


def _translated_call(call: dict[str, Any], schemas: dict[Any, Any], note: Note) -> dict[str, Any]:
    if call.get("function") is None and isinstance(call.get("name"), str):
        function: Any = {key: call[key] for key in ("name", "arguments") if key in call}
        if "arguments" not in function and isinstance(call.get("input"), dict):  # Anthropic's tool_use
            function["arguments"] = call["input"]
        name = call.get("call_id") or call.get("id")
        call = ({"id": name} if isinstance(name, str) else {}) | {"type": "function", "function": function}
        note("flat calls")
    function = call.get("function")
    if not isinstance(function, dict):
        return call
    arguments, name = function.get("arguments"), function.get("name")
    schema = schemas.get(name if isinstance(name, str) else None)
    if isinstance(arguments, dict) and (pruned := _without_null_arguments(arguments, schema)) != arguments:
        note("nulls of a merged schema")
        return call | {"function": function | {"arguments": pruned}}
    return call


def _without_null_arguments(value: dict[str, Any], schema: Any) -> dict[str, Any]:
    """Return arguments without the nulls that the tool's schema does not accept; for a tool without properties all
    stay.
    """
    properties = schema.get("properties") if isinstance(schema, dict) else None
    if not isinstance(properties, dict) or not properties:
        return value
    required = schema.get("required")
    required = required if isinstance(required, list) else []
    arguments: dict[str, Any] = {}
    for name, part in value.items():
        about = properties.get(name)
        if part is None and name not in required and not _takes_null(about):
            continue
        if isinstance(part, dict):
            arguments[name] = _without_null_arguments(part, about)
        elif isinstance(part, list) and isinstance(about, dict):
            items = about.get("items")
            arguments[name] = [_without_null_arguments(x, items) if isinstance(x, dict) else x for x in part]
        else:
            arguments[name] = part
    return arguments


def _takes_null(schema: Any) -> bool:
    """Return whether a property accepts null; false for a property that the tool does not have."""
    if not isinstance(schema, dict):
        return schema is True
    kind = schema.get("type")
    if kind is None:
        return not (isinstance(values := schema.get("enum"), list) and None not in values)
    return schema.get("nullable") is True or kind == "null" or (isinstance(kind, list) and "null" in kind)


def _has_null(value: Any) -> bool:
    if isinstance(value, dict):
        return any(part is None or _has_null(part) for part in value.values())
    return isinstance(value, list) and any(map(_has_null, value))


def _invalid(reason: str, field: str) -> RowError:
    return RowError(RowCode.ROW_TOOL_INVALID, reason, field)
