"""The training row: every name of its fields, and what it keeps."""

from __future__ import annotations

import itertools
import json
import re
from pathlib import Path
from typing import Any

import pytest

from shared.datasets.reader import parse_row
from shared.datasets.rows import Message, RowCode, SyntaxSpan

PAIR = [Message("user", "Hi"), Message("assistant", "Hello")]
CHAT = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}]
NAMES = list(itertools.product(["prompt", "instruction"], ["response", "output", "completion"]))


def parse(**fields: Any) -> Any:
    return parse_row(json.dumps(fields).encode(), 3)


@pytest.mark.parametrize(("question", "answer"), NAMES)
def test_pair_under_every_name(question: str, answer: str) -> None:
    assert parse(**{question: "Hi", answer: "Hello"}).messages == PAIR


@pytest.mark.parametrize("name", ["messages", "turns"])
def test_chat_under_every_name(name: str) -> None:
    assert parse(**{name: CHAT}).messages == PAIR


def test_names_that_say_the_same_may_be_there_together() -> None:
    row = parse(prompt="Hi", instruction="Hi", response="Hello", output="Hello", completion="")
    assert row.messages == PAIR
    assert parse(messages=CHAT, turns=CHAT, prompt="Hi", response=" Hello\n").messages == PAIR
    assert parse(prompt=None, instruction="Hi", response=None, output=None, completion="Hello").messages == PAIR
    assert parse(prompt="", instruction="Hi", response="", output="Hello").messages == PAIR


@pytest.mark.parametrize("name", ["input", "context"])
def test_what_an_instruction_is_about_follows_it(name: str) -> None:
    row = parse(instruction="Translate:", output="Hello", **{name: "Salut"})
    assert row.messages == [Message("user", "Translate:\nSalut"), Message("assistant", "Hello")]
    assert parse(instruction="Hi", output="Hello", **{name: ""}).messages == PAIR
    assert parse(output="Hello", **{name: "Hi"}).messages == PAIR


def test_system_text_becomes_the_first_turn() -> None:
    opening = Message("system", "Be brief.")
    assert parse(system="Be brief.", prompt="Hi", response="Hello").messages == [opening, *PAIR]
    assert parse(system="Be brief.", messages=CHAT).messages == [opening, *PAIR]
    said = [{"role": "system", "content": "Be brief."}, *CHAT]
    assert parse(system="Be brief.", messages=said).messages == [opening, *PAIR]
    assert parse(system="", messages=CHAT).messages == PAIR


def test_pair_is_used_when_messages_are_empty() -> None:
    assert parse(messages=[], prompt="Hi", response="Hello").messages == PAIR


def test_row_keeps_every_field() -> None:
    labels = {
        "rating": 5, "category": "c", "difficulty": 10, "lane": "vox_codegen", "task_family": "t",
        "response_mode": "prose_only",
        "tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}],
    }  # fmt: skip
    row = parse(messages=CHAT, **labels)
    assert {name: getattr(row, name) for name in labels} == labels
    assert row.line == 3


def test_spans_reach_from_the_first_to_the_last_character_of_the_answer() -> None:
    spans = [{"start": 0, "end": 2, "weight": 2, "kind": "keyword"}, {"start": 1, "end": 2, "weight": 0}]
    row = parse(prompt="Hi", response="é😀", syntax_spans=spans)
    assert row.syntax_spans == [SyntaxSpan(0, 2, 2.0, "keyword"), SyntaxSpan(1, 2, 0.0)]


def test_row_keeps_every_field_of_a_message() -> None:
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": '{"a": [1]}'}}
    turns = [
        {"role": "user", "content": "Hi", "name": "Ann"},
        {"role": "assistant", "content": None, "tool_calls": [call], "weight": 0},
        {"role": "tool", "content": "", "tool_call_id": "1"},
        {"role": "assistant", "content": "Hello", "weight": 1},
    ]
    messages = parse(messages=turns).messages
    assert messages == [Message(**turn) for turn in turns]


@pytest.mark.parametrize("arguments", ["{}", {}, None, {"a": 1}])
def test_arguments_may_be_text_or_an_object(arguments: Any) -> None:
    call = {"function": {"name": "f", "arguments": arguments}}
    turns = [CHAT[0], {"role": "assistant", "tool_calls": [call]}]
    assert parse(messages=turns).messages[1].tool_calls == [call]


def test_last_value_of_a_repeated_key_counts() -> None:
    assert parse_row(b'{"prompt": "no", "response": "Hello", "prompt": "Hi"}', 1).messages == PAIR


def test_surrogate_pairs_and_escaped_nul_are_characters() -> None:
    row = parse_row(b'{"prompt": "\\ud83d\\ude00", "response": "a\\u0000b"}', 1)
    assert [message.content for message in row.messages] == ["😀", "a\0b"]


def test_every_row_code_is_documented_in_order() -> None:
    page = (Path(__file__).resolve().parents[3] / "docs" / "data.md").read_text()
    assert re.findall(r"^\| `(ROW_\w+)` \|", page, re.MULTILINE) == list(RowCode)
