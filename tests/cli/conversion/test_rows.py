"""OpenAI's rows as Mens's rows: one test for each row of the table; and for all rows: each is accounted for once, and
converting again changes nothing.
"""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cli.conversion.outcomes import ConvertedMethod, DropReason, Markers, Note, RowChange, RowOptions, RowOutcome
from cli.conversion.rows import convert_row
from shared.datasets.row_validation import decode_line

OF_FORMS = {
    RowChange.FORM_TO_CHAT,
    RowChange.TEXT_TO_TURNS,
    RowChange.HISTORY_TO_TURNS,
    RowChange.TOOLS_TO_FUNCTIONS,
    RowChange.NUMBER_TO_TEXT,
    RowChange.BYTE_ORDER_MARK_REMOVED,
    RowChange.BEST_AND_WORST_TAKEN,
    RowChange.FORM_TO_PAIR,
    RowChange.RATED_ANSWERS,
    RowChange.CONTRADICTING_ANSWER_DROPPED,
}
"""Changes of rows of other programs: see `test_forms.py`."""
USER = {"role": "user", "content": "Q"}
ANSWER = {"role": "assistant", "content": "A"}
CALL = {"name": "weather", "arguments": "{}"}
FUNCTION = {"name": "weather", "parameters": {"type": "object"}}
IMAGE = {"type": "image_url", "image_url": {"url": "https://example.com/cat.png"}}


def chat(*messages: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return copy.deepcopy({"messages": list(messages), **fields})


def parts(*texts: str) -> list[dict[str, Any]]:
    return [{"type": "text", "text": text} for text in texts]


def preference(name: str = "output") -> dict[str, Any]:
    answers = {f"preferred_{name}": [ANSWER], f"non_preferred_{name}": [{**ANSWER, "content": "B"}]}
    return copy.deepcopy({"input": {"messages": [USER], "tools": [], "parallel_tool_calls": True}, **answers})


CHANGED = [
    (
        chat({"role": "user", "content": parts("a", "b")}, ANSWER),
        RowOptions(),
        [chat({"role": "user", "content": "ab"}, ANSWER)],
        [RowChange.TEXT_PARTS_JOINED],
    ),
    (
        chat(
            USER,
            {"role": "assistant", "content": None, "function_call": CALL},
            {"role": "function", "name": "weather", "content": "sun"},
            {"role": "assistant", "function_call": CALL},
            functions=[FUNCTION],
            function_call="auto",
        ),
        RowOptions(),
        [
            chat(
                USER,
                {
                    "role": "assistant",
                    "content": None,
                    "tool_calls": [{"id": "call_1", "type": "function", "function": CALL}],
                },
                {"role": "tool", "name": "weather", "content": "sun", "tool_call_id": "call_1"},
                {"role": "assistant", "tool_calls": [{"id": "call_2", "type": "function", "function": CALL}]},
                tools=[{"type": "function", "function": FUNCTION}],
            )
        ],
        [RowChange.FUNCTIONS_TO_TOOLS, RowChange.FUNCTION_CALL_TO_TOOL_CALL, RowChange.FUNCTION_ROLE_TO_TOOL],
    ),
    (
        chat(USER, {**ANSWER, "weight": 1.0}),
        RowOptions(),
        [chat(USER, {**ANSWER, "weight": 1})],
        [RowChange.WEIGHT_TO_INTEGER],
    ),
    (
        chat(USER, {**ANSWER, "weight": True}),
        RowOptions(),
        [chat(USER, {**ANSWER, "weight": 1})],
        [RowChange.WEIGHT_TO_INTEGER],
    ),
    (chat({**USER, "weight": 1}, ANSWER), RowOptions(), [chat(USER, ANSWER)], [RowChange.WEIGHT_OF_OTHER_ROLE_REMOVED]),
    (
        chat({"role": "developer", "content": "S"}, USER, ANSWER),
        RowOptions(developer_as_system=True),
        [chat({"role": "system", "content": "S"}, USER, ANSWER)],
        [RowChange.DEVELOPER_TO_SYSTEM],
    ),
    (
        chat(USER, {"role": "assistant", "content": None, "refusal": "No."}),
        RowOptions(keep_refusals=True),
        [chat(USER, {"role": "assistant", "content": "No."})],
        [RowChange.REFUSAL_AS_ANSWER],
    ),
    (
        chat(USER, {"role": "assistant", "content": [{"type": "refusal", "refusal": "No."}]}),
        RowOptions(keep_refusals=True),
        [chat(USER, {"role": "assistant", "content": "No."})],
        [RowChange.REFUSAL_AS_ANSWER, RowChange.TEXT_PARTS_JOINED],
    ),
    (chat(USER, ANSWER, USER, USER), RowOptions(), [chat(USER, ANSWER)], [RowChange.TRAILING_TURNS_CUT]),
    (
        {"prompt": "Q\n\n###\n\n", "completion": " A END"},
        RowOptions(strip=Markers("\n\n###\n\n", " END")),
        [{"prompt": "Q", "completion": "A"}],
        [RowChange.MARKERS_STRIPPED],
    ),
    (
        preference(),
        RowOptions(as_supervised=True),
        [chat(USER, ANSWER, tools=[], parallel_tool_calls=True)],
        [RowChange.PREFERRED_ANSWER_TAKEN],
    ),
    (
        preference("completion"),
        RowOptions(as_supervised=True),
        [chat(USER, ANSWER, tools=[], parallel_tool_calls=True)],
        [RowChange.PREFERRED_ANSWER_TAKEN],
    ),
    (
        chat(USER, ANSWER, USER, {**ANSWER, "weight": 0}, USER, ANSWER),
        RowOptions(split_answers=True),
        [
            chat(USER, ANSWER),
            chat(USER, {**ANSWER, "weight": 0}, USER, {**ANSWER, "weight": 0}, USER, ANSWER),
        ],
        [RowChange.SPLIT_INTO_ANSWERS],
    ),
]


@pytest.mark.parametrize(("row", "options", "rows", "changes"), CHANGED, ids=[str(case[3][0]) for case in CHANGED])
def test_changes(row: dict[str, Any], options: RowOptions, rows: list[Any], changes: list[RowChange]) -> None:
    outcome = convert_row(copy.deepcopy(row), options=options)
    assert (outcome.rows, outcome.changes, outcome.reason) == (rows, changes, "")


def test_every_change_has_a_row() -> None:
    assert {change for *_, changes in CHANGED for change in changes} == set(RowChange) - {RowChange.REDACTED, *OF_FORMS}


@pytest.mark.parametrize("rule", [*RowChange, *DropReason, *Note], ids=str)
def test_every_rule_is_documented(rule: str) -> None:
    docs = Path(__file__).resolve().parents[3] / "docs"
    assert any(f"`{rule}`" in (docs / page).read_text() for page in ("migration.md", "data.md"))


DROPPED = [
    (chat({"role": "user", "content": [*parts("What is this?"), IMAGE]}, ANSWER), DropReason.IMAGE),
    (chat({"role": "user", "content": [{"type": "input_audio"}]}, ANSWER), DropReason.AUDIO),
    (chat(USER, {"role": "assistant", "audio": {"id": "audio_1"}}), DropReason.AUDIO),
    (chat({"role": "user", "content": [{"type": "file"}]}, ANSWER), DropReason.OTHER_PART),
    (chat(USER, {"role": "assistant", "content": None, "refusal": "No."}), DropReason.REFUSAL),
    (chat(USER, {"role": "function", "name": "weather", "content": "sun"}, ANSWER), DropReason.FUNCTION_WITHOUT_CALL),
    (chat(USER), DropReason.NO_ANSWER),
    (preference(), DropReason.PREFERENCE),
    (chat(USER, {**ANSWER, "weight": 0}), "ROW_NOTHING_TO_LEARN"),
    (chat(USER, {**ANSWER, "weight": 2}), "ROW_WEIGHT_INVALID"),
    (chat(USER, {**ANSWER, "weight": [1]}), "ROW_WEIGHT_INVALID"),
    (chat({"role": "user", "content": ""}, ANSWER), "ROW_CONTENT_EMPTY"),
    (chat({"role": "robot", "content": "Q"}, ANSWER), "ROW_ROLE_UNKNOWN"),
    ({"text": "Q"}, "ROW_FIELD_MISSING"),
]


@pytest.mark.parametrize(("row", "reason"), DROPPED, ids=[str(case[1]) for case in DROPPED])
def test_drops(row: dict[str, Any], reason: str) -> None:
    assert convert_row(copy.deepcopy(row)) == RowOutcome(reason=reason)


@pytest.mark.parametrize(
    ("row", "notes"),
    [
        (chat(USER, ANSWER), []),
        (chat({"role": "developer", "content": "S"}, USER, ANSWER), []),
        (chat(USER, {**ANSWER, "weight": 1}), []),
        (chat(USER, {**ANSWER, "refusal": None}), []),
        (chat({**USER, "name": "ann"}, ANSWER), [Note.NAME_OF_MESSAGE]),
        (chat(USER, ANSWER, USER, ANSWER), [Note.SEVERAL_ANSWERS]),
        (chat(USER, {**ANSWER, "weight": 0}, USER, ANSWER), []),
        (
            chat(
                USER,
                ANSWER,
                tools=[{"type": "function", "function": {**FUNCTION, "strict": True}}],
                parallel_tool_calls=False,
            ),
            [Note.PARALLEL_TOOL_CALLS, Note.STRICT_TOOL],
        ),
        ({"prompt": "Q\n\n###\n\n", "completion": " A END"}, []),
    ],
)
def test_kept_with_notes(row: dict[str, Any], notes: list[Note]) -> None:
    outcome = convert_row(copy.deepcopy(row))
    assert (outcome.rows, outcome.changes, outcome.notes, outcome.reason) == ([row], [], notes, "")


def test_ids_of_calls_are_never_given_twice() -> None:
    tool_calls = [{"id": "call_1", "type": "function", "function": CALL}]
    row = chat(USER, {**ANSWER, "tool_calls": tool_calls}, {**ANSWER, "function_call": CALL}, ANSWER)
    messages = convert_row(row).rows[0]["messages"]
    assert messages[2]["tool_calls"][0]["id"] == "call_2"


@pytest.mark.parametrize(
    ("row", "method", "reason"),
    [
        (preference(), ConvertedMethod.DPO, ""),
        (preference("completion"), ConvertedMethod.DPO, ""),
        (chat(USER, ANSWER), ConvertedMethod.DPO, DropReason.NOT_A_PREFERENCE),
        (chat(USER, reference={"a": [1]}), ConvertedMethod.REINFORCEMENT, ""),
        (chat(USER, ANSWER), ConvertedMethod.REINFORCEMENT, DropReason.NOT_A_TASK),
        ({"messages": []}, ConvertedMethod.REINFORCEMENT, DropReason.NOT_A_TASK),
    ],
)
def test_rows_of_other_methods_are_kept_whole(row: dict[str, Any], method: ConvertedMethod, reason: str) -> None:
    outcome = convert_row(copy.deepcopy(row), method)
    assert (outcome.rows, outcome.changes, outcome.reason) == ([] if reason else [row], [], reason)


texts = st.sampled_from(["", " ", "Q", "A\n\n###\n\n", " END", "é"])
content = st.one_of(
    texts,
    st.none(),
    st.integers(),
    st.lists(
        st.one_of(st.builds(lambda text: {"type": "text", "text": text}, texts), st.just(IMAGE), st.none()), max_size=2
    ),
    st.just([{"type": "refusal", "refusal": "No."}]),
)
calls = st.sampled_from([CALL, {"name": ""}, "x"])
messages = st.fixed_dictionaries(
    {"role": st.sampled_from(["system", "developer", "user", "assistant", "assistant", "function", "tool", "robot"])},
    optional={
        "content": content,
        "weight": st.sampled_from([0, 1, 1.0, True, None, 2, "1", [0]]),
        "name": st.sampled_from(["ann", None, 3]),
        "refusal": st.sampled_from([None, "No."]),
        "function_call": calls,
        "tool_calls": st.lists(st.builds(lambda call: {"id": "call_1", "function": call}, calls), max_size=2),
        "audio": st.sampled_from([None, {"id": "a"}]),
    },
)
chats = st.lists(messages, max_size=5)
rows = st.fixed_dictionaries(
    {},
    optional={
        "messages": st.one_of(chats, st.just("x")),
        "prompt": texts,
        "completion": texts,
        "functions": st.sampled_from([[], [FUNCTION], FUNCTION, "x"]),
        "function_call": st.sampled_from(["auto", None]),
        "tools": st.sampled_from([[], None, "x", [{"type": "function", "function": FUNCTION}]]),
        "parallel_tool_calls": st.booleans(),
        "input": st.fixed_dictionaries({"messages": chats}),
        "preferred_output": chats,
    },
)
options = st.builds(
    RowOptions,
    st.booleans(),
    st.booleans(),
    st.booleans(),
    st.booleans(),
    st.sampled_from([None, Markers("\n\n###\n\n", " END")]),
)


@given(row=rows, method=st.sampled_from(ConvertedMethod), options=options)
def test_converted_row_is_dropped_or_stays_as_it_is_when_converted_again(
    row: dict[str, Any], method: ConvertedMethod, options: RowOptions
) -> None:
    before = copy.deepcopy(row)
    outcome = convert_row(row, method, options)
    assert bool(outcome.reason) != bool(outcome.rows)
    if not outcome.reason and not outcome.changes and "functions" not in before:
        assert outcome.rows == [before]
    for converted in outcome.rows:
        if method is ConvertedMethod.SUPERVISED or (method is ConvertedMethod.DPO and options.as_supervised):
            decode_line(msgspec.json.encode(converted))
        again = convert_row(copy.deepcopy(converted), method, options)
        assert (again.rows, again.changes, again.reason) == ([converted], [], "")
