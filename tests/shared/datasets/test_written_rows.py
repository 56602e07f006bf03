"""Rows as other systems write them: each form is converted to ours, and unused keys are counted."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from shared.datasets.dataset_report import MAX_KEY_CHARACTERS, MAX_KEYS
from shared.datasets.reader import DatasetReport, read_rows
from shared.datasets.report import inspect_file
from shared.datasets.rows import Message, SyntaxSpan
from tests.support.invalid_rows import ANSWER, USER, chat, line, pair

HELLO = [Message("user", "Hi"), Message("assistant", "Hello")]
CALLED = {"role": "assistant", "content": "Let me see.", "function_call": {"name": "add", "arguments": '{"a": 1}'}}


def read(*lines: bytes) -> tuple[list[list[Message]], DatasetReport]:
    report = DatasetReport()
    rows = [row.messages for row in read_rows(lines, report)]
    assert not report.errors
    return rows, report


def test_parts_of_text_are_joined() -> None:
    parts = [{"type": "text", "text": text} for text in ("", "Hi", "there")]
    refused = [{"type": "refusal", "refusal": "No."}]
    [row], report = read(chat(USER | {"content": parts}, ANSWER | {"content": refused}))
    assert row == [Message("user", "Hi\nthere"), Message("assistant", "No.")]
    assert report.conversions == {"text parts": 1}


def test_functions_become_tools_with_made_ids() -> None:
    result = {"role": "function", "name": "add", "content": "2"}
    line = chat(USER, CALLED, result, CALLED, result, ANSWER, functions=[{"name": "add", "parameters": {}}])
    report = DatasetReport()
    [row] = read_rows([line], report)
    assert [message.role for message in row.messages] == ["user", *["assistant", "tool"] * 2, "assistant"]
    first, answer, second, again = row.messages[1:5]
    assert first.content == "Let me see."
    assert first.tool_calls == [
        {"id": "call_1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}
    ]
    assert (answer.tool_call_id, answer.content) == ("call_1", "2")
    assert second.tool_calls
    assert (second.tool_calls[0]["id"], again.tool_call_id) == ("call_2", "call_2")
    assert row.tools == [{"type": "function", "function": {"name": "add", "parameters": {}}}]
    assert report.conversions == {"functions": 1}


def test_function_may_have_nothing_to_say() -> None:
    [row], _ = read(chat(USER, CALLED, RESULT | {"content": None}, ANSWER))
    assert row[2] == Message("tool", "", tool_call_id="call_1")


def test_refusal_becomes_the_answer() -> None:
    [row], report = read(chat(USER, {"role": "assistant", "content": None, "refusal": "No."}))
    assert row == [Message("user", "Hi"), Message("assistant", "No.")]
    assert report.conversions == {"refusal": 1}


NOT_TO_LEARN: list[dict[str, Any]] = [
    *({name: value} for name in ("train", "training", "trainable", "loss", "loss_scale", "loss_mask")
      for value in (False, 0, 0.0, "False", "no")),
    *({name: value} for name in ("mask", "masked") for value in (True, 1, "true")),
]  # fmt: skip


@pytest.mark.parametrize("flag", NOT_TO_LEARN)
def test_answer_that_is_marked_as_not_to_learn_weighs_nothing(flag: dict[str, Any]) -> None:
    [row], report = read(chat(USER, ANSWER | flag, USER, ANSWER))
    assert [turn.weight for turn in row] == [None, 0, None, None]
    assert (report.conversions, report.unused_keys) == ({"answers not to learn": 1}, {})


def test_answer_that_is_marked_as_to_learn_is_learnt() -> None:
    for flag in ({"train": True}, {"loss": 1}, {"loss_scale": 1.0}, {"masked": False}, {"mask": "no"}, {"loss": None}):
        [row], report = read(chat(USER, ANSWER | flag))
        assert ([turn.weight for turn in row], report.conversions, report.unused_keys) == ([None, None], {}, {})


@pytest.mark.parametrize("flag", [{"loss": 0.37}, {"loss_scale": [0.0, 1.0]}, {"mask": "User"}, {"train": "later"}])
def test_flag_of_another_meaning_is_counted_as_not_used(flag: dict[str, Any]) -> None:
    assert read(chat(USER, ANSWER | flag))[1].unused_keys == {f"messages[].{next(iter(flag))}": 1}


def test_system_of_text_parts_is_learnt_and_any_other_list_is_counted() -> None:
    parts = [{"type": "text", "text": "Be"}, {"type": "text", "text": "short.", "cache_control": {"type": "ephemeral"}}]
    [row], report = read(chat(USER, ANSWER, system=parts))
    assert (row[0].role, row[0].content) == ("system", "Be\nshort.")
    assert (dict(report.conversions), dict(report.unused_keys)) == ({"text parts": 1}, {"system[].cache_control": 1})
    for other in ([1], [{"type": "image"}], [{"text": "Be short."}, {"type": "text"}]):
        [row], report = read(chat(USER, ANSWER, system=other))
        assert (row[0].role, dict(report.unused_keys)) == ("user", {"system": 1})


@pytest.mark.parametrize("role", ["system", "developer"])
def test_system_turn_may_be_empty(role: str) -> None:
    [row], _ = read(chat({"role": role, "content": ""}, USER, ANSWER))
    assert row[0] == Message(role, "")


def test_unused_keys_are_counted_by_row() -> None:
    noted = [USER | {"audio": {"id": "a"}}, ANSWER | {"audio": {"id": "b"}, "annotations": [], "refusal": None}]
    rows, report = read(
        pair(source="web", number=3), pair(source="web"), chat(*noted, source=None, tags=[]), chat(USER, ANSWER)
    )
    assert rows == [HELLO] * 4
    assert report.unused_keys == {"source": 2, "number": 1, "messages[].audio": 1}


@pytest.mark.parametrize("metadata", [{"context": {"page": 3}}, {"input": ["x"]}, {"context": "page 3"}])
def test_metadata_under_a_known_name_is_counted_as_not_used(metadata: dict[str, Any]) -> None:
    rows, report = read(chat(USER, ANSWER, **metadata))
    assert rows == [HELLO]
    assert report.unused_keys == dict.fromkeys(metadata, 1)


PART = {"type": "text", "text": "Hi"}
CALL = {"name": "add", "arguments": "{}"}
RESULT = {"role": "function", "name": "add", "content": "2"}
SPAN = {"start": 0, "end": 2, "weight": 2}
TOOL = {"type": "function", "function": {"name": "add", "parameters": {}, "strict": None, "note": ""}}


@pytest.mark.parametrize(
    ("line", "unused"),
    [
        (chat(USER | {"content": [PART | {"image_url": {"url": "data:"}}]}, ANSWER), "messages[].content[].image_url"),
        (chat(USER, ANSWER | {"function_call": CALL | {"why": "x"}}), "messages[].function_call.why"),
        (chat(USER, ANSWER | {"function_call": CALL}, RESULT | {"tool_call_id": "7"}, ANSWER), "messages[].tool_call_id"),
        (chat(USER | {"tool_call_id": "7"}, ANSWER), "messages[].tool_call_id"),
        (chat(USER | {"weight": 1}, ANSWER), "messages[].weight"),
        (chat(USER, ANSWER, tools=[{"function": {"name": "sum", "x": 1}}, TOOL]), "tools[].function.x"),
        (chat(USER, ANSWER, tools=[TOOL | {"cost": 2}]), "tools[].cost"),
        (chat(USER, ANSWER, syntax_spans=[SPAN, SPAN | {"note": "x"}]), "syntax_spans[].note"),
        (chat(USER, ANSWER, syntax_spans=[SPAN | {"kind": "keyword"}]), "syntax_spans[].kind"),
        (pair(interruption_decision={"stop": True}), "interruption_decision"),
        (pair(agent_trust_score=0.5), "agent_trust_score"),
        (line({"turns": [USER | {"tool_call_id": "7"}, ANSWER]}), "turns[].tool_call_id"),
        (line({"turns": [USER | {"content": [PART | {"x": 1}]}, ANSWER]}), "turns[].content[].x"),
    ],
)  # fmt: skip
def test_every_part_that_is_not_used_is_reported(line: bytes, unused: str) -> None:
    assert read(line)[1].unused_keys == {unused: 1}


def test_parts_that_say_nothing_are_not_reported() -> None:
    turns = [USER | {"content": [PART | {"image_url": None, "refusal": None}], "tool_call_id": ""}, ANSWER]
    assert not read(chat(*turns, syntax_spans=[SPAN | {"note": []}], input=[], response_mode="code_only"))[
        1
    ].unused_keys


def test_spans_with_other_keys_are_used() -> None:
    [row] = read_rows([chat(USER, ANSWER, syntax_spans=[SPAN | {"note": "x"}])])
    assert row.syntax_spans == [SyntaxSpan(0, 2, 2.0)]


def test_context_that_a_turn_says_is_used() -> None:
    assert not read(chat(USER, ANSWER, context="Hi"))[1].unused_keys


def test_number_and_length_of_unused_keys_are_bounded() -> None:
    _, report = read(*(pair(**{f"key {number}": 1}) for number in range(MAX_KEYS + 5)), pair(**{"x" * 1_000: 1}))
    assert len(report.unused_keys) == MAX_KEYS + 1
    assert report.unused_keys["(other)"] == 6
    assert max(map(len, read(pair(**{"x" * 1_000: 1}))[1].unused_keys)) == MAX_KEY_CHARACTERS


def test_data_report_names_what_is_not_used_and_what_is_converted(tmp_path: Path) -> None:
    path, held_out = tmp_path / "rows.jsonl", tmp_path / "validation.jsonl"
    path.write_bytes(b"\n".join([pair(source="web"), chat(USER, CALLED, ANSWER)]))
    held_out.write_bytes(pair(prompt="new", number=7))
    report = inspect_file(path, validation=held_out)
    assert report.training.unused_keys == {"source": 1}
    calls = (
        "1 row calls a tool but has no `tools`, which a request would send (ROW_TOOLS_MISSING): "
        "in line 2, messages[1].tool_calls[0].function.name is 'add', and the row has no `tools`."
    )
    assert report.warnings == [
        "Keys of rows that are not used: source (1).",
        "1 row has functions in OpenAI's older form, which are read as tools and their calls.",
        calls,
        "Keys of validation rows that are not used: number (1).",
    ]
    assert report.notes[:4] == report.warnings


def test_deep_and_huge_values_are_rows_or_reasons() -> None:
    lines = []
    for depth in (200, 900, 5_000):
        nested = '{"a":' * depth + "1" + "}" * depth
        for arguments in (nested, json.dumps(nested), f'{{"a": {"9" * depth}}}', f'{{"a": 1e{depth}}}'):
            call = f'{{"role": "assistant", "tool_calls": [{{"function": {{"name": "f", "arguments": {arguments}}}}}]}}'
            lines.append(f'{{"messages": [{json.dumps(USER)}, {call}]}}')
        lines += [f'{{"prompt": "Hi", "response": "Hello", "x": {nested}}}', f'{{"messages": {"[" * depth}']
    report = DatasetReport()
    rows = list(read_rows([line.encode() for line in lines], report))
    assert len(rows) + report.error_count == len(lines)
