"""Converts one of OpenAI's rows to one of Mens': kept, changed by named rules, or dropped for a named reason.

Converting a converted file changes nothing, and every row that is not dropped passes ``mens data check``, whose own
reader judges it.
"""

from __future__ import annotations

from typing import Any

import msgspec

from cli.conversion.outcomes import (
    ConvertedMethod,
    Dropped,
    DropReason,
    Markers,
    Note,
    Row,
    RowChange,
    RowOptions,
    RowOutcome,
)
from cli.conversion.schemas import refused_schemas
from shared.datasets.row_validation import decode_line
from shared.datasets.rows import RowError

DEFAULTS = RowOptions()
TEXT_PARTS = frozenset({"text", "input_text", "output_text"})
"""Types of a part with text, in OpenAI's Chat Completions and Responses."""


def convert_row(
    row: Row, method: ConvertedMethod = ConvertedMethod.SUPERVISED, options: RowOptions = DEFAULTS
) -> RowOutcome:
    """Convert one row in place."""
    outcome = RowOutcome()
    try:
        if method is ConvertedMethod.REINFORCEMENT:
            outcome.rows = [_task(row)]
        elif method is ConvertedMethod.DPO and not options.as_supervised:
            outcome.rows = [_preference(row)]
        else:
            outcome.rows = _supervised(row, options, outcome)
    except Dropped as dropped:
        return RowOutcome(reason=dropped.reason)
    return outcome


def _task(row: Row) -> Row:
    messages = row.get("messages")
    if not _is_chat(messages) or row["messages"][-1].get("role") == "assistant":
        raise Dropped(DropReason.NOT_A_TASK)
    return row


def is_preference(row: Row) -> bool:
    """Return whether a row is one of OpenAI's preferences, in its current or older field names."""
    return isinstance(row.get("input"), dict) and any(isinstance(row.get(name), list) for name in _PREFERRED)


_PREFERRED = ("preferred_output", "preferred_completion")


def _preference(row: Row) -> Row:
    if not (is_preference(row) and _is_chat(row["input"].get("messages"))):
        raise Dropped(DropReason.NOT_A_PREFERENCE)
    return row


def _supervised(row: Row, options: RowOptions, outcome: RowOutcome) -> list[Row]:
    if is_preference(row):
        if not options.as_supervised:
            raise Dropped(DropReason.PREFERENCE)
        row = _preferred(_preference(row))
        outcome.change(RowChange.PREFERRED_ANSWER_TAKEN)
    if _is_chat(row.get("messages")):
        _convert_chat(row, row["messages"], options, outcome)
    elif options.strip and isinstance(row.get("prompt"), str) and isinstance(row.get("completion"), str):
        _strip(row, options.strip, outcome)
    rows = [row]
    if options.split_answers and Note.SEVERAL_ANSWERS in outcome.notes:
        rows = _one_row_an_answer(row)
        outcome.change(RowChange.SPLIT_INTO_ANSWERS)
        outcome.notes.remove(Note.SEVERAL_ANSWERS)
    try:
        for converted in rows:
            decode_line(msgspec.json.encode(converted))
    except RowError as error:
        raise Dropped(error.code) from None
    return rows


def _convert_chat(row: Row, messages: list[Row], options: RowOptions, outcome: RowOutcome) -> None:
    _convert_functions(row, outcome)
    for message in messages:
        _convert_message(message, options, outcome)
    if not any(message.get("role") == "assistant" for message in messages):
        raise Dropped(DropReason.NO_ANSWER)
    while messages[-1].get("role") != "assistant":
        messages.pop()
        outcome.change(RowChange.TRAILING_TURNS_CUT)
    _take_notes(row, outcome)


def _is_chat(messages: object) -> bool:
    return isinstance(messages, list) and bool(messages) and all(isinstance(message, dict) for message in messages)


def _preferred(row: Row) -> Row:
    request = row["input"]
    answers = next(row[name] for name in _PREFERRED if isinstance(row.get(name), list))
    more = {name: request[name] for name in ("tools", "parallel_tool_calls") if name in request}
    return {"messages": [*request["messages"], *(answer for answer in answers if isinstance(answer, dict))], **more}


def _convert_functions(row: Row, outcome: RowOutcome) -> None:
    """Convert OpenAI's older form of tools: ``functions``, ``function_call`` and the role ``function``."""
    functions = row.pop("functions", None)
    if row.pop("function_call", None) is not None or functions:
        outcome.change(RowChange.FUNCTIONS_TO_TOOLS)
    if functions:
        described = functions if isinstance(functions, list) else [functions]
        row["tools"] = [
            *(row.get("tools") or []),
            *({"type": "function", "function": function} for function in described),
        ]
    taken = {call.get("id") for message in row["messages"] for call in _calls(message)}
    number, waiting = 0, ""
    for message in row["messages"]:
        if call := message.get("function_call"):
            while (name := f"call_{(number := number + 1)}") in taken:
                pass
            waiting = name
            del message["function_call"]
            message["tool_calls"] = [*_calls(message), {"id": name, "type": "function", "function": call}]
            outcome.change(RowChange.FUNCTION_CALL_TO_TOOL_CALL)
        elif message.get("role") == "function":
            if not waiting:
                raise Dropped(DropReason.FUNCTION_WITHOUT_CALL)
            message["role"], message["tool_call_id"], waiting = "tool", waiting, ""
            outcome.change(RowChange.FUNCTION_ROLE_TO_TOOL)


def _calls(message: Row) -> list[Row]:
    calls = message.get("tool_calls")
    return [call for call in calls if isinstance(call, dict)] if isinstance(calls, list) else []


def _convert_message(message: Row, options: RowOptions, outcome: RowOutcome) -> None:
    if message.get("audio"):
        raise Dropped(DropReason.AUDIO)
    if isinstance(message.get("content"), list):
        message["content"] = _joined(message["content"], options, outcome)
        outcome.change(RowChange.TEXT_PARTS_JOINED)
    if message.get("refusal") and not message.get("content"):
        message["content"] = _refusal(message.pop("refusal"), options, outcome)
    if message.get("role") == "developer" and options.developer_as_system:
        message["role"] = "system"
        outcome.change(RowChange.DEVELOPER_TO_SYSTEM)
    if "weight" in message:
        _convert_weight(message, outcome)


def _joined(parts: list[Any], options: RowOptions, outcome: RowOutcome) -> str:
    """Return the content of a message that is a list of parts, joined without a separator, as chat templates do."""
    texts = []
    for part in parts:
        kind = part.get("type") if isinstance(part, dict) else ""
        if kind in {"image_url", "input_image", "image"}:
            # Do not keep only the text: the model would learn to guess the answer.
            raise Dropped(DropReason.IMAGE)
        if kind in {"input_audio", "audio"}:
            raise Dropped(DropReason.AUDIO)
        if kind == "refusal":
            texts.append(_refusal(part.get("refusal"), options, outcome))
        elif kind in TEXT_PARTS and isinstance(part.get("text"), str):
            texts.append(part["text"])
        else:
            raise Dropped(DropReason.OTHER_PART)
    return "".join(texts)


def _refusal(text: object, options: RowOptions, outcome: RowOutcome) -> str:
    if not (options.keep_refusals and isinstance(text, str)):
        raise Dropped(DropReason.REFUSAL)
    outcome.change(RowChange.REFUSAL_AS_ANSWER)
    return text


def _convert_weight(message: Row, outcome: RowOutcome) -> None:
    weight = message["weight"]
    if message.get("role") != "assistant":
        del message["weight"]
        outcome.change(RowChange.WEIGHT_OF_OTHER_ROLE_REMOVED)
    # `True` and 1.0 equal 1 in Python, but are not integers in JSON.
    elif isinstance(weight, bool | float) and weight in {0, 1}:
        message["weight"] = int(weight)
        outcome.change(RowChange.WEIGHT_TO_INTEGER)


def _strip(row: Row, markers: Markers, outcome: RowOutcome) -> None:
    prompt, completion = row["prompt"], row["completion"]
    while markers.separator and row["prompt"].endswith(markers.separator):
        row["prompt"] = row["prompt"].removesuffix(markers.separator)
    while markers.stop and row["completion"].endswith(markers.stop):
        row["completion"] = row["completion"].removesuffix(markers.stop)
    # OpenAI's guide of that time had each completion begin with a space.
    row["completion"] = row["completion"].lstrip(" ")
    if (prompt, completion) != (row["prompt"], row["completion"]):
        outcome.change(RowChange.MARKERS_STRIPPED)


def _is_learnt(message: Row) -> bool:
    return message.get("role") == "assistant" and message.get("weight") != 0


def _take_notes(row: Row, outcome: RowOutcome) -> None:
    tools = row.get("tools") if isinstance(row.get("tools"), list) else []
    functions = [
        tool["function"] for tool in tools or [] if isinstance(tool, dict) and isinstance(tool.get("function"), dict)
    ]
    outcome.schemas = refused_schemas(row)
    conditions = {
        Note.PARALLEL_TOOL_CALLS: "parallel_tool_calls" in row,
        Note.STRICT_TOOL: any("strict" in function for function in functions),
        Note.NAME_OF_MESSAGE: any(message.get("name") and message.get("role") != "tool" for message in row["messages"]),
        Note.SEVERAL_ANSWERS: sum(map(_is_learnt, row["messages"])) > 1,
        Note.SCHEMA_REFUSED: bool(outcome.schemas),
    }
    outcome.notes += [note for note, holds in conditions.items() if holds]


def _one_row_an_answer(row: Row) -> list[Row]:
    """Return a row for each trained answer, with the turns before it; no other turn of the row is trained."""
    rows = []
    for end, message in enumerate(row["messages"]):
        if _is_learnt(message):
            before = [{**m, "weight": 0} if m.get("role") == "assistant" else m for m in row["messages"][:end]]
            rows.append({**row, "messages": [*before, message]})
    return rows
