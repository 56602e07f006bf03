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

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from enum import Enum, auto
from itertools import count
from typing import Any

import msgspec

from cli.conversion.outcomes import Dropped, DropReason, Row
from cli.conversion.reading import EMPTY, FLAG_KEYS, Reading
from shared.datasets.forms.recognition import ROLES, RowForm
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
        taken: ids of calls in the row, given or made.
        open: id and function of each call without a result.
    """

    taken: set[str]
    open: list[tuple[str, str]] = field(default_factory=list)

    def begin(self, block: ContentBlock) -> Row:
        """Return a call of the chat API."""
        call_id = block.call_id or next(name for number in count(1) if (name := f"call_{number}") not in self.taken)
        self.taken.add(call_id)
        self.open.append((call_id, block.name))
        return {"id": call_id, "type": "function", "function": {"name": block.name, "arguments": block.arguments}}

    def end(self, block: ContentBlock) -> Row:
        """Return the turn of a result: of the call with its id, or else of the first open call of its function.

        Raises:
            Dropped: no open call has this result.
        """
        for number, (call_id, name) in enumerate(self.open):
            if block.call_id == call_id if block.call_id else block.name == name:
                del self.open[number]
                return {"role": "tool", "content": block.text, "tool_call_id": call_id}
        raise Dropped(DropReason.FUNCTION_WITHOUT_CALL)


def turns_of_blocks(form: RowForm, reading: Reading) -> list[Row]:
    """Return the turns of a row in a form of blocks.

    Raises:
        Dropped: a turn or a block cannot be read.
    """
    name, parts, roles, read_block = _FORMS[form]
    read: list[tuple[str, list[ContentBlock], Row]] = []
    for written in _listed(reading.take(name)):
        role = roles.get(str(written.get("role")))
        if role is None:
            raise Dropped(RowCode.ROW_ROLE_UNKNOWN)
        reading.leave_out(f"{name}[]", written, {"role", parts, *FLAG_KEYS})
        blocks = _blocks(written.get(parts), read_block, f"{name}[].{parts}[]", reading)
        read.append((role, blocks, {key: written[key] for key in sorted(FLAG_KEYS & written.keys())}))
    calls = Calls({block.call_id for _, blocks, _ in read for block in blocks})
    return [turn | flags for role, blocks, flags in read for turn in _turns(role, blocks, calls)]


def system_of_blocks(reading: Reading) -> str:
    """Return the system's content of a row, and mark its key as used; empty if the row has none.

    Raises:
        Dropped: it is neither a string nor text blocks.
    """
    for name in ("system", "systeminstruction", "system_instruction"):
        value = reading.row.get(name)
        if isinstance(value, list | dict) and value:
            parts = value.get("parts") if isinstance(value, dict) else value
            blocks = _blocks(parts, _system, f"{name}[]", reading)
            reading.used.add(name)
            if isinstance(value, dict):
                reading.leave_out(name, value, {"role", "parts"})
            return "".join(block.text for block in blocks)
    return reading.take_text("system", "systeminstruction", "system_instruction")


def tools_of_blocks(reading: Reading) -> Any:
    """Return a row's tools, with those of Bedrock and Gemini in the flat form of a function; others stay as they are."""
    tools, config = reading.take("tools"), reading.row.get("toolconfig")
    if tools is None and isinstance(config, dict) and isinstance(config.get("tools"), list):
        reading.used.add("toolconfig")
        reading.leave_out("toolConfig", config, {"tools"})
        tools = config["tools"]
    if not isinstance(tools, list) or not all(isinstance(tool, dict) for tool in tools):
        return tools
    return [function for tool in tools for function in _declared(tool)]


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
    content: Any, read_block: Callable[[Row], ContentBlock], place: str, reading: Reading | None = None
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
    """Return a list of objects.

    Raises:
        Dropped: the value is another one.
    """
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
        content = _result(written.get("content", ""), _anthropic)
        return ContentBlock(ContentKind.RESULT, content, call_id=_id(written.get("tool_use_id")), rest=rest)
    raise Dropped(DropReason.IMAGE if kind == "image" else DropReason.OTHER_PART)


def _bedrock(written: Row) -> ContentBlock:
    if "text" in written:
        return _text(ContentKind.TEXT, written["text"], _without(written, "text"))
    if isinstance(call := written.get("toolUse"), dict):
        return _call(call.get("toolUseId"), call.get("name"), call.get("input"), _without(written, "toolUse"))
    if isinstance(result := written.get("toolResult"), dict):
        content = _result(result.get("content", []), _bedrock)
        rest = _without(written, "toolResult")
        if result.get("status") == "error":
            rest["toolResult.status"] = "error"
        return ContentBlock(ContentKind.RESULT, content, call_id=_id(result.get("toolUseId")), rest=rest)
    if isinstance(thoughts := written.get("reasoningContent"), dict):
        inner = thoughts.get("reasoningText")
        text = inner.get("text") if isinstance(inner, dict) else None
        return _text(ContentKind.THOUGHTS, text, _without(written, "reasoningContent"))
    if "json" in written:
        return ContentBlock(
            ContentKind.TEXT, msgspec.json.encode(written["json"]).decode(), rest=_without(written, "json")
        )
    if "cachePoint" in written:
        return ContentBlock(ContentKind.NOTHING)
    raise Dropped(DropReason.IMAGE if "image" in written else DropReason.OTHER_PART)


def _gemini(written: Row) -> ContentBlock:
    if "text" in written:
        kind = ContentKind.THOUGHTS if written.get("thought") is True else ContentKind.TEXT
        return _text(kind, written["text"], _without(written, "text", "thought", "thoughtSignature"))
    if isinstance(call := written.get("functionCall"), dict):
        rest = _without(written, "functionCall", "thoughtSignature")
        return _call(call.get("id"), call.get("name"), call.get("args") or {}, rest)
    if isinstance(result := written.get("functionResponse"), dict):
        content = msgspec.json.encode(result.get("response")).decode()
        name, call_id = str(result.get("name")), str(result.get("id") or "")
        return ContentBlock(ContentKind.RESULT, content, name, call_id, rest=_without(written, "functionResponse"))
    data = written.get("inlineData") or written.get("fileData")
    media = str(data.get("mimeType")).partition("/")[0] if isinstance(data, dict) else ""
    raise Dropped({"image": DropReason.IMAGE, "audio": DropReason.AUDIO}.get(media, DropReason.OTHER_PART))


def _system(written: Row) -> ContentBlock:
    """Return a block of the system's content, which all programs write with ``text``."""
    return _text(ContentKind.TEXT, written.get("text"), _without(written, "type", "text", "cachePoint"))


def _without(written: Row, *keys: str) -> Row:
    return {key: value for key, value in written.items() if key not in keys}


def _text(kind: ContentKind, text: Any, rest: Row) -> ContentBlock:
    if not isinstance(text, str):
        raise Dropped(DropReason.OTHER_PART)
    return ContentBlock(kind, text, rest=rest)


def _call(call_id: Any, name: Any, arguments: Any, rest: Row) -> ContentBlock:
    if not isinstance(name, str) or not isinstance(arguments, dict):
        raise Dropped(RowCode.ROW_TOOL_CALL_INVALID)
    return ContentBlock(ContentKind.CALL, name=name, call_id=str(call_id or ""), arguments=arguments, rest=rest)


def _id(call_id: Any) -> str:
    if not isinstance(call_id, str) or not call_id:
        raise Dropped(DropReason.FUNCTION_WITHOUT_CALL)
    return call_id


def _result(content: Any, read_block: Callable[[Row], ContentBlock]) -> str:
    """Return the content of a result as one string."""
    blocks = _blocks(content, read_block, "")
    if any(block.kind is not ContentKind.TEXT for block in blocks):
        raise Dropped(DropReason.OTHER_PART)
    return "".join(block.text for block in blocks)


# --- tools


def _flat_tool(tool: Row) -> Row:
    """Return a tool of Bedrock's in the flat form; any other stays, for the reader of tools to judge."""
    spec = tool.get("toolSpec")
    if not isinstance(spec, dict):
        return tool
    schema = spec.get("inputSchema")
    flat = {key: value for key, value in spec.items() if key != "inputSchema"}
    return flat | {"parameters": schema.get("json") if isinstance(schema, dict) else schema}


def _declared(tool: Row) -> Iterable[Any]:
    """Return the functions that one of Gemini's tools declares; any other tool stays."""
    names = [name for name in ("functionDeclarations", "function_declarations") if tool.get(name)]
    others = [key for key, value in tool.items() if key not in names and value not in EMPTY]
    if not names or others or not isinstance(tool[names[0]], list):
        return [_flat_tool(tool)]
    return [_declaration(function) for function in tool[names[0]]]


def _declaration(function: Any) -> Any:
    if not isinstance(function, dict):
        return function
    schema = function.get("parametersJsonSchema") or _json_schema(function.get("parameters"))
    kept = {key: function[key] for key in ("name", "description") if key in function}
    return kept | ({"parameters": schema} if schema else {})


def _json_schema(schema: Any) -> Any:
    """Return one of Gemini's schemas, whose types are in upper case, as a JSON schema."""
    if isinstance(schema, list):
        return [_json_schema(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    made = {key: _json_schema(value) for key, value in schema.items()}
    if isinstance(kind := made.get("type"), str):
        made["type"] = [kind.lower(), "null"] if made.pop("nullable", False) is True else kind.lower()
    return made


_SPEAKERS = {name: ROLES[name] for name in ("system", "user", "assistant")}
_FORMS: dict[RowForm, tuple[str, str, dict[str, str], Callable[[Row], ContentBlock]]] = {
    RowForm.ANTHROPIC: ("messages", "content", _SPEAKERS, _anthropic),
    RowForm.BEDROCK: ("messages", "content", _SPEAKERS, _bedrock),
    RowForm.GEMINI: ("contents", "parts", {"user": "user", "model": "assistant", "function": "user"}, _gemini),
}
"""By form: key of the turns, key of a turn's blocks, Mens' roles by the form's, and the reader of a block."""
