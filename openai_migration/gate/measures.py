"""Measures that compare two answers to one prompt: labels, similarity, and formats that a program relies on."""

from __future__ import annotations

import json
import unicodedata
from collections import Counter
from collections.abc import Callable
from typing import Any

from rapidfuzz import fuzz

from openai_migration.gate.recorded import GateAnswer, RecordedPrompt
from shared.errors import MensError
from shared.graders.checks import Schema, is_json, parse_json, tool_calls_are_valid, tool_calls_equal
from shared.graders.types import ExpectedCall

FINISHED = frozenset({"stop", "tool_calls", "function_call"})
LENGTH_RATIO = 2.0
"""An answer between half and twice the recorded length counts as equally long."""

Measure = Callable[[RecordedPrompt, GateAnswer], float | None]
"""A function that scores an answer from 0 to 1; it returns None if the measure does not apply to the prompt."""


def resemblance(answer: GateAnswer, other: GateAnswer) -> float:
    """Return how similar two answers are as strings, from 0 to 1: rapidfuzz's ``fuzz.ratio`` over 100."""
    return float(fuzz.ratio(answer.spoken, other.spoken)) / 100


def matches_label(answer: GateAnswer, label: GateAnswer) -> dict[str, float]:
    """Return how well an answer matches the answer of a validation row, by the kind of the label.

    Returns:
        ``label:tool_calls``: the calls' names and arguments; ``label:json``: the share of equal fields; otherwise
        ``label:exact``: the strings, without surrounding white space.
    """
    if label.tool_calls:
        return {"label:tool_calls": float(tool_calls_equal(answer.tool_calls, _expected(label)))}
    expected = _json_object(label.text)
    if expected is not None:
        actual = _json_object(answer.text) or {}
        equal = sum(name in actual and actual[name] == value for name, value in expected.items())
        return {"label:json": equal / len(expected.keys() | actual.keys()) if expected or actual else 1.0}
    return {"label:exact": float(answer.text.strip() == label.text.strip())}


def same_calls(answer: GateAnswer, other: GateAnswer) -> float:
    """Return the agreement of two answers' tool calls, from 0 to 1.

    Returns:
        0 unless both call the same functions in the same order; otherwise the share of all arguments that both have, by
        name, with equal JSON. A call without arguments counts as one argument.
    """
    ours, theirs = ([_call(call) for call in side.tool_calls] for side in (answer, other))
    if [name for name, _ in ours] != [name for name, _ in theirs]:
        return 0.0
    equal = total = 0
    for (_, mine), (_, their_arguments) in zip(ours, theirs, strict=True):
        names = mine.keys() | their_arguments.keys()
        equal += sum(mine.get(name) == their_arguments.get(name) for name in names) if names else 1
        total += len(names) or 1
    return equal / total if total else 1.0


def _call(call: dict[str, Any]) -> tuple[str, dict[str, str]]:
    """Return a call's function, and its arguments' JSON strings by name; arguments that are not an object count as one
    without a name.
    """
    function = call.get("function") or {}
    text = str(function.get("arguments") or "{}")
    arguments = _json_object(text)
    # As strings, because in Python 1, 1.0 and True are equal.
    values = (
        {"": text}
        if arguments is None
        else {name: json.dumps(value, sort_keys=True) for name, value in arguments.items()}
    )
    return str(function.get("name")), values


def _expected(label: GateAnswer) -> list[ExpectedCall]:
    functions = [call.get("function") or {} for call in label.tool_calls]
    return [
        ExpectedCall(name=str(function.get("name")), arguments=_json_object(str(function.get("arguments"))))
        for function in functions
    ]


def _json_object(text: str) -> dict[str, Any] | None:
    try:
        value = parse_json(text)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


def json_valid(prompt: RecordedPrompt, answer: GateAnswer) -> float | None:
    """Score whether the answer is JSON, if JSON was requested or the recorded answer is an object or a list."""
    is_requested = _format(prompt).get("type") in {"json_object", "json_schema"}
    if not is_requested and not (prompt.answer.text.strip()[:1] in {"{", "["} and is_json(prompt.answer.text)):
        return None
    return float(is_json(answer.text))


def schema_valid(prompt: RecordedPrompt, answer: GateAnswer) -> float | None:
    """Score whether the answer fits the requested JSON Schema."""
    schema = (_format(prompt).get("json_schema") or {}).get("schema")
    if not isinstance(schema, dict):
        return None
    try:
        return float(Schema(schema).accepts_text(answer.text))
    except MensError:
        # A schema that is invalid here cannot judge; the installation reports it when it is requested.
        return None


def tool_calls_valid(prompt: RecordedPrompt, answer: GateAnswer) -> float | None:
    """Score whether the answer calls tools of the request with arguments that fit their schemas, if the recorded answer
    calls any.
    """
    if not prompt.answer.tool_calls:
        return None
    tools = [*(prompt.request.get("tools") or ())]
    tools += [{"function": function} for function in prompt.request.get("functions") or ()]
    try:
        return float(bool(answer.tool_calls) and tool_calls_are_valid(answer.tool_calls, tools))
    except MensError:
        return None


def finished(_: RecordedPrompt, answer: GateAnswer) -> float | None:
    """Score whether the answer ended normally and was not cut off."""
    return float(answer.finish_reason in FINISHED) if answer.finish_reason else None


def length(prompt: RecordedPrompt, answer: GateAnswer) -> float | None:
    """Score whether the answer is between half and twice as long as the recorded one."""
    longer, shorter = sorted((len(prompt.answer.spoken), len(answer.spoken)), reverse=True)
    return float(longer <= LENGTH_RATIO * max(shorter, 1))


def writing_system(prompt: RecordedPrompt, answer: GateAnswer) -> float | None:
    """Score whether the answer uses the writing system of the recorded answer; None if that answer has no letters."""
    expected = _script(prompt.answer.text)
    return float(_script(answer.text) == expected) if expected else None


def _script(text: str) -> str:
    """Return the writing system of most letters, as the first word of their Unicode names: LATIN, CYRILLIC, CJK …"""
    names = Counter(unicodedata.name(character, "").partition(" ")[0] for character in text if character.isalpha())
    return names.most_common(1)[0][0] if names else ""


def _format(prompt: RecordedPrompt) -> dict[str, Any]:
    response_format = prompt.request.get("response_format")
    return response_format if isinstance(response_format, dict) else {}


PAIRED: dict[str, Measure] = {
    "json_valid": json_valid,
    "schema_valid": schema_valid,
    "tool_calls_valid": tool_calls_valid,
    "finished": finished,
}
"""Format measures in which the new model must not be worse than the old one."""
ALIKE: dict[str, tuple[Measure, float]] = {"writing_system": (writing_system, 0.95), "length": (length, 0.8)}
"""Format measures that compare with the recorded answer, and the minimum share of answers that must match it; a larger
margin lowers the share.
"""
SHOWN_ONLY = frozenset({"length"})
"""Measures that are only shown: a shorter answer, for example, may be better."""
