"""Rows of rated answers: every form is read as the same chat, and every fault has its code and field."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.datasets.preferences.rated import RatedRecord, parse_rated, parse_rated_row
from shared.datasets.rows import RowError
from tests.support.preference_rows import RATED_FORMS, answer, plain_row, rated_row, user


def encode(row: object) -> bytes:
    return json.dumps(row).encode()


@pytest.mark.parametrize("form", RATED_FORMS)
def test_every_form_is_read_as_the_same_chat(form: Any) -> None:
    record = parse_rated(encode(form("Why?", "Because.", label=False, rating=4))).record
    assert isinstance(record, RatedRecord)
    assert (record.is_good, record.rating) == (False, 4)
    assert [(turn.role, turn.content) for turn in record.conversation()] == [
        ("user", "Why?"),
        ("assistant", "Because."),
    ]
    assert [turn.content for turn in record.prompt_turns] == ["Why?"]
    assert [turn.content for chat in record.chats() for turn in chat.conversation()] == ["Why?", "Because."]


def test_only_the_last_answer_is_learnt() -> None:
    turns = [user("a"), answer("b"), user("c"), answer("d", weight=0)]
    assert [turn.weight for turn in parse_rated_row(encode({"messages": turns, "label": True}), 1).messages] == [
        *(None, 0, None, None)
    ]


def test_a_system_text_begins_a_plain_row() -> None:
    assert parse_rated_row(encode(rated_row(system="Be brief.")), 1).messages[0].role == "system"


def test_other_keys_are_named() -> None:
    assert parse_rated(encode(rated_row(note="x", nothing=None))).unused_keys == ["note"]


@pytest.mark.parametrize(
    ("row", "code", "field"),
    [
        (plain_row(), "ROW_METHOD_MISMATCH", "label"),
        ({"prompt": "a", "completion": "b"}, "ROW_METHOD_MISMATCH", "label"),
        ({"messages": [user("a"), answer("b")]}, "ROW_METHOD_MISMATCH", "label"),
        ({"x": 1}, "ROW_FIELD_MISSING", "label"),
        (rated_row(label=1), "ROW_LABEL_INVALID", "label"),
        (rated_row(label="yes"), "ROW_LABEL_INVALID", "label"),
        ({"prompt": "a", "label": True}, "ROW_FIELD_MISSING", "completion"),
        ({"completion": "a", "label": True}, "ROW_FIELD_MISSING", "prompt"),
        ({"prompt": [user("a")], "completion": "b", "label": True}, "ROW_FIELD_TYPE", "prompt"),
        ({"prompt": [user("a")], "completion": [], "label": True}, "ROW_ANSWER_COUNT", "completion"),
        ({"prompt": [], "completion": [answer("b")], "label": True}, "ROW_FIELD_MISSING", "prompt"),
        ({"prompt": [user("a")], "completion": [user("b")], "label": True}, "ROW_ANSWER_ROLE", "completion[0].role"),
        ({"messages": [user("a"), user("b")], "label": True}, "ROW_ANSWER_ROLE", "messages[1].role"),
        ({"messages": [answer("b")], "label": True}, "ROW_FIELD_MISSING", "messages"),
        ({"messages": [user("a"), answer("b"), answer("c")], "label": True}, "ROW_PROMPT_ENDS_WITH_ANSWER", "messages[1].role"),
        ({"messages": [user("a"), answer(3)], "label": True}, "ROW_FIELD_TYPE", "messages[1].content"),  # type: ignore[arg-type]
        ({"messages": [user("a"), answer("")], "label": True}, "ROW_ANSWER_EMPTY", "messages[1].content"),
    ],
)  # fmt: skip
def test_each_fault_has_its_code_and_place(row: dict[str, Any], code: str, field: str) -> None:
    with pytest.raises(RowError) as refused:
        parse_rated(encode(row))
    assert (refused.value.code, refused.value.field) == (code, field)


@pytest.mark.parametrize(
    ("label", "reason"),
    [
        (1, "label is 1; it must be true or false; `mens data convert --as-rated` converts it"),
        ("false", "label is 'false'; it must be true or false; `mens data convert --as-rated` converts it"),
        ("yes", "label is 'yes'; it must be true or false; `mens data convert --as-rated` converts it"),
        ("maybe", "label is 'maybe'; it must be true or false"),
    ],
)
def test_a_label_is_shown_as_it_is_written(label: object, reason: str) -> None:
    with pytest.raises(RowError) as refused:
        parse_rated(encode(rated_row(label=label)))
    assert refused.value.reason == reason


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 2) | st.sampled_from(["", "user", "assistant", "a"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["role", "content", "messages", "prompt", "completion", "label"]), inner)
    ),
    max_leaves=12,
)


@given(st.dictionaries(st.sampled_from(["prompt", "completion", "response", "messages", "label", "tools"]), VALUES))
def test_any_row_is_read_or_refused_by_code(row: dict[str, Any]) -> None:
    try:
        parse_rated(encode(row))
    except RowError as refused:
        assert refused.code.startswith("ROW_")
