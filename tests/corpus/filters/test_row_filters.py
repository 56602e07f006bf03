"""Row filters: which rows are left out, which are changed, and the parts of a row that never change."""

from __future__ import annotations

import pickle
from typing import Any

from corpus.filters.row_filters import PersonalDataFilter, SecretFilter
from corpus.verdicts import VerdictCode

KEY = "gh" + "p_" + "a1B2" * 9
PLAIN = {"prompt": "What is up?", "response": "Nothing.", "rating": 4}


def chat(*contents: str) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": content} for content in contents], "category": "support"}


def test_row_with_a_secret_is_left_out_and_the_rule_is_named() -> None:
    rows = [PLAIN, chat("a", f"use {KEY}"), chat("b"), PLAIN | {"response": KEY}]
    verdicts = SecretFilter().judge(rows)
    assert [verdict.row for verdict in verdicts] == [PLAIN, None, chat("b"), None]
    assert [verdict.code for verdict in verdicts] == [None, VerdictCode.SECRET, None, VerdictCode.SECRET]
    assert verdicts[1].reason == "github"
    assert KEY not in repr(verdicts)


def test_personal_data_is_replaced_in_all_that_was_written() -> None:
    call = {"id": "ann@example.org", "function": {"name": "mail", "arguments": '{"to": "ann@example.org"}'}}
    rows = [
        PLAIN,
        chat("I am ann@example.org", "call +49 30 901820") | {"tools": [{"x": "ann@example.org"}]},
        {"messages": [{"tool_calls": [call]}]},
    ]
    plain, written, called = PersonalDataFilter(key=b"key").judge(rows)
    assert plain.row is PLAIN
    assert plain.code is None
    assert written.code == VerdictCode.PERSONAL_DATA
    assert written.redactions == {"EMAIL": 1, "PHONE": 1}
    assert written.row
    assert written.row["tools"] == [{"x": "ann@example.org"}]
    assert "example.org" not in repr(written.row["messages"])
    assert called.row
    assert called.row["messages"][0]["tool_calls"][0]["id"] == "ann@example.org"
    assert "<EMAIL_" in called.row["messages"][0]["tool_calls"][0]["function"]["arguments"]


def test_personal_data_is_that_of_its_row_among_rows_without_texts() -> None:
    empty: dict[str, Any] = {"rating": 1, "messages": [], "id": "ann@example.org"}
    rows = [empty, chat("a", "b"), empty, empty, chat("c", "ann@example.org", "bob@example.org"), empty]
    verdicts = PersonalDataFilter(key=b"key").judge(rows)
    assert [number for number, verdict in enumerate(verdicts) if verdict.row is not rows[number]] == [4]
    assert verdicts[4].redactions == {"EMAIL": 2}
    assert verdicts[4].row
    assert verdicts[4].row["messages"][0] == {"role": "user", "content": "c"}


def test_filters_can_go_to_other_processes() -> None:
    row = chat("ann@example.org")
    personal = PersonalDataFilter()
    assert pickle.loads(pickle.dumps(personal)).judge([row]) == personal.judge([row])
    assert pickle.loads(pickle.dumps(SecretFilter())).judge([row])[0].row == row
