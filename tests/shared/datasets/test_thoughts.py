"""Thoughts of answers in rows: their field names, the turns that may have them, and how they are compared."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest

from shared.datasets.conversation_text import written
from shared.datasets.dataset_report import DatasetReport
from shared.datasets.plain_chats import read_blocks
from shared.datasets.reader import Message, read_records
from shared.datasets.row_validation import parse_row
from shared.datasets.rows import RowCode, RowError

QUESTION = {"role": "user", "content": "One?"}


def line(*turns: dict[str, Any]) -> bytes:
    return json.dumps({"messages": list(turns)}).encode()


def answer(**more: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": "1", **more}


@pytest.mark.parametrize(
    "thoughts",
    [
        {"reasoning_content": "hm"},
        {"reasoning": "hm"},
        {"thinking": "hm"},
        {"reasoning": "hm", "reasoning_content": "hm", "thinking": None},
        {"reasoning": "", "reasoning_content": "hm", "thinking": "hm"},
    ],
)
def test_every_name_of_thoughts_is_read(thoughts: dict[str, Any]) -> None:
    report = DatasetReport()
    [(_, record)] = read_records(io.BytesIO(line(QUESTION, answer(**thoughts))), report)
    assert record.messages == [Message("user", "One?"), Message("assistant", "1", reasoning_content="hm")]
    assert not report.unused_keys
    assert set(report.conversions) == ({"thoughts"} if any(map(thoughts.get, ("reasoning", "thinking"))) else set())


def test_what_is_not_text_is_an_unused_key() -> None:
    report = DatasetReport()
    [(_, record)] = read_records(io.BytesIO(line(QUESTION, answer(reasoning={"effort": "low"}, thinking=True))), report)
    assert record.messages == [Message("user", "One?"), Message("assistant", "1")]
    assert set(report.unused_keys) == {"messages[].reasoning", "messages[].thinking"}


@pytest.mark.parametrize(
    ("turns", "code", "words"),
    [
        ([QUESTION, answer(reasoning="a", thinking="b")], RowCode.ROW_FIELD_CONFLICT, "different thoughts"),
        ([QUESTION, answer(reasoning_content="a", reasoning="b")], RowCode.ROW_FIELD_CONFLICT, "different thoughts"),
        ([QUESTION | {"reasoning_content": "a"}, answer()], RowCode.ROW_FIELD_CONFLICT, "only an assistant"),
        (
            [QUESTION, {"role": "assistant", "content": "<think>a</think>1", "reasoning_content": "a"}],
            RowCode.ROW_FIELD_CONFLICT,
            "in this field and in its content",
        ),
        ([QUESTION, answer(reasoning_content=["a"])], RowCode.ROW_FIELD_TYPE, "reasoning_content"),
        ([QUESTION, {"role": "assistant", "reasoning_content": "a"}], RowCode.ROW_ANSWER_EMPTY, "content is empty"),
    ],
)
def test_refusals(turns: list[dict[str, Any]], code: RowCode, words: str) -> None:
    with pytest.raises(RowError, match=words) as refused:
        parse_row(line(*turns), 1)
    assert refused.value.code == code


def test_empty_thoughts_of_a_merged_schema_are_nobodys() -> None:
    turns = [QUESTION | {"reasoning_content": ""}, answer(reasoning_content=None)]
    assert parse_row(line(*turns), 1).messages[0].reasoning_content == ""
    # Nulls are read by the block, as missing keys are.
    report = DatasetReport()
    nulls = [turn | dict.fromkeys(("reasoning_content", "reasoning", "thinking")) for turn in (QUESTION, answer())]
    [block] = read_blocks(io.BytesIO((line(*nulls) + b"\n") * 3), report)
    assert getattr(block, "contents", None) == ["One?", "1"] * 3


def test_rows_that_differ_in_thoughts_are_not_duplicates() -> None:
    plain, thoughtful = (
        [Message("user", "One?"), Message("assistant", "1", reasoning_content=one)] for one in (None, "hm")
    )
    assert written(plain) == "<user> One? <assistant> 1"
    assert written(thoughtful) == "<user> One? <thoughts> hm <assistant> 1"
