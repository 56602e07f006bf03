"""Tools and calls as other programs write them, in the one form that a client of the chat API can send.

    flat (Responses API, or a bare function)   {"type": "function", "name": …, "parameters": …}
    Anthropic                                  {"name": …, "input_schema": …}
    a flat call                                {"name": …, "arguments": …}
    nulls of a merged schema                   properties, schema keywords and arguments whose value is null

A file that went through a typed table has the union of all keys in every object, filled with unintended nulls.
Tools that no client can send in any form (built-in tools, Gemini's declarations) are refused with the form's name.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Literal

import msgspec

from shared.datasets.rows import Message, Record, RowCode, RowError

ToolConversion = Literal["flat tools", "tools as text", "flat calls", "nulls of a merged schema"]
Tool = dict[str, Any]
Note = Callable[[ToolConversion], object]

_BARE_KEYS = ("parameters", "input_schema", "description", "strict")
_DECLARATIONS = ("functionDeclarations", "function_declarations")
_WHITE_SPACE = re.compile(r"\s")
_MEANINGFUL_NULLS = frozenset({"default", "const"})
"""Keywords of a schema whose value may be null."""
_SCHEMA_KEYWORDS = frozenset(
    [
        "type",
        "properties",
        "required",
        "additionalProperties",
        "$ref",
        "$defs",
        "definitions",
        "anyOf",
        "oneOf",
        "allOf",
        "not",
        "if",
        "then",
        "else",
        "enum",
        "const",
        "description",
        "title",
        "default",
        "$schema",
        "$id",
        "$comment",
        "items",
        "patternProperties",
        "propertyNames",
        "minProperties",
        "maxProperties",
        "dependentRequired",
        "dependentSchemas",
        "unevaluatedProperties",
        "examples",
        "nullable",
        "strict",
    ]
)
_NESTED = ("items", "additionalProperties", "not", "if", "then", "else")
_ALTERNATIVES = ("anyOf", "oneOf", "allOf", "prefixItems")
_NAMED = ("properties", "$defs", "definitions", "patternProperties")


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
        tools: of the row, in the form of the chat API.
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
        if _WHITE_SPACE.search(name):
            raise _invalid(f"{place}.function.name {name[:40]!r} contains white space", f"{place}.function.name")
        if name in names:
            raise _invalid(f"{place} is a second tool of the name {name[:40]!r}", f"{place}.function.name")
        names.add(name)
        parameters = function.get("parameters")
        if parameters is not None and (fault := _schema_fault(parameters)):
            field = f"{place}.function.parameters"
            raise _invalid(f"{field} must be the JSON schema of an object: {fault}", field)


# --- tools


def _is_clean(tool: Tool) -> bool:
    function = tool.get("function")
    if not isinstance(function, dict) or tool.get("type", "function") != "function":
        return False
    parameters = function.get("parameters")
    return not (isinstance(parameters, dict) and _without_nulls(parameters) != parameters)


def _translated_tool(tool: Tool, place: str, note: Note) -> Tool:
    tool = {key: value for key, value in tool.items() if value is not None}
    if any(key in tool for key in _DECLARATIONS):
        reason = f"{place} has Gemini's `functionDeclarations`; write each as {{type: function, function: {{name, parameters}}}}"
        raise _invalid(reason, place)
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
    function = translated["function"]
    parameters = function.get("parameters")
    if isinstance(parameters, dict) and (cleaned := _without_nulls(parameters)) != parameters:
        translated = translated | {"function": function | {"parameters": cleaned}}
        note("nulls of a merged schema")
    return translated


def _is_function(tool: Tool) -> bool:
    """Return whether a flat tool is a function: Anthropic's type is ``custom``, and OpenAI's custom tools have no
    schema.
    """
    kind = tool.get("type", "function")
    return kind == "function" or (kind == "custom" and "input_schema" in tool)


def _wrapped(tool: Tool) -> Tool:
    function = {"name": tool["name"]} | {key: tool[key] for key in _BARE_KEYS if key in tool}
    if (schema := function.pop("input_schema", None)) is not None:
        function.setdefault("parameters", schema)
    others = {key: value for key, value in tool.items() if key not in {"type", "name", *_BARE_KEYS}}
    return {"type": "function", "function": function, **others}


def _without_nulls(schema: dict[str, Any]) -> dict[str, Any]:
    """Return a schema without the properties and the keywords whose value is null."""
    found: dict[str, Any] = {}
    for key, value in schema.items():
        if value is None and key not in _MEANINGFUL_NULLS:
            continue
        if key in _NAMED and isinstance(value, dict):
            value = {name: _cleaned(part) for name, part in value.items() if part is not None}  # noqa: PLW2901
        elif key in _NESTED:
            value = _cleaned(value)  # noqa: PLW2901
        elif key in _ALTERNATIVES and isinstance(value, list):
            value = [_cleaned(part) for part in value]  # noqa: PLW2901
        found[key] = value
    return found


def _cleaned(value: Any) -> Any:
    return _without_nulls(value) if isinstance(value, dict) else value


def _schema_fault(schema: Any) -> str:
    """Return why parameters are not the schema of an object; empty if they are."""
    if not isinstance(schema, dict):
        return f"it is {_kind(schema)}"
    kind, properties, required = schema.get("type", "object"), schema.get("properties", {}), schema.get("required", [])
    labels = [schema[key] for key in ("title", "description") if key in schema]
    is_bare = bool(schema) and not schema.keys() & _SCHEMA_KEYWORDS
    # An older draft of JSON Schema has `required: true`, in a property.
    names = isinstance(required, bool) or (
        isinstance(required, list) and all(isinstance(name, str) for name in required)
    )
    faults = {
        "its `type` is not `object`": "object" not in (kind if isinstance(kind, list) else [kind]),
        "its `properties` are not an object": not isinstance(properties, dict),
        "it has names of parameters where `properties` should be": is_bare
        or not all(isinstance(label, str) for label in labels),
        "its `required` is not a list of names": not names,
    }
    if fault := next((fault for fault, holds in faults.items() if holds), ""):
        return fault
    bad = next((name for name, part in properties.items() if not isinstance(part, dict | bool)), None)
    return "" if bad is None else f"its property {bad[:40]!r} is {_kind(properties[bad])} and not a schema"


def _kind(value: Any) -> str:
    names = {list: "a list", str: "a string", bool: "true or false", dict: "an object", type(None): "null"}
    return names.get(type(value), "a number")


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
    arguments, schema = function.get("arguments"), schemas.get(_hashable(function.get("name")))
    if isinstance(arguments, dict) and (pruned := _without_null_arguments(arguments, schema)) != arguments:
        note("nulls of a merged schema")
        return call | {"function": function | {"arguments": pruned}}
    return call


def _hashable(name: Any) -> str | None:
    return name if isinstance(name, str) else None


def _without_null_arguments(value: dict[str, Any], schema: Any) -> dict[str, Any]:
    """Return arguments without the nulls that the tool's schema does not accept; for a tool without properties all
    stay.
    """
    properties = schema.get("properties") if isinstance(schema, dict) else None
    if not isinstance(properties, dict) or not properties:
        return value
    required = schema.get("required")
    required = required if isinstance(required, list) else []
    found: dict[str, Any] = {}
    for name, part in value.items():
        about = properties.get(name)
        if part is None and name not in required and not _takes_null(about):
            continue
        if isinstance(part, dict):
            found[name] = _without_null_arguments(part, about)
        elif isinstance(part, list) and isinstance(about, dict):
            items = about.get("items")
            found[name] = [_without_null_arguments(x, items) if isinstance(x, dict) else x for x in part]
        else:
            found[name] = part
    return found


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
