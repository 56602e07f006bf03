"""Decodes and checks one line of a training file, and explains the fault of a bad one."""

from __future__ import annotations

import json
import re
from contextlib import suppress
from difflib import get_close_matches
from functools import lru_cache
from itertools import islice
from typing import Any, NoReturn, get_args

import msgspec

from shared.datasets.field_conflicts import refuse_conflicts
from shared.datasets.forms.recognition import DESCRIPTIONS, RowForm, is_foreign, recognise
from shared.datasets.forms.tools import check_tools, refuse_foreign_tools
from shared.datasets.rows import (
    END_OF_THOUGHTS,
    MAX_SPAN_WEIGHT,
    Message,
    Record,
    Role,
    RowCode,
    RowError,
    TrainingRow,
    as_row,
)
from shared.datasets.written_rows import WRITTEN_ROLES, translate
from shared.lone_surrogates import has_lone_surrogate

MAX_LINE_BYTES = 1_000_000
"""Longest line in bytes, without its line end."""
ROLES: tuple[str, ...] = get_args(Role)

decode = msgspec.json.Decoder(Record).decode
"""Decoder of lines: checks types, ranges and roles in C, :func:`check_record` the rest. Other keys:
``written_rows.py``.
"""
FAILURES = (RowError, msgspec.DecodeError, UnicodeDecodeError, RecursionError)
# msgspec names the field at the end of its messages.
_LOCATED = re.compile(r"^(?P<what>.*?)(?: - at `(?P<path>[^`]*)`)?$", re.DOTALL)
_TYPES = {
    "str": "text",
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "array": "a list",
    "object": "an object",
    "null": "null",
}
_RANGES = {
    "rating": (RowCode.ROW_RATING_RANGE, "a whole number from 1 to 5"),
    "difficulty": (RowCode.ROW_DIFFICULTY_RANGE, "a whole number from 1 to 10"),
    "start": (RowCode.ROW_SPAN_OUT_OF_RANGE, "0 or more"),
    "end": (RowCode.ROW_SPAN_OUT_OF_RANGE, "0 or more"),
    "weight": (RowCode.ROW_WEIGHT_INVALID, f"0 to {MAX_SPAN_WEIGHT}"),
}
_TEXT_FIELDS = ("messages", "turns", "prompt", "instruction", "input", "context", "response", "output", "completion")
_COMPARED_KEYS, _MAX_KEY_CHARACTERS = 20, 40
BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_CODES_OF_OTHER_FORMS = frozenset(
    (
        RowCode.ROW_FIELD_MISSING,
        RowCode.ROW_FIELD_TYPE,
        RowCode.ROW_ROLE_UNKNOWN,
        RowCode.ROW_PART_UNSUPPORTED,
        RowCode.ROW_TOOL_INVALID,
    )
)
_CHOICES = {
    "role": (RowCode.ROW_ROLE_UNKNOWN, f"one of {', '.join(WRITTEN_ROLES)}"),
    "response_mode": (RowCode.ROW_RESPONSE_MODE_UNKNOWN, "code_only or prose_only"),
    "weight": (RowCode.ROW_WEIGHT_INVALID, "0 or 1"),
}


def parse_row(line: bytes, number: int) -> TrainingRow:
    """Decode and check one line.

    Raises:
        RowError: the line's fault; a ``ValueError``.
    """
    return as_row(decode_line(line), number)


def decode_line(line: bytes) -> Record:
    """Decode and check one line, in its own form.

    Raises:
        RowError: the line's fault.
    """
    try:
        try:
            record = decode_strictly(line)
        except msgspec.ValidationError:
            record = translate(line).record
        check_record(record, line)
    except FAILURES as failure:
        raise explain(line, failure) from None
    return record


def decode_strictly(line: bytes) -> Record:
    """Decode a line in Mens' own form."""
    record = decode(line)
    refuse_foreign_tools(record)
    return record


def check_record(record: Record, line: bytes) -> None:
    """Check the parts that the types do not cover: length, turns, tools, spans.

    Raises:
        RowError: the record's fault.
    """
    check_length(line)
    if not record.has_messages_only:
        refuse_conflicts(record)
    if chat := record.messages or record.turns:
        _check_turns(chat, "messages" if record.messages else "turns")
    else:
        _check_pair(record, line)
    if record.tools:
        check_tools(record.tools)
    if record.syntax_spans:
        length = len(record.conversation()[-1].content or "")
        for index, span in enumerate(record.syntax_spans):
            if not span.start < span.end <= length:
                field = f"syntax_spans[{index}]"
                reason = f"{field} is {span.start} to {span.end}, which is not a range within the answer's {length} characters"
                raise RowError(RowCode.ROW_SPAN_OUT_OF_RANGE, reason, field)


def explain(line: bytes, failure: Exception) -> RowError:
    """Return the error of a line that could not be decoded, or failed a check."""
    try:
        _explain(line, failure)
    except RowError as error:
        return _naming_its_form(error, line)


def _naming_its_form(error: RowError, line: bytes) -> RowError:
    """Return the same error, with the form of another program if the row has one."""
    if error.code not in _CODES_OF_OTHER_FORMS or error.form:
        return error
    try:
        row = msgspec.json.decode(line)
    except FAILURES:
        return error
    form = is_foreign(row) if isinstance(row, dict) else None
    if form is None:
        return error
    return RowError(error.code, f"{error.reason}; the row is in {DESCRIPTIONS[form]}", error.field, form)


# --- lines that cannot be decoded


def _explain(line: bytes, failure: Exception) -> NoReturn:
    # The order matters: a line that is too long or not UTF-8 is not JSON either.
    if isinstance(failure, RowError):
        raise failure
    check_length(line)
    if not line.strip():
        raise RowError(RowCode.ROW_BLANK, "the line is blank") from None
    try:
        line.decode()
    except UnicodeDecodeError as error:
        hint = "; the file looks like UTF-16" if line[:2] in {b"\xff\xfe", b"\xfe\xff"} else ""
        hint = "; the file looks compressed" if line[:2] == b"\x1f\x8b" else hint
        raise RowError(RowCode.ROW_NOT_UTF8, f"byte {error.start + 1} of the line is not UTF-8{hint}") from None
    if isinstance(failure, RecursionError):
        raise RowError(RowCode.ROW_TOO_DEEP, "the line nests lists or objects too deeply") from None
    if isinstance(failure, msgspec.ValidationError):
        raise _type_error(line, str(failure)) from None
    if line.startswith(BYTE_ORDER_MARK):
        reason = "the line begins with a byte order mark, as where one file was appended to another; remove the mark"
        raise RowError(RowCode.ROW_NOT_JSON, reason) from None
    if has_lone_surrogate(line) and _is_json(line):
        reason = "the line has half of a surrogate pair (\\ud800 to \\udfff), which is not a character"
        raise RowError(RowCode.ROW_LONE_SURROGATE, reason) from None
    reason = _cut_off(line, str(failure)) or str(failure).removeprefix("JSON is malformed: ")
    hint = " (the file looks like one JSON list; write one object per line)" if line.strip() in {b"[", b"]"} else ""
    raise RowError(RowCode.ROW_NOT_JSON, f"the line is not JSON: {reason}{hint}") from None


def _cut_off(line: bytes, failure: str) -> str:
    """Return a reason if a line ends too early, from msgspec's message; else an empty string."""
    text = line.rstrip(b"\r\n")
    place = re.search(r"\(byte (\d+)\)$", failure)
    # Inside a string, word or number, the line's end is the unexpected character.
    if failure != "Input data was truncated" and not (place and int(place[1]) >= len(text)):
        return ""
    in_text = re.sub(rb"\\.?", b"", text, flags=re.DOTALL).count(b'"') % 2
    return f"it ends in the middle{' of a string' if in_text else ''}"


def check_length(line: bytes) -> None:
    """Refuse a line that is too long.

    Raises:
        RowError: ``ROW_TOO_LONG``.
    """
    if len(line) > MAX_LINE_BYTES and len(line.rstrip(b"\r\n")) > MAX_LINE_BYTES:
        raise RowError(RowCode.ROW_TOO_LONG, f"the line is longer than {MAX_LINE_BYTES} bytes") from None


def _is_json(line: bytes) -> bool:
    """Return whether Python's own decoder accepts the line; it accepts lone surrogates."""
    try:
        json.loads(line)
    except (ValueError, RecursionError):
        return False
    return True


def _type_error(line: bytes, failure: str) -> RowError:
    match = _LOCATED.match(failure)
    what, path = (match["what"], match["path"] or "") if match else (failure, "")
    field = path.removeprefix("$").removeprefix(".")
    if missing := re.match(r"Object missing required field `(.*)`", what):
        name = f"{field}.{missing[1]}".removeprefix(".")
        return RowError(RowCode.ROW_FIELD_MISSING, f"{name} is missing", name)
    if not field:
        hint = "; write one object per line" if line.lstrip()[:1] == b"[" else ""
        return RowError(RowCode.ROW_NOT_OBJECT, f"the line is not a JSON object{hint}")
    return _bad_value(field, what)


def _bad_value(field: str, message: str) -> RowError:
    """Return the error of one field's value, from msgspec's message."""
    name = field.rpartition(".")[2]
    if (chosen := re.match(r"Invalid enum value (.*)", message)) and name in _CHOICES:
        code, allowed = _CHOICES[name]
        return RowError(code, f"{field} is {chosen[1][:60]}; it must be {allowed}", field)
    if name == "weight" and field.startswith(("messages", "turns")):
        return RowError(RowCode.ROW_WEIGHT_INVALID, f"{field} must be 0 or 1", field)
    if re.match(r"Expected `\w+` [<>]=", message) and name in _RANGES:
        code, allowed = _RANGES[name]
        return RowError(code, f"{field} must be {allowed}", field)
    if types := re.match(r"Expected `(.*)`, got `(.*)`", message):
        expected = " or ".join(_TYPES.get(kind, kind) for kind in types[1].split(" | "))
        return RowError(
            RowCode.ROW_FIELD_TYPE, f"{field} must be {expected}, not {_TYPES.get(types[2], types[2])}", field
        )
    return RowError(RowCode.ROW_NUMBER_RANGE, f"{field} holds a number that is out of range", field)


# --- lines that decode, but must not be trained on


def _check_pair(record: Record, line: bytes) -> None:
    prompt, answer = record.pair()
    if prompt is None or answer is None:
        raise _missing(record, prompt, answer, line)
    if not prompt or prompt.isspace():
        raise RowError(RowCode.ROW_CONTENT_EMPTY, "the prompt is empty", "prompt")
    if not answer or answer.isspace():
        raise RowError(RowCode.ROW_ANSWER_EMPTY, "the response is empty, so there is nothing to learn", "response")


def _missing(record: Record, prompt: str | None, answer: str | None, line: bytes) -> RowError:
    """Return the error of a row without turns, and without prompt or answer."""
    if prompt is None and answer is None:
        for name in ("messages", "turns"):
            if getattr(record, name) is not None:
                return RowError(RowCode.ROW_FIELD_MISSING, f"`{name}` is empty; it needs at least one turn", name)
        name, reason = "", "`messages`, or `prompt` with `response`, is missing"
    else:
        name = "prompt" if prompt is None else "response"
        reason = f"`{name}` is missing"
    return RowError(RowCode.ROW_FIELD_MISSING, f"{reason}{_misspelt(line) or _wrapped(line)}", name)


def _misspelt(line: bytes) -> str:
    """Return the first misspelt field of a row, as the end of a reason; empty if no key is nearly a field's name."""
    keys = msgspec.json.decode(line, type=dict[str, msgspec.Raw])
    for key in islice(keys, _COMPARED_KEYS):
        meant = _nearest_field(key[:_MAX_KEY_CHARACTERS])
        if meant and meant not in keys:
            return f"; is `{key[:_MAX_KEY_CHARACTERS]}` meant to be `{meant}`?"
    return ""


def _wrapped(line: bytes) -> str:
    """Return the key of a row that has another row in it, as the end of a reason; empty if none has."""
    keys = msgspec.json.decode(line, type=dict[str, msgspec.Raw])
    for key in islice(keys, _COMPARED_KEYS):
        inner = msgspec.json.decode(keys[key]) if bytes(keys[key]).startswith(b"{") else None
        if isinstance(inner, dict) and key.isprintable() and recognise(inner) not in (None, RowForm.TEXT):
            return f"; a row is inside `{key[:_MAX_KEY_CHARACTERS]}`: write it without this key around it"
    return ""


@lru_cache(maxsize=1024)  # the lines of a file have the same keys
def _nearest_field(key: str) -> str | None:
    """Return the field that a key nearly spells; keys are untrusted, so an unprintable one gives None."""
    return (
        next(iter(get_close_matches(key.lower(), _TEXT_FIELDS, n=1, cutoff=0.75)), None) if key.isprintable() else None
    )


def _check_turns(messages: list[Message], name: str) -> None:
    for index, message in enumerate(messages):
        _check_turn(message, f"{name}[{index}]")
    last = messages[-1]
    if last.role != "assistant":
        reason = "the last turn is not the assistant's, so there is nothing to learn"
        raise RowError(RowCode.ROW_LAST_TURN_NOT_ASSISTANT, reason, f"{name}[{len(messages) - 1}].role")
    if all(message.weight == 0 for message in messages if message.role == "assistant"):
        raise RowError(
            RowCode.ROW_NOTHING_TO_LEARN, "every assistant turn has weight 0, so there is nothing to learn", name
        )


def _check_turn(message: Message, field: str) -> None:
    if message.reasoning_content:
        _check_thoughts(message, field)
    for index, call in enumerate(message.tool_calls or ()):
        _check_tool_call(call, f"{field}.tool_calls[{index}]")
    if message.role == "assistant":
        is_empty = not message.tool_calls and not (message.content or "").strip()
        # An empty turn with weight 0 is valid, as at OpenAI.
        if is_empty and not (message.weight == 0 and message.content is not None):
            reason = f"{field}.content is empty: an assistant's turn needs content or tool_calls, or there is nothing to learn"
            raise RowError(RowCode.ROW_ANSWER_EMPTY, reason, f"{field}.content")
        return
    if message.tool_calls:
        reason = f"{field}.tool_calls: only the assistant calls tools"
        raise RowError(RowCode.ROW_TOOL_CALL_INVALID, reason, f"{field}.tool_calls")
    # A tool's result may be empty, and OpenAI accepts an empty system turn.
    if message.content is None or (message.role == "user" and not message.content.strip()):
        raise RowError(RowCode.ROW_CONTENT_EMPTY, f"{field}.content is empty", f"{field}.content")


def _check_thoughts(message: Message, field: str) -> None:
    place = f"{field}.reasoning_content"
    if message.role != "assistant":
        raise RowError(RowCode.ROW_FIELD_CONFLICT, f"{place}: only an assistant's turn has thoughts", place)
    if END_OF_THOUGHTS in (message.content or ""):
        reason = f"{place}: the turn has thoughts in this field and in its content; keep one of them"
        raise RowError(RowCode.ROW_FIELD_CONFLICT, reason, place)


def _check_tool_call(call: dict[str, Any], field: str) -> None:
    function = call.get("function", call)
    if not isinstance(function, dict) or not _is_name(function.get("name")):
        reason = f"{field} does not name a function"
        raise RowError(RowCode.ROW_TOOL_CALL_INVALID, reason, f"{field}.function.name")
    arguments = function.get("arguments")
    if isinstance(arguments, str) and not arguments.strip():  # a call without arguments, as the serving tier reads it
        return
    with suppress(*FAILURES, UnicodeEncodeError):
        arguments = msgspec.json.decode(arguments) if isinstance(arguments, str) else arguments
    if not isinstance(arguments, dict | None):
        reason = f"{field}.function.arguments must be a JSON object, or a string that contains one"
        raise RowError(RowCode.ROW_TOOL_CALL_INVALID, reason, f"{field}.function.arguments")


def _is_name(value: object) -> bool:
    return isinstance(value, str) and bool(value.strip())
