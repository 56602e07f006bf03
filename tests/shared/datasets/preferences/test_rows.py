"""Preference rows: every form in use, and every fault with its code and field."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.datasets.preferences.rows import as_rows, parse_chosen, parse_pair
from shared.datasets.rows import RowError
from tests.support.preference_rows import FORMS, answer, openai_row, plain_row, trl_row, user

TOOL = {"type": "function", "function": {"name": "rain", "parameters": {"type": "object", "properties": {}}}}
CALL = {"id": "1", "type": "function", "function": {"name": "rain", "arguments": "{}"}}


def encode(row: Any) -> bytes:
    return json.dumps(row).encode()


def fault(row: Any) -> tuple[str, str]:
    with pytest.raises(RowError) as found:
        parse_pair(row if isinstance(row, bytes) else encode(row))
    return str(found.value.code), found.value.field


@pytest.mark.parametrize("form", FORMS)
def test_each_form_is_the_same_two_chats(form: Any) -> None:
    chosen, rejected = as_rows(parse_pair(encode(form(rating=4, category="tone"))).record, 7)
    assert [(turn.role, turn.content) for turn in chosen.messages] == [("user", "Why?"), ("assistant", "Because.")]
    assert [turn.content for turn in rejected.messages] == ["Why?", "No."]
    assert (chosen.line, chosen.rating, rejected.category) == (7, 4, "tone")


def test_older_names_of_openais_answers_are_read() -> None:
    row = {
        "input": {"messages": [user("a")]},
        "preferred_completion": [answer("b")],
        "non_preferred_completion": [answer("c")],
    }
    assert parse_chosen(encode(row), 1).messages[-1].content == "b"


def test_earlier_answers_of_the_prompt_are_not_learnt() -> None:
    row = trl_row()
    row["prompt"] = [user("a"), answer("b", train=True), user("c")]
    assert [turn.weight for turn in parse_chosen(encode(row), 1).messages] == [None, 0, None, None]


def test_tools_calls_and_a_system_text_are_kept() -> None:
    row = {
        "prompt": [user("a")],
        "chosen": [answer("", tool_calls=[CALL])],
        "rejected": [answer("no")],
        "tools": [TOOL],
    }
    chosen, rejected = as_rows(parse_pair(encode(row)).record, 1)
    assert chosen.tools == rejected.tools == [TOOL]
    assert chosen.messages[-1].tool_calls == [CALL]
    assert parse_chosen(encode(plain_row(system="Be brief.")), 1).messages[0].role == "system"


def test_other_keys_with_a_value_are_named() -> None:
    assert parse_pair(encode(plain_row(score_chosen=3, note="", number="x"))).unused_keys == ["score_chosen", "number"]


@pytest.mark.parametrize(
    ("row", "code", "field"),
    [
        (b"", "ROW_BLANK", ""),
        (b"{", "ROW_NOT_JSON", ""),
        (b"\xff", "ROW_NOT_UTF8", ""),
        (b"[1]", "ROW_NOT_OBJECT", ""),
        (b'{"prompt":"' + b"x" * 1_000_000 + b'"}', "ROW_TOO_LONG", ""),
        ({"x": 1}, "ROW_FIELD_MISSING", ""),
        ({"messages": [user("a"), answer("b")]}, "ROW_METHOD_MISMATCH", ""),
        ({"prompt": "a", "response": "b"}, "ROW_METHOD_MISMATCH", ""),
        ({"prompt": "a", "completion": "b", "label": True}, "ROW_METHOD_MISMATCH", ""),
        ({"prompt": "a", "chosen": "b"}, "ROW_FIELD_MISSING", "rejected"),
        ({"chosen": "a", "rejected": "b"}, "ROW_FIELD_MISSING", "prompt"),
        (openai_row() | {"input": None}, "ROW_FIELD_MISSING", "input"),
        (openai_row() | {"input": "a"}, "ROW_FIELD_TYPE", "input"),
        (openai_row() | {"input": {}}, "ROW_FIELD_MISSING", "input.messages"),
        (openai_row() | {"input": {"messages": []}}, "ROW_FIELD_MISSING", "input.messages"),
        (openai_row() | {"input": {"messages": [{"role": "boss", "content": "a"}]}}, "ROW_ROLE_UNKNOWN", "input.messages[0].role"),
        (openai_row() | {"non_preferred_output": [answer("")]}, "ROW_ANSWER_EMPTY", "non_preferred_output[0].content"),
        (openai_row() | {"preferred_output": []}, "ROW_ANSWER_COUNT", "preferred_output"),
        (openai_row() | {"preferred_output": [answer("a"), answer("b")]}, "ROW_ANSWER_COUNT", "preferred_output"),
        (trl_row() | {"rejected": [user("a")]}, "ROW_ANSWER_ROLE", "rejected[0].role"),
        (trl_row() | {"rejected": [3]}, "ROW_FIELD_TYPE", "rejected[0]"),
        (trl_row() | {"rejected": "No."}, "ROW_FIELD_TYPE", "prompt"),
        (trl_row() | {"prompt": [user("a"), answer("b")]}, "ROW_PROMPT_ENDS_WITH_ANSWER", "prompt[1].role"),
        ({"chosen": [user("a"), answer("x")], "rejected": [user("b"), answer("y")]}, "ROW_PROMPTS_DIFFER", "rejected"),
        ({"chosen": [user("a"), answer("x")], "rejected": [user("a"), answer("y"), user("z")]}, "ROW_PROMPTS_DIFFER", "rejected"),
        ({"chosen": [user("a"), answer("x")], "rejected": [user("a"), answer("x")]}, "ROW_ANSWERS_EQUAL", "rejected"),
        (plain_row(chosen="No.", rejected=" No.\n"), "ROW_ANSWERS_EQUAL", "rejected"),
        (plain_row(rating=9), "ROW_RATING_RANGE", "rating"),
        (trl_row(tools=[{"type": "function", "function": {}}]), "ROW_TOOL_INVALID", None),
        (trl_row() | {"chosen": [answer("x", tool_calls=[{}])]}, "ROW_TOOL_CALL_INVALID", None),
    ],
)  # fmt: skip
def test_a_fault_has_a_code_and_the_rows_own_field(row: Any, code: str, field: str | None) -> None:
    found = fault(row)
    assert found[0] == code
    assert field is None or found[1] == field


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.sampled_from(["", "a", "user", "assistant", "x y"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["role", "content", "messages", "tools", "name", "tool_calls", "weight"]), inner, max_size=3
        )
    ),
    max_leaves=8,
)
KEYS = [
    "prompt",
    "chosen",
    "rejected",
    "input",
    "preferred_output",
    "non_preferred_output",
    "system",
    "tools",
    "rating",
    "label",
]
TURN = st.fixed_dictionaries({"role": st.sampled_from(["user", "assistant", "tool", "system"]), "content": JSON})


@given(st.dictionaries(st.sampled_from(KEYS), JSON | st.lists(TURN, max_size=3), max_size=6) | JSON)
def test_any_json_line_is_a_row_or_has_a_code(row: Any) -> None:
    try:
        found = parse_pair(encode(row))
    except RowError as error:
        assert error.code
        assert error.reason
    else:
        chosen, rejected = as_rows(found.record, 1)
        assert chosen.messages[:-1] == rejected.messages[:-1]
        assert chosen.messages[-1] != rejected.messages[-1]


@given(st.binary(max_size=60))
def test_any_bytes_are_a_row_or_have_a_code(line: bytes) -> None:
    with pytest.raises(RowError):
        parse_pair(line)
