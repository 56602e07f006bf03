"""Lines as other systems write them: unknown keys, and older forms of a chat that OpenAI still accepts.

They become an unambiguous :class:`Record`, and each conversion is named for the data report:

    content or system as text parts       joined by line breaks, as vLLM joins them
    function_call, functions              tool_calls with made ids (call_1 …), tools
    a turn by ``function``                the tool's turn that answers the last call of that name
    an answer's ``refusal``               its content
    an answer's ``train``, ``loss`` …:
    false, or ``masked``: true            its weight 0
    tools and calls of other programs     those of the chat API (``forms/tools.py``)
    ``reasoning``, ``thinking``           reasoning_content
    any other key, of a row, a turn,
    a part, a call or a span              left out, and counted

Only lines that the strict decoder refuses are handled here, so that plain files are not slowed down.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

import msgspec

from shared.datasets.forms.flags import FLAGS, ROW_FLAGS, is_excluded, is_learnt
from shared.datasets.forms.recognition import MEDIA, RowForm, refers_to_media
from shared.datasets.forms.tools import ToolConversion, tools_of_text, translated_tools, translated_turns
from shared.datasets.rows import Labels, Message, Record, Role, RowCode, RowError, SyntaxSpan

Conversion = Literal["text parts", "functions", "refusal", "answers not to learn", "thoughts", ToolConversion]
WrittenRole = Literal[Role, "function"]
WRITTEN_ROLES: tuple[str, ...] = get_args(WrittenRole)
"""Every role that a line may name."""
KEYS_THAT_REFUSE = frozenset((*ROW_FLAGS, "history", *MEDIA))
"""Other keys of a row whose value may cause it to be refused."""
_ANTHROPIC_PARTS = {
    "tool_use": "the call into the turn's `tool_calls`: {id, type: function, function: {name, arguments}}",
    "tool_result": "the result as a turn of its own: {role: tool, tool_call_id, content}",
    "thinking": "the thoughts into the turn's `reasoning_content`",
}
"""Parts of content that OpenAI's chats have elsewhere, and where."""
_RESPONSES_PARTS = frozenset(("input_text", "output_text"))
_EMPTY = [msgspec.Raw(value) for value in (b"null", b'""', b"[]", b"{}")]
"""Values of a key without content, which need not be reported as unused."""


class _Part(msgspec.Struct, gc=False):
    type: str
    text: str | None = None
    refusal: str | None = None


class _FunctionCall(msgspec.Struct, gc=False):
    name: str
    arguments: str | dict[str, Any] | None = None


class _WrittenMessage(msgspec.Struct, gc=False):
    role: WrittenRole
    content: str | list[_Part] | None = None
    name: str | None = None
    tool_calls: list[dict[str, Any]] | None = None
    tool_call_id: str | None = None
    weight: Literal[0, 1] | None = None
    function_call: _FunctionCall | None = None
    refusal: str | None = None
    train: Any = None
    training: Any = None
    trainable: Any = None
    loss: Any = None
    loss_scale: Any = None
    loss_mask: Any = None
    mask: Any = None
    masked: Any = None
    train_detail: Any = None
    reasoning_content: str | None = None
    # Names of thoughts at Ollama and in older data; other people's files may hold anything there.
    reasoning: Any = None
    thinking: Any = None


class _WrittenSpan(SyntaxSpan, frozen=True, gc=False, forbid_unknown_fields=False):
    pass


class _WrittenRecord(Labels, frozen=True, gc=False):
    # The names that are metadata in other people's files may hold anything there.
    syntax_spans: list[_WrittenSpan] | None = None  # type: ignore[assignment]  # lists of a kind of span
    messages: list[_WrittenMessage] | None = None
    turns: list[_WrittenMessage] | None = None
    system: Any = None
    prompt: str | None = None
    instruction: str | None = None
    input: Any = None
    context: Any = None
    response: str | None = None
    output: str | None = None
    completion: str | None = None
    tools: str | list[dict[str, Any]] | None = None
    functions: list[dict[str, Any]] | None = None


_decode_record = msgspec.json.Decoder(_WrittenRecord).decode
_decode_keys = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_decode_items_keys = msgspec.json.Decoder(list[dict[str, msgspec.Raw]]).decode
_RECORD_KEYS, _TURN_KEYS, _PART_KEYS, _CALL_KEYS, _SPAN_KEYS = (
    frozenset(kind.__struct_fields__) for kind in (_WrittenRecord, _WrittenMessage, _Part, _FunctionCall, _WrittenSpan)
)
_Keys = dict[str, msgspec.Raw]


@dataclass(slots=True)
class Translated:
    """A line in Mens' own form.

    Attributes:
        record: the record, as if it had been written in this form; its turns are not checked yet.
        unused_keys: keys with a value that is not used, those of a turn as ``messages[].key``.
        all_keys: keys of the row and of its turns that have no meaning here, including keys with an empty value.
        conversions: names of the parts that had another form.
    """

    record: Record = field(default_factory=Record)
    unused_keys: set[str] = field(default_factory=set)
    all_keys: set[str] = field(default_factory=set)
    conversions: set[Conversion] = field(default_factory=set)


def translate(line: bytes) -> Translated:
    """Decode a line that the strict decoder refuses.

    Raises:
        RowError: a part other than text, an old form together with its successor, or a function's turn without its
            call.
    """
    written = _decode_record(line)
    row = _decode_keys(line)
    keys = dict(_unknown_keys(row))
    translated = Translated(unused_keys={key for key, has_value in keys.items() if has_value}, all_keys=set(keys))
    translated.unused_keys |= set(_unknown_nested_keys(row))
    fields: dict[str, Any] = {name: getattr(written, name) for name in Record.__struct_fields__}
    if isinstance(written.system, list) and written.system:
        fields["system"] = _system(written.system, translated)
        if isinstance(fields["system"], str):
            translated.unused_keys |= set(_unknown(_items(row, "system"), _PART_KEYS, "system[]"))
    for name in ("system", "input", "context"):
        if not isinstance(fields[name], str | None):
            _leave_out(name, written, translated)
            fields[name] = None
    if written.syntax_spans:
        spans = [SyntaxSpan(span.start, span.end, span.weight, span.kind) for span in written.syntax_spans]
        fields["syntax_spans"] = spans
    _refuse_by_keys(row, written)
    tools = (
        tools_of_text(written.tools, translated.conversions.add) if isinstance(written.tools, str) else written.tools
    )
    if written.functions:
        if tools:
            raise _conflict("functions", "tools are present too")
        tools = [{"type": "function", "function": function} for function in written.functions]
        translated.conversions.add("functions")
    turns = {name: _turns(fields[name], name, translated) for name in ("messages", "turns")}
    translated.record = Record(**fields | turns | {"tools": tools})
    translate_tools(translated)
    return translated


def translate_tools(translated: Translated) -> None:
    """Convert the tools and the calls of a translated row to the form of the chat API."""
    record = translated.record
    tools = translated_tools(record.tools, translated.conversions.add)
    messages = translated_turns(record.messages, tools, translated.conversions.add)
    turns = translated_turns(record.turns, tools, translated.conversions.add)
    translated.record = msgspec.structs.replace(record, tools=tools, messages=messages, turns=turns)


def _refuse_by_keys(row: _Keys, written: _WrittenRecord) -> None:
    """Refuse a row that is marked as not to be trained on, and a row of which parts would be missing.

    Raises:
        RowError: ``ROW_EXCLUDED``, ``ROW_FIELD_CONFLICT``, ``ROW_PART_UNSUPPORTED``.
    """
    for name in ROW_FLAGS:
        if name in row and is_excluded(name, value := msgspec.json.decode(row[name])):
            reason = f"{name} is {msgspec.json.encode(value).decode()}: the row is marked as not to be trained on"
            raise RowError(RowCode.ROW_EXCLUDED, reason, name, RowForm.KTO if name == "label" else "")
    turns = written.messages or written.turns
    if not turns and "history" in row and says_something(row["history"]):
        reason = (
            "history holds earlier turns, which a row of prompt and response does not have; write them as `messages`"
        )
        raise RowError(RowCode.ROW_FIELD_CONFLICT, reason, "history", RowForm.ALPACA)
    if any(name in row for name in MEDIA):
        texts = [turn.content for turn in turns or ()] or [written.prompt, written.instruction, written.input]
        values = {name: msgspec.json.decode(row[name]) for name in MEDIA if name in row}
        if refers_to_media(values, texts):
            name = next(iter(values))
            raise RowError(
                RowCode.ROW_PART_UNSUPPORTED, f"the content refers to {name}, which cannot be trained on", name
            )


def _unknown_keys(row: _Keys) -> Iterator[tuple[str, bool]]:
    """Yield unknown keys, and whether each has a value; if a key occurs twice, the one with a value comes last."""
    keys = [(key, says_something(row[key])) for key in row.keys() - _RECORD_KEYS]
    for name in ("messages", "turns"):
        if name in row and says_something(row[name]):
            for turn in _decode_items_keys(row[name]):
                keys += [(f"{name}[].{key}", says_something(turn[key])) for key in turn.keys() - _TURN_KEYS]
    yield from sorted(keys, key=lambda key: key[1])


def _unknown_nested_keys(row: _Keys) -> Iterator[str]:
    """Yield unknown keys with values inside the objects of a row and of its turns."""
    yield from _unknown(_items(row, "syntax_spans"), _SPAN_KEYS, "syntax_spans[]")
    for name in ("messages", "turns"):
        for turn in _items(row, name):
            yield from _unknown(_items(turn, "content"), _PART_KEYS, f"{name}[].content[]")
            if "function_call" in turn and says_something(turn["function_call"]):
                yield from _unknown([_decode_keys(turn["function_call"])], _CALL_KEYS, f"{name}[].function_call")


def _items(of: _Keys, key: str) -> list[_Keys]:
    """Return the objects of a list; empty for any other value."""
    return _decode_items_keys(of[key]) if key in of and bytes(of[key]).startswith(b"[") else []


def _unknown(items: list[_Keys], fields: frozenset[str], place: str) -> Iterator[str]:
    for item in items:
        yield from (f"{place}.{key}" for key in item.keys() - fields if says_something(item[key]))


def _leave_out(name: str, written: _WrittenRecord, translated: Translated) -> None:
    """Note a value that is not a string as unused; it is metadata next to turns, but an error as a part of a prompt.

    Raises:
        RowError: the row has no turns.
    """
    value = getattr(written, name)
    if value in ([], {}):
        return
    if not (written.messages or written.turns):
        raise RowError(RowCode.ROW_FIELD_TYPE, f"{name} must be a string, because it is a part of the prompt", name)
    translated.unused_keys.add(name)


def says_something(value: msgspec.Raw) -> bool:
    """Return whether leaving out the value would lose information."""
    return len(value) > len(b"null") or value not in _EMPTY


def _turns(written: list[_WrittenMessage] | None, name: str, translated: Translated) -> list[Message] | None:
    """Convert turns to the current form; ids of calls count from 1 in a row."""
    if written is None:
        return None
    turns: list[Message] = []
    open_calls: dict[str, str] = {}
    made = 0
    for index, turn in enumerate(written):
        place = f"{name}[{index}]"
        role, content = turn.role, _text(turn, place, translated)
        tool_calls, tool_call_id, speaker = turn.tool_calls, turn.tool_call_id, turn.name
        if call := turn.function_call:
            if tool_calls:
                raise _conflict(f"{place}.function_call", "tool_calls are present too")
            made += 1
            open_calls[call.name] = f"call_{made}"
            function = {"name": call.name, "arguments": call.arguments}
            tool_calls = [{"id": open_calls[call.name], "type": "function", "function": function}]
            translated.conversions.add("functions")
        if role == "function":
            if turn.name not in open_calls:
                reason = f"{place} answers a call of {turn.name!r}, but no earlier turn makes this call"
                raise RowError(RowCode.ROW_TOOL_CALL_INVALID, reason, f"{place}.name")
            if turn.tool_call_id:
                translated.unused_keys.add(f"{name}[].tool_call_id")
            # OpenAI requires a tool's content, and lets a function's be null.
            role, content, tool_call_id, speaker = "tool", content or "", open_calls[turn.name], None
            translated.conversions.add("functions")
        thoughts = _thoughts(turn, name, index, translated)
        weight = _weight(turn, name, place, translated)
        turns.append(Message(role, content, speaker, tool_calls, tool_call_id, weight, thoughts))
    return turns


def _weight(turn: _WrittenMessage, name: str, place: str, translated: Translated) -> Literal[0, 1] | None:
    """Return a turn's weight; 0 for an answer whose flag excludes it from training.

    Raises:
        RowError: ``ROW_EXCLUDED``: only parts of an answer are excluded, which a weight cannot express.
    """
    weight = turn.weight
    if turn.train_detail and turn.role == "assistant":
        reason = f"{place}.train_detail selects parts of the answer; only a whole answer can be left out (weight 0)"
        raise RowError(RowCode.ROW_EXCLUDED, reason, f"{place}.train_detail")
    for flag in FLAGS:
        value = getattr(turn, flag)
        if value is None:
            continue
        is_answer, meant = turn.role == "assistant", is_learnt(flag, value)
        if is_answer and meant is False:
            if turn.weight == 1:
                raise _conflict(f"{place}.{flag}", "its weight is 1")
            weight = 0
            translated.conversions.add("answers not to learn")
        elif meant is None or (meant and not is_answer):
            translated.unused_keys.add(f"{name}[].{flag}")
    return weight


def _thoughts(turn: _WrittenMessage, name: str, index: int, translated: Translated) -> str | None:
    """Return a turn's thoughts, under any of their names."""
    thoughts = turn.reasoning_content
    for key in ("reasoning", "thinking"):
        value = getattr(turn, key)
        if not isinstance(value, str):
            if value:
                translated.unused_keys.add(f"{name}[].{key}")
            continue
        if thoughts and value and value != thoughts:
            raise _conflict(f"{name}[{index}].{key}", "the turn has different thoughts under another name")
        if value:
            thoughts = value
            translated.conversions.add("thoughts")
    return thoughts


def _text(turn: _WrittenMessage, place: str, translated: Translated) -> str | None:
    """Return a turn's content as one string; for an answer that refuses, the refusal."""
    content = turn.content
    if isinstance(content, list):
        texts = [_part_text(part, f"{place}.content[{index}]") for index, part in enumerate(content)]
        content = "\n".join(filter(None, texts))  # vLLM leaves empty parts out
        translated.conversions.add("text parts")
    if not turn.refusal:
        return content
    if turn.role != "assistant" or content:
        raise _conflict(f"{place}.refusal", "only an answer without content may have a refusal")
    translated.conversions.add("refusal")
    return turn.refusal


def _system(parts: list[Any], translated: Translated) -> Any:
    """Return the system's content as one string if it is a list of text parts, as Anthropic writes it; else unchanged."""
    try:
        texts = [part.text for part in msgspec.convert(parts, list[_Part]) if part.type == "text"]
    except msgspec.ValidationError:
        return parts
    if len(texts) < len(parts) or None in texts:
        return parts
    translated.conversions.add("text parts")
    return "\n".join(filter(None, texts))


def _part_text(part: _Part, place: str) -> str:
    text = {"text": part.text, "refusal": part.refusal}.get(part.type)
    if text is None:
        reason = f"{place} is a part of type {part.type[:40]!r}; only parts with text can be trained on"
        if part.type in _ANTHROPIC_PARTS:
            reason = f"{place} is Anthropic's `{part.type}`; write {_ANTHROPIC_PARTS[part.type]}"
        if part.type in _RESPONSES_PARTS and part.text is not None:
            reason = (
                f"{place} is `{part.type}` of OpenAI's Responses; write its type as `text` (`mens data convert` does)"
            )
        raise RowError(RowCode.ROW_PART_UNSUPPORTED, reason, place)
    if part.text and part.refusal:
        raise _conflict(place, "it has content and a refusal")
    return text


def _conflict(place: str, reason: str) -> RowError:
    return RowError(RowCode.ROW_FIELD_CONFLICT, f"{place}: {reason}", place)
