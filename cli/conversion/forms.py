"""Converts rows in other programs' forms to rows of chats. Parts of a row without a place in a chat are named, never
left out silently.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import msgspec

from cli.conversion.chat_markup import to_turns
from cli.conversion.content_blocks import system_of_blocks, tools_of_blocks, turns_of_blocks
from cli.conversion.logged_requests import turns_of_log
from cli.conversion.outcomes import Dropped, DropReason, Row, RowChange, RowOutcome
from cli.conversion.reading import EMPTY, FLAG_KEYS, Reading, Tags
from shared.datasets.forms.flags import FLAGS, ROW_FLAGS, is_excluded
from shared.datasets.forms.recognition import (
    ANSWERS,
    COMPLETIONS,
    MEDIA,
    OWN_ROLES,
    PROMPTS,
    QUESTIONS,
    SPEAKERS,
    UTTERANCES,
    RowForm,
    speaker_of,
    turns_of,
)
from shared.datasets.forms.tools import ToolConversion, tools_of_text, translated_tools
from shared.datasets.rows import Labels, RowCode, RowError

LABELS = ("rating", "category", "difficulty", "lane", "task_family")
"""Labels that Mens knows."""
_TURN_KEYS = frozenset(
    [
        "tool_calls",
        "tool_call_id",
        "name",
        "weight",
        "function_call",
        "refusal",
        "reasoning_content",
        "reasoning",
        "thinking",
    ]
) | frozenset(FLAGS)
"""Keys of a turn that Mens' reader knows."""
_PAIR = 2


def to_chat(row: Row, form: RowForm, tags: Tags, outcome: RowOutcome, *, chosen: bool = False) -> Row:
    """Convert a row in a known form to a chat; unused parts go to ``outcome.unused_keys``.

    Args:
        chosen: take the chosen answer of a preference.

    Raises:
        Dropped: the row cannot be converted.
    """
    reading = Reading({key.lower(): value for key, value in row.items()}, tags, outcome)
    if form is RowForm.PREFERENCE and not chosen:
        raise Dropped(DropReason.PREFERENCE)
    if is_excluded("label", reading.row.get("label")):
        raise Dropped(DropReason.LABEL_FALSE)
    if any(is_excluded(name, reading.row.get(name)) for name in ROW_FLAGS):
        raise Dropped(RowCode.ROW_EXCLUDED)
    if any(reading.row.get(name) not in EMPTY for name in MEDIA):
        raise Dropped(DropReason.IMAGE)
    system = system_of_blocks(form, reading)
    turns = _with_system(_READERS[form](reading), system)
    if reading.row.get("label") is True:
        reading.used.add("label")
    chat: Row = {"messages": turns}
    if tools := _tools(reading):
        chat["tools"] = tools
    if (functions := reading.take("functions")) is not None:
        chat["functions"] = functions
    outcome.change(RowChange.FORM_TO_CHAT)
    outcome.unused_keys += sorted(
        key for key, value in reading.row.items() if key not in reading.used and value not in EMPTY
    )
    for name in LABELS:
        if name in outcome.unused_keys and _is_label(name, reading.row[name]):
            chat[name] = reading.row[name]
            outcome.unused_keys.remove(name)
    return chat


def _with_system(turns: list[Row], system: str) -> list[Row]:
    """Return the turns after a row's ``system`` content, unless they already begin with it."""
    first = turns[0] if turns else {}
    if not system or first.get("role") not in ("system", "developer"):
        return [{"role": "system", "content": system}, *turns] if system else turns
    if first.get("content") != system:
        raise Dropped(RowCode.ROW_FIELD_CONFLICT)
    return turns


def _is_label(name: str, value: Any) -> bool:
    try:
        msgspec.convert({name: value}, Labels)
    except msgspec.ValidationError:
        return False
    return True


def _tools(reading: Reading) -> list[Row] | None:
    done: set[ToolConversion] = set()
    tools = tools_of_blocks(reading)
    try:
        if isinstance(tools, str):
            tools = tools_of_text(tools, done.add)
        listed = msgspec.convert(tools, list[dict[str, Any]] | None)
        translated = translated_tools(listed, done.add)
    except msgspec.ValidationError:
        raise Dropped(RowCode.ROW_FIELD_TYPE) from None
    except RowError as error:
        raise Dropped(error.code) from None
    if done:
        reading.outcome.change(RowChange.TOOLS_TO_FUNCTIONS)
    return translated


# --- lists of turns


def _sharegpt(reading: Reading) -> list[Row]:
    listed = turns_of(reading.row)
    if listed is None:
        raise Dropped(RowCode.ROW_FIELD_MISSING)
    name, turns = listed
    reading.used.add(name)
    return [turn for written in turns for turn in _turn(written, f"{name}[]", reading)]


def _turn(written: Any, place: str, reading: Reading) -> list[Row]:
    """Convert a turn of any program to a chat turn; several calls in one turn stay in one turn."""
    if not isinstance(written, dict):
        raise Dropped(RowCode.ROW_FIELD_TYPE)
    tags = reading.tags
    speaker = written.get(tags.speaker) if tags.speaker else speaker_of(written)
    keys = (tags.utterance,) if tags.utterance else UTTERANCES
    utterance = next((written[key] for key in keys if written.get(key) is not None), None)
    role = tags.roles.get(speaker.lower()) if isinstance(speaker, str) else None
    if role is None:
        raise Dropped(RowCode.ROW_ROLE_UNKNOWN)
    read_keys = {*SPEAKERS, *keys, tags.speaker, *_TURN_KEYS}
    reading.leave_out(place, written, read_keys)
    turn: Row = {"role": role, "content": utterance}
    turn |= {key: written[key] for key in sorted(_TURN_KEYS & written.keys()) if written[key] is not None}
    if role == "function_call":
        return [_calls(utterance, reading) | {key: turn[key] for key in sorted(FLAG_KEYS & turn.keys())}]
    if role == "tool" and "tool_call_id" not in turn and reading.open_calls:
        turn["tool_call_id"] = reading.open_calls.pop(0)
    if role == "tool" and isinstance(utterance, dict | list) and not _are_parts(utterance):
        turn["content"] = msgspec.json.encode(utterance).decode()
    return [turn]


def _are_parts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(part, dict) and "type" in part for part in value)


def _calls(value: Any, reading: Reading) -> Row:
    """Convert a turn that consists only of one or more calls: JSON in a string, or the object itself."""
    try:
        calls = msgspec.json.decode(value) if isinstance(value, str) else value
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
        raise Dropped(RowCode.ROW_TOOL_CALL_INVALID) from None
    made = []
    for call in calls if isinstance(calls, list) else [calls]:
        function = call.get("function", call) if isinstance(call, dict) else None
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            raise Dropped(RowCode.ROW_TOOL_CALL_INVALID)
        reading.calls += 1
        name = f"call_{reading.calls}"
        reading.open_calls.append(name)
        arguments = function.get("arguments", function.get("parameters", {}))
        made.append({"id": name, "type": "function", "function": {"name": function["name"], "arguments": arguments}})
    return {"role": "assistant", "content": None, "tool_calls": made}


# --- questions and answers


def _alpaca(reading: Reading) -> list[Row]:
    turns: list[Row] = []
    history = reading.take("history")
    if history is not None:
        if not isinstance(history, list) or not all(isinstance(turn, list) and len(turn) == _PAIR for turn in history):
            raise Dropped(RowCode.ROW_FIELD_TYPE)
        turns = [turn for question, answer in history for turn in _exchange(question, answer)]
        reading.outcome.change(RowChange.HISTORY_TO_TURNS)
    return [*turns, *_pair(reading)]


def _pair(reading: Reading) -> list[Row]:
    """Return question and answer, under the first of their names; the input or context follows the question on a line
    of its own.
    """
    question = reading.take_text(*QUESTIONS)
    about = [reading.take_text(name) for name in ("input", "context") if name not in reading.used]
    answer = reading.take_text(*(name for name in ANSWERS if name not in reading.used))
    if not question or not answer:
        raise Dropped(RowCode.ROW_FIELD_MISSING)
    return _exchange("\n".join([question, *filter(None, about)]), answer)


def _exchange(question: Any, answer: Any) -> list[Row]:
    return [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]


def _prompt_completion(reading: Reading) -> list[Row]:
    prompt, completion = reading.take(*PROMPTS), reading.take(*COMPLETIONS)
    return [*_turns_of(prompt, "user", reading), *_turns_of(completion, "assistant", reading)]


def _turns_of(value: Any, role: str, reading: Reading) -> list[Row]:
    """Return a string, a turn or a list of turns as turns."""
    if isinstance(value, str):
        return [{"role": role, "content": value}]
    if isinstance(value, dict):
        return _turn(value, role, reading)
    if isinstance(value, list):
        return [turn for written in value for turn in _turn(written, f"{role}[]", reading)]
    raise Dropped(RowCode.ROW_FIELD_MISSING if value is None else RowCode.ROW_FIELD_TYPE)


def _kto(reading: Reading) -> list[Row]:
    return _messages(reading) if turns_of(reading.row) else _prompt_completion(reading)


def _preference(reading: Reading) -> list[Row]:
    """Return the chosen answer with its prompt: the preceding turns in the same list, turns in another field, or a prompt
    field.
    """
    chosen = reading.take("chosen")
    reading.take("rejected")
    reading.outcome.change(RowChange.PREFERRED_ANSWER_TAKEN)
    if isinstance(chosen, str) and "prompt" not in reading.row and (divided := to_turns(chosen)):
        return divided
    answer = _turns_of(chosen, "assistant", reading)
    is_whole = len(answer) > 1 and answer[0]["role"] in ("user", "system")
    listed = turns_of(reading.row)
    if listed and not is_whole:
        return [*_sharegpt(reading), *answer]
    if listed and listed[1] == chosen:  # UltraFeedback's pairs have the chosen chat a second time
        reading.used.add(listed[0])
    if is_whole:
        for name in ("prompt", "question"):  # equal to the first of these turns
            if name in reading.row and any(reading.row[name] == turn["content"] for turn in answer):
                reading.used.add(name)
        if "prompt" not in reading.row or "prompt" in reading.used:
            return answer
    prompt = reading.take(*QUESTIONS)
    return [*_turns_of(prompt, "user", reading), *answer]


def _text(reading: Reading) -> list[Row]:
    turns = to_turns(reading.take_text("text", "content"))
    if turns is None:
        raise Dropped(DropReason.TEXT_WITHOUT_TURNS)
    reading.outcome.change(RowChange.TEXT_TO_TURNS)
    return turns


def _messages(reading: Reading) -> list[Row]:
    if (listed := turns_of(reading.row)) is None:
        return _pair(reading)
    reading.used.add(listed[0])
    if all(turn.get("role") in OWN_ROLES for turn in listed[1]):
        return listed[1]
    reading.used.discard(listed[0])
    return _sharegpt(reading)


_READERS: dict[RowForm, Callable[[Reading], list[Row]]] = {
    RowForm.MESSAGES: _messages,
    RowForm.SHAREGPT: _sharegpt,
    RowForm.ALPACA: _alpaca,
    RowForm.QUESTION_ANSWER: _pair,
    RowForm.PROMPT_COMPLETION: _prompt_completion,
    RowForm.PREFERENCE: _preference,
    RowForm.KTO: _kto,
    RowForm.LOG: turns_of_log,
    **{form: partial(turns_of_blocks, form) for form in (RowForm.ANTHROPIC, RowForm.BEDROCK, RowForm.GEMINI)},
    RowForm.TEXT: _text,
}
