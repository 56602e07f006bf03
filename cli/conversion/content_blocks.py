"""Reads chats whose turns are lists of blocks: those of Anthropic, of Amazon Bedrock's Converse and of Gemini.

Each program writes text, thoughts, a call and its result as blocks of one turn. In the chat API a call is a field of
the assistant's turn, and a result is a turn of its own:

    block       Anthropic           Bedrock            Gemini
    text        type: text          text               text
    thoughts    type: thinking      reasoningContent   text with thought: true
    call        type: tool_use      toolUse            functionCall
    result      type: tool_result   toolResult         functionResponse
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from enum import Enum, auto
from itertools import count
from typing import Any

import msgspec

from cli.conversion.outcomes import Dropped, DropReason, Row
from cli.conversion.reading import EMPTY, FLAG_KEYS, Reading
from shared.datasets.forms.recognition import BEDROCK_BLOCKS, ROLES, RowForm
from shared.datasets.rows import RowCode


class ContentKind(Enum):
    """Kinds of blocks."""

    TEXT = auto()
    THOUGHTS = auto()
    CALL = auto()
    RESULT = auto()
    NOTHING = auto()


@dataclass(frozen=True, slots=True)
class ContentBlock:
    """A part of a turn.

    Attributes:
        text: the text, the thoughts, or the content of a result.
        name: the called function.
        call_id: the call's id, which its result repeats; empty if the program has none.
        rest: what is written and is in no other attribute.
    """

    kind: ContentKind
    text: str = ""
    name: str = ""
    call_id: str = ""
    arguments: Any = None
    rest: Row = field(default_factory=dict)


@dataclass(slots=True)
class Calls:
    """The calls of a row that have no result yet.

    Attributes:
        row_ids: ids that the row gives its calls and results.
        made: ids of the calls to which it gives none.
        open: id and function of each call without a result.
    """

    row_ids: frozenset[str]
    made: set[str] = field(default_factory=set)
    open: list[tuple[str, str]] = field(default_factory=list)

    def begin(self, block: ContentBlock) -> Row:
        """Return a call of the chat API."""
        call_id = block.call_id or self._free_id()
        self.open.append((call_id, block.name))
        return {"id": call_id, "type": "function", "function": {"name": block.name, "arguments": block.arguments}}

    def end(self, block: ContentBlock) -> Row:
        """Return the turn of a result: of the call with its id, or else of the first open call of its function whose id
        was made.

        Raises:
            Dropped: no open call has this result.
        """
        by_id = (call for call in self.open if call[0] == block.call_id)
        by_name = (call for call in self.open if call[1] == block.name and call[0] in self.made)
        if (answered := next(by_id, None) or next(by_name, None)) is None:
            raise Dropped(DropReason.FUNCTION_WITHOUT_CALL)
        self.open.remove(answered)
        return {"role": "tool", "content": block.text, "tool_call_id": answered[0]}

    def _free_id(self) -> str:
        names = (f"call_{number}" for number in count(len(self.made) + 1))
        free = next(name for name in names if name not in self.row_ids and name not in self.made)
        self.made.add(free)
        return free


def turns_of_blocks(form: RowForm, reading: Reading) -> list[Row]:
    """Return the turns of a row in a form of blocks.

    Raises:
        Dropped: a turn or a block cannot be read.
    """
    name, blocks_key, roles, read_block = _FORMS[form]
    read: list[tuple[str, list[ContentBlock], Row]] = []
    for written in _listed(reading.take(name)):
        role = roles.get(str(written.get("role")))
        if role is None:
            raise Dropped(RowCode.ROW_ROLE_UNKNOWN)
        if any(written.get(key) not in EMPTY for key in _FIELDS_OF_CHATS):
            raise Dropped(RowCode.ROW_FIELD_CONFLICT)
        reading.leave_out(f"{name}[]", written, {"role", blocks_key, *FLAG_KEYS})
        blocks = _blocks(written.get(blocks_key), read_block, f"{name}[].{blocks_key}[]", reading)
        read.append((role, blocks, {key: written[key] for key in sorted(FLAG_KEYS & written.keys())}))
    calls = Calls(frozenset(block.call_id for _, blocks, _ in read for block in blocks))
    return [turn | flags for role, blocks, flags in read for turn in _turns(role, blocks, calls)]


def system_of_blocks(form: RowForm, reading: Reading) -> str:
    """Return the system's content of a row, and mark its key as used; empty if the row has none.

    Raises:
        Dropped: it is neither a string nor text blocks.
    """
    names = ("system", *(("systeminstruction", "system_instruction") if form is RowForm.GEMINI else ()))
    for name in names:
        value = reading.row.get(name)
        if isinstance(value, list | dict) and value:
            written = value.get("parts") if isinstance(value, dict) else value
            blocks = _blocks(written, _system, f"{name}[]", reading)
            reading.used.add(name)
            if isinstance(value, dict):
                reading.leave_out(name, value, {"role", "parts"})
            # As the reader of training files joins them.
            return "\n".join(block.text for block in blocks if block.text)
    return reading.take_text(*names)


def tools_of_blocks(reading: Reading) -> Any:
    """Return a row's tools, with those of Bedrock and Gemini in the flat form of a function; others stay as they are."""
    tools, config = reading.take("tools"), reading.row.get("toolconfig")
    if tools is None and isinstance(config, dict) and isinstance(config.get("tools"), list):
        reading.used.add("toolconfig")
        reading.leave_out("toolConfig", config, {"tools"})
        tools = config["tools"]
    if not isinstance(tools, list) or not all(isinstance(tool, dict) for tool in tools):
        return tools
    return [function for tool in tools if tool.keys() != {"cachePoint"} for function in _declared(tool, reading)]


# --- turns


def _turns(role: str, blocks: list[ContentBlock], calls: Calls) -> list[Row]:
    """Return the turns that one turn of blocks becomes: results are turns of their own, before the rest."""
    held = {kind: [block for block in blocks if block.kind is kind] for kind in ContentKind}
    content = "".join(block.text for block in held[ContentKind.TEXT])
    if role == "assistant":
        if held[ContentKind.RESULT]:
            raise Dropped(RowCode.ROW_TOOL_CALL_INVALID)
        turn: Row = {"role": role, "content": content or None}
        if held[ContentKind.THOUGHTS]:
            turn["reasoning_content"] = "\n".join(block.text for block in held[ContentKind.THOUGHTS])
        if held[ContentKind.CALL]:
            turn["tool_calls"] = [calls.begin(block) for block in held[ContentKind.CALL]]
        return [turn]
    if held[ContentKind.CALL] or held[ContentKind.THOUGHTS]:
        raise Dropped(RowCode.ROW_TOOL_CALL_INVALID)
    results = [calls.end(block) for block in held[ContentKind.RESULT]]
    return results if results and not content else [*results, {"role": role, "content": content}]


def _blocks(
    content: Any, read_block: Callable[[Row], ContentBlock], place: str = "", reading: Reading | None = None
) -> list[ContentBlock]:
    """Return the blocks of a content, which may also be a string or a single block."""
    if isinstance(content, str):
        return [ContentBlock(ContentKind.TEXT, content)]
    blocks = []
    for written in [content] if isinstance(content, dict) else _listed(content):
        block = read_block({key: value for key, value in written.items() if value is not None})
        if reading:
            reading.leave_out(place, block.rest, ())
        blocks.append(block)
    return blocks


def _listed(value: Any) -> list[Row]:
    if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
        raise Dropped(RowCode.ROW_FIELD_TYPE)
    return value


# --- blocks


def _anthropic(written: Row) -> ContentBlock:
    kind = written.get("type")
    if kind == "text":
        return _text(ContentKind.TEXT, written.get("text"), _without(written, "type", "text"))
    if kind == "thinking":
        return _text(ContentKind.THOUGHTS, written.get("thinking"), _without(written, "type", "thinking", "signature"))
    if kind == "tool_use":
        rest = _without(written, "type", "id", "name", "input")
        return _call(written.get("id"), written.get("name"), written.get("input"), rest)
    if kind == "tool_result":
        rest = _without(written, "type", "tool_use_id", "content")
        return _result(written.get("tool_use_id"), written.get("content", ""), _anthropic, rest)
    raise Dropped(DropReason.IMAGE if kind == "image" else DropReason.OTHER_PART)


def _bedrock(written: Row) -> ContentBlock:
    key, value = _only_content(written, _BEDROCK_CONTENT)
    rest = _without(written, key)
    if key == "text":
        return _text(ContentKind.TEXT, value, rest)
    if key == "toolUse" and isinstance(value, dict):
        rest |= _inside(key, value, "toolUseId", "name", "input")
        return _call(value.get("toolUseId"), value.get("name"), value.get("input"), rest)
    if key == "toolResult" and isinstance(value, dict):
        is_success = value.get("status") == "success"
        rest |= _inside(key, value, "toolUseId", "content", *(["status"] if is_success else []))
        return _result(value.get("toolUseId"), value.get("content", []), _bedrock, rest)
    if key == "reasoningContent" and isinstance(value, dict):
        inner = value.get("reasoningText")
        return _text(ContentKind.THOUGHTS, inner.get("text") if isinstance(inner, dict) else None, rest)
    if key == "json":
        return ContentBlock(ContentKind.TEXT, msgspec.json.encode(value).decode(), rest=rest)
    if key == "cachePoint":
        return ContentBlock(ContentKind.NOTHING)
    raise Dropped(DropReason.IMAGE if key == "image" else DropReason.OTHER_PART)


def _gemini(written: Row) -> ContentBlock:
    written = {_CAMEL_CASE.get(key, key): value for key, value in written.items()}
    key, value = _only_content(written, GEMINI_PARTS)
    rest = _without(written, key, "thought", "thoughtSignature")
    if key == "text":
        return _text(ContentKind.THOUGHTS if written.get("thought") is True else ContentKind.TEXT, value, rest)
    if key == "functionCall" and isinstance(value, dict):
        rest |= _inside(key, value, "id", "name", "args")
        return _call(value.get("id"), value.get("name"), value.get("args") or {}, rest)
    if key == "functionResponse" and isinstance(value, dict) and not value.get("parts"):
        content = msgspec.json.encode(value.get("response")).decode()
        rest |= _inside(key, value, "id", "name", "response")
        name, call_id = str(value.get("name")), str(value.get("id") or "")
        return ContentBlock(ContentKind.RESULT, content, name, call_id, rest=rest)
    media = value.get("mimeType", value.get("mime_type")) if isinstance(value, dict) else None
    kind = str(media).partition("/")[0]
    raise Dropped({"image": DropReason.IMAGE, "audio": DropReason.AUDIO}.get(kind, DropReason.OTHER_PART))


def _system(written: Row) -> ContentBlock:
    """Return a block of the system's content, which all programs write with ``text``."""
    if written.keys() == {"cachePoint"}:
        return ContentBlock(ContentKind.NOTHING)
    return _text(ContentKind.TEXT, written.get("text"), _without(written, "type", "text"))


def _only_content(written: Row, keys: Collection[str]) -> tuple[str, Any]:
    """Return the key and the value of a block's content; an empty text next to another content does not count.

    Raises:
        Dropped: the block holds several contents, or an unknown one.
    """
    held = [key for key in written if key in keys and (key != "text" or written[key] != "")]
    if len(held) > 1 or (not held and written.get("text") != ""):
        raise Dropped(DropReason.IMAGE if "image" in held else DropReason.OTHER_PART)
    key = held[0] if held else "text"
    return key, written[key]


def _without(written: Row, *keys: str) -> Row:
    return {key: value for key, value in written.items() if key not in keys}


def _inside(place: str, written: Row, *keys: str) -> Row:
    """Return the parts of a nested object that are not read, by their paths in the block."""
    return {f"{place}.{key}": value for key, value in written.items() if key not in keys}


def _text(kind: ContentKind, text: Any, rest: Row) -> ContentBlock:
    if not isinstance(text, str):
        raise Dropped(DropReason.OTHER_PART)
    return ContentBlock(kind, text, rest=rest)


def _call(call_id: Any, name: Any, arguments: Any, rest: Row) -> ContentBlock:
    if not isinstance(name, str) or not isinstance(arguments, dict) or not isinstance(call_id, str | None):
        raise Dropped(RowCode.ROW_TOOL_CALL_INVALID)
    return ContentBlock(ContentKind.CALL, name=name, call_id=call_id or "", arguments=arguments, rest=rest)


def _result(call_id: Any, content: Any, read_block: Callable[[Row], ContentBlock], rest: Row) -> ContentBlock:
    """Return the result of a call, whose blocks become one string."""
    if not isinstance(call_id, str) or not call_id:
        raise Dropped(DropReason.FUNCTION_WITHOUT_CALL)
    blocks = _blocks(content, read_block)
    if any(block.kind is not ContentKind.TEXT for block in blocks):
        raise Dropped(DropReason.OTHER_PART)
    inner = {f"content[].{key}": value for block in blocks for key, value in block.rest.items()}
    return ContentBlock(ContentKind.RESULT, "".join(block.text for block in blocks), call_id=call_id, rest=rest | inner)


# --- tools


def _flat_tool(tool: Row) -> Row:
    """Return a tool of Bedrock's in the flat form; any other stays, for the reader of tools to judge."""
    spec = tool.get("toolSpec")
    if not isinstance(spec, dict):
        return tool
    schema = spec.get("inputSchema")
    flat = {key: value for key, value in spec.items() if key != "inputSchema"}
    return flat | {"parameters": schema.get("json") if isinstance(schema, dict) else schema}


def _declared(tool: Row, reading: Reading) -> Iterable[Any]:
    """Return the functions that one of Gemini's tools declares; any other tool stays."""
    names = [name for name in ("functionDeclarations", "function_declarations") if tool.get(name)]
    others = [key for key, value in tool.items() if key not in names and value not in EMPTY]
    if not names or others or not isinstance(tool[names[0]], list):
        return [_flat_tool(tool)]
    return [_declaration(function, reading) for function in tool[names[0]]]


def _declaration(function: Any, reading: Reading) -> Any:
    if not isinstance(function, dict):
        return function
    kept = ("name", "description")
    reading.leave_out("tools[].functionDeclarations[]", function, {*kept, "parameters", "parametersJsonSchema"})
    schema = function.get("parametersJsonSchema") or _json_schema(function.get("parameters"))
    return {key: function[key] for key in kept if key in function} | ({"parameters": schema} if schema else {})


def _json_schema(schema: Any) -> Any:
    """Return one of Gemini's schemas, whose types are in upper case, as a JSON schema."""
    if not isinstance(schema, dict):
        return schema
    made = {key: _json_keyword(key, value) for key, value in schema.items()}
    if isinstance(kind := made.get("type"), str):
        made["type"] = kind.lower()
        if made.pop("nullable", False) is True:
            made["type"] = [made["type"], "null"]
            made |= {"enum": [*made["enum"], None]} if isinstance(made.get("enum"), list) else {}
    return made


def _json_keyword(key: str, value: Any) -> Any:
    if key in ("properties", "$defs", "defs") and isinstance(value, dict):
        return {name: _json_schema(schema) for name, schema in value.items()}
    if key in _VALUES_OF_SCHEMAS:
        return value
    return [_json_schema(item) for item in value] if isinstance(value, list) else _json_schema(value)


_VALUES_OF_SCHEMAS = frozenset(("default", "enum", "const", "example", "examples", "required"))
"""Keywords of a schema whose value is not a schema."""
_FIELDS_OF_CHATS = ("tool_calls", "function_call", "reasoning_content", "reasoning", "thinking", "tool_call_id")
"""Fields of the chat API's turns that a turn of blocks must not have as well."""
GEMINI_PARTS = frozenset(
    (
        "text",
        "functionCall",
        "functionResponse",
        "inlineData",
        "fileData",
        "executableCode",
        "codeExecutionResult",
    )
)
"""Keys of Gemini's parts, each of which names what the part holds."""
_CAMEL_CASE = {
    "function_call": "functionCall",
    "function_response": "functionResponse",
    "inline_data": "inlineData",
    "file_data": "fileData",
    "executable_code": "executableCode",
    "code_execution_result": "codeExecutionResult",
    "thought_signature": "thoughtSignature",
}
"""Keys of parts as Gemini's Python library writes them."""
_BEDROCK_CONTENT = BEDROCK_BLOCKS | {"json"}
"""Keys of Bedrock's blocks, also of those inside a result."""
_SPEAKERS = {name: ROLES[name] for name in ("system", "user", "assistant")}
_FORMS: dict[RowForm, tuple[str, str, dict[str, str], Callable[[Row], ContentBlock]]] = {
    RowForm.ANTHROPIC: ("messages", "content", _SPEAKERS, _anthropic),
    RowForm.BEDROCK: ("messages", "content", _SPEAKERS, _bedrock),
    RowForm.GEMINI: ("contents", "parts", {"user": "user", "model": "assistant", "function": "user"}, _gemini),
}
"""By form: key of the turns, key of a turn's blocks, Mens' roles by the form's, and the reader of a block."""
