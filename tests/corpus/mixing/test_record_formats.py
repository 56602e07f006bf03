"""Record formats of the original become training rows; lanes by category."""

from __future__ import annotations

import json
from typing import Any

import pytest

from corpus.mixing.record_formats import RecordFormat, convert, known_lane, lane_of
from shared.datasets.row_validation import parse_row
from shared.datasets.rows import RowCode, RowError

TRACE = {"task_prompt": "Add", "tool_name": "sum", "arguments_json": "[1, 2]", "result_json": "3", "success": True}
REVIEW = {
    "prompt": "Review", "response": "Fix", "category": "bug", "severity": "high", "placement_kind": "line", "source_id": "1",
    "repository_id": "r", "pr_number": 1, "correctness_state": "likely_true", "sample_kind": "review_fix_pairs",
}  # fmt: skip


def converted(row: dict[str, Any], form: RecordFormat) -> dict[str, Any]:
    line = convert(json.dumps(row).encode(), form)
    if form is not RecordFormat.DPO:
        parse_row(line, 1)
    found: dict[str, Any] = json.loads(line)
    return found


def test_tool_trace_answers_with_its_call_or_what_followed() -> None:
    row = converted(TRACE, RecordFormat.TOOL_TRACE)
    assert row["prompt"] == "[vox_tool_supervision] Add"
    assert json.loads(row["response"]) == {"tool_name": "sum", "arguments": [1, 2], "result": 3, "success": True}
    assert (row["category"], row["lane"], row["origin"]) == ("tool_trace", "tooling", "agent")
    assert converted(TRACE | {"followup_text": "It is 3."}, RecordFormat.TOOL_TRACE)["response"] == "It is 3."
    plain = converted(TRACE | {"result_json": "done"}, RecordFormat.TOOL_TRACE)["response"]
    assert json.loads(plain)["result"] == "done"


@pytest.mark.parametrize(
    ("state", "rating"), [("confirmed_true", 5), ("likely_true", 4), ("confirmed_false", 1), ("other", None)]
)
def test_review_is_rated_by_its_state(state: str, rating: int | None) -> None:
    row = converted(REVIEW | {"correctness_state": state}, RecordFormat.REVIEW)
    assert row.get("rating") == rating
    assert "severity" not in row


def test_spoken_rows_get_their_lane_and_keep_their_own_labels() -> None:
    row = {"prompt": "helo", "response": "hello"}
    assert converted(row, RecordFormat.ASR_REFINE)["lane"] == "speech"
    assert converted(row | {"lane": "mine", "category": "c"}, RecordFormat.SPEECH_TO_CODE)["lane"] == "mine"
    assert converted(row, RecordFormat.WORKFLOW_TRACE)["category"] == "workflow_trace"
    assert converted({"chosen": "a"}, RecordFormat.DPO) == {"chosen": "a"}


@pytest.mark.parametrize(
    ("line", "code"),
    [
        (b"{", RowCode.ROW_NOT_JSON),
        (b"[]", RowCode.ROW_FIELD_TYPE),
        (b'{"task_prompt": "a"}', RowCode.ROW_FIELD_MISSING),
        (b'{"task_prompt": 1, "tool_name": "a"}', RowCode.ROW_FIELD_TYPE),
        (b'{"task_prompt": "\xff", "tool_name": "a"}', RowCode.ROW_NOT_JSON),
    ],
)
def test_bad_record_has_the_code_of_a_row(line: bytes, code: RowCode) -> None:
    with pytest.raises(RowError) as raised:
        convert(line, RecordFormat.TOOL_TRACE)
    assert raised.value.code == code


def test_lane_follows_the_category() -> None:
    assert [known_lane(name) for name in ("tool_trace", "ASR noise", "documentation", "function", None)] == [
        "tooling", "speech", "docs_qa", None, None,
    ]  # fmt: skip
    assert [lane_of("vox_x", "speech"), lane_of(None, "speech"), lane_of("", None)] == ["x", "speech", "codegen"]
