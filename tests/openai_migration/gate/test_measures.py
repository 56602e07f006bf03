"""Comparisons of two answers: labels by their kind, and formats on which a program relies."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from openai_migration.gate.measures import (
    finished,
    json_valid,
    length,
    matches_label,
    resemblance,
    same_calls,
    schema_valid,
    tool_calls_valid,
    writing_system,
)
from openai_migration.gate.recorded import GateAnswer, RecordedPrompt

TOOL = {"type": "function", "function": {"name": "find", "parameters": {"required": ["id"]}}}
SCHEMA = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "object", "required": ["a"]}}}


def call(name: str = "find", arguments: str = '{"id": 1}') -> dict[str, Any]:
    return {"id": "call_9", "type": "function", "function": {"name": name, "arguments": arguments}}


def prompt(answer: GateAnswer, **request: Any) -> RecordedPrompt:
    return RecordedPrompt("p", "validation", {"messages": [], **request}, {}, answer, [], None)


@pytest.mark.parametrize(
    ("answer", "label", "expected"),
    [
        (GateAnswer(" Yes.\n"), GateAnswer("Yes."), {"label:exact": 1}),
        (GateAnswer("yes."), GateAnswer("Yes."), {"label:exact": 0}),
        (GateAnswer('{"a": 1, "b": 2}'), GateAnswer('{"b": 2, "a": 1}'), {"label:json": 1}),
        (GateAnswer('{"a": 1, "c": 2}'), GateAnswer('{"a": 1, "b": 2}'), {"label:json": pytest.approx(1 / 3)}),
        (GateAnswer("no json"), GateAnswer('{"a": 1}'), {"label:json": 0}),
        (GateAnswer("{}"), GateAnswer("{}"), {"label:json": 1}),
        (GateAnswer(tool_calls=[call()]), GateAnswer(tool_calls=[call()]), {"label:tool_calls": 1}),
        (
            GateAnswer(tool_calls=[call(arguments='{"id": 2}')]),
            GateAnswer(tool_calls=[call()]),
            {"label:tool_calls": 0},
        ),
        (GateAnswer("I will look."), GateAnswer(tool_calls=[call()]), {"label:tool_calls": 0}),
    ],
)
def test_a_label_is_matched_by_its_kind(answer: GateAnswer, label: GateAnswer, expected: dict[str, float]) -> None:
    assert matches_label(answer, label) == expected


@given(st.text(), st.text())
def test_resemblance_is_from_0_to_1_symmetric_and_1_for_itself(text: str, other: str) -> None:
    assert resemblance(GateAnswer(text), GateAnswer(text)) == 1
    found = resemblance(GateAnswer(text), GateAnswer(other))
    assert 0 <= found <= 1
    assert found == pytest.approx(resemblance(GateAnswer(other), GateAnswer(text)))


def test_tool_calls_resemble_by_name_and_arguments_and_not_by_id() -> None:
    assert (
        resemblance(GateAnswer(tool_calls=[call() | {"id": "a"}]), GateAnswer(tool_calls=[call() | {"id": "b"}])) == 1
    )


@pytest.mark.parametrize(
    ("other", "expected"),
    [
        ([call(arguments='{ "id": 1 }') | {"id": "another"}], 1),
        ([call(arguments='{"id": 1.0}')], 0),
        ([call(arguments='{"id": 1, "why": "x"}')], 0.5),
        ([call(arguments="no json")], 0),
        ([call("search")], 0),
        ([call(), call()], 0),
        ([], 0),
    ],
)
def test_same_calls_have_the_same_functions_and_arguments(other: list[dict[str, Any]], expected: float) -> None:
    assert same_calls(GateAnswer(tool_calls=[call()]), GateAnswer("Text.", tool_calls=other)) == expected


def test_same_calls_of_functions_without_arguments() -> None:
    bare = [call(arguments=text) for text in ("", "{}")]
    assert same_calls(GateAnswer(tool_calls=bare[:1]), GateAnswer(tool_calls=bare[1:])) == 1
    assert (
        same_calls(
            GateAnswer(tool_calls=[*bare[:1], call()]),
            GateAnswer(tool_calls=[*bare[:1], call(arguments='{"id": 2}')]),
        )
        == 0.5
    )


def test_json_is_wanted_where_it_was_requested_or_given() -> None:
    given = prompt(GateAnswer('{"a": 1}'))
    assert (
        json_valid(given, GateAnswer("[]")),
        json_valid(given, GateAnswer("[")),
        json_valid(given, GateAnswer("x")),
    ) == (
        1,
        0,
        0,
    )
    assert json_valid(prompt(GateAnswer("Plain.")), GateAnswer("x")) is None
    assert json_valid(prompt(GateAnswer("cut of"), response_format={"type": "json_object"}), GateAnswer("{}")) == 1


def test_a_schema_is_held() -> None:
    asked = prompt(GateAnswer(""), response_format=SCHEMA)
    assert [schema_valid(asked, GateAnswer(json.dumps(value))) for value in ({"a": 1}, {}, [])] == [1, 0, 0]
    assert schema_valid(prompt(GateAnswer("")), GateAnswer("{}")) is None
    broken = {"type": "json_schema", "json_schema": {"schema": {"type": 5}}}
    assert schema_valid(prompt(GateAnswer(""), response_format=broken), GateAnswer("{}")) is None


def test_tools_are_called_where_they_were() -> None:
    called = prompt(GateAnswer(tool_calls=[call()]), tools=[TOOL])
    answers = [
        GateAnswer(tool_calls=[call()]),
        GateAnswer(tool_calls=[call(arguments="{}")]),
        GateAnswer("No call."),
    ]
    assert [tool_calls_valid(called, answer) for answer in answers] == [1, 0, 0]
    assert tool_calls_valid(prompt(GateAnswer("Text."), tools=[TOOL]), GateAnswer("x")) is None
    legacy = prompt(GateAnswer(tool_calls=[call()]), functions=[TOOL["function"]])
    assert tool_calls_valid(legacy, GateAnswer(tool_calls=[call()])) == 1


@pytest.mark.parametrize(
    ("recorded", "answer", "expected"),
    [
        ("Guten Tag", "Hello", 1),
        ("Привет", "Hello", 0),
        ("Привет", "Здравствуйте", 1),
        ("你好", "您好", 1),
        ("12", "x", None),
        ("Hi", "", 0),
    ],
)
def test_letters_are_of_the_same_writing_system(recorded: str, answer: str, expected: float | None) -> None:
    assert writing_system(prompt(GateAnswer(recorded)), GateAnswer(answer)) == expected


@pytest.mark.parametrize(
    ("recorded", "answer", "expected"), [(10, 20, 1), (10, 21, 0), (10, 5, 1), (10, 4, 0), (0, 0, 1), (0, 9, 0)]
)
def test_length(recorded: int, answer: int, expected: float) -> None:
    assert length(prompt(GateAnswer("x" * recorded)), GateAnswer("x" * answer)) == expected


def test_an_answer_that_was_cut_off_is_not_finished() -> None:
    reasons = ("stop", "tool_calls", "length", "content_filter")
    assert [finished(prompt(GateAnswer()), GateAnswer(finish_reason=reason)) for reason in reasons] == [1, 1, 0, 0]
    assert finished(prompt(GateAnswer()), GateAnswer()) is None
