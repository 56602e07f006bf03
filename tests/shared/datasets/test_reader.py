"""The pass over a training file: valid rows are read unchanged, and every bad line is reported with its number."""

from __future__ import annotations

import json
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.datasets.dataset_report import MAX_REPORTED_ERRORS
from shared.datasets.reader import (
    MAX_LINE_BYTES,
    ROLES,
    DatasetReport,
    Message,
    TrainingRow,
    check_dataset,
    is_trainable,
    parse_row,
    read_rows,
)
from shared.datasets.rows import RowCode
from shared.errors import Code, DatasetInvalid

GOOD = b'{"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}]}\n'
HI_HELLO = [Message("user", "Hi"), Message("assistant", "Hello")]

text = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20)
visible = text.filter(lambda value: bool(value.strip()))
extras = st.fixed_dictionaries({}, optional={"name": text, "weight": st.just(1)})
turns = st.builds(
    lambda role, content, more: {"role": role, "content": content} | more, st.sampled_from(ROLES), text, extras
)
answers = st.builds(lambda content, more: {"role": "assistant", "content": content} | more, visible, extras)
chats = st.builds(lambda first, last: [*first, last], st.lists(turns, max_size=5), answers)
labels = st.fixed_dictionaries(
    {},
    optional={
        "rating": st.none() | st.integers(1, 5),
        "difficulty": st.none() | st.integers(1, 10),
        "category": st.none() | text,
        "lane": text,
        "unknown": st.recursive(st.none() | text, st.lists, max_leaves=3),
    },
)

BROKEN: dict[str, tuple[bytes, str]] = {
    "blank": (b"   \r\n", "blank"),
    "empty": (b"", "blank"),
    "not JSON": (b"{'messages': []}", "not JSON"),
    "cut off": (GOOD[:40], "ends in the middle"),
    "two values": (GOOD.strip() + GOOD, "trailing"),
    "not an object": (b"[1, 2]", "one object per line"),
    "not UTF-8": (b'{"prompt": "\xff\xfe", "response": "x"}', "byte 13 of the line is not UTF-8"),
    "lone surrogate": (b'{"prompt": "\\ud800", "response": "x"}', "surrogate"),
    "no fields": (b"{}", "is missing"),
    "prompt only": (b'{"prompt": "Hi"}', "`response` is missing"),
    "response only": (b'{"response": "Hi"}', "`prompt` is missing"),
    "nothing in messages": (b'{"messages": []}', "`messages` is empty; it needs at least one turn"),
    "nothing in turns": (b'{"turns": []}', "`turns` is empty; it needs at least one turn"),
    "wrong role": (b'{"messages": [{"role": "robot", "content": "x"}]}', "messages[0].role is 'robot'"),
    "no role": (b'{"messages": [{"content": "x"}]}', "role"),
    "content is no text": (b'{"messages": [{"role": "user", "content": 5}]}', "messages[0].content"),
    "empty question": (
        b'{"messages": [{"role": "user", "content": ""}, {"role": "assistant", "content": "x"}]}',
        "messages[0].content is empty",
    ),
    "question last": (
        b'{"messages": [{"role": "assistant", "content": "x"}, {"role": "user", "content": "y"}]}',
        "the last turn is not the assistant's",
    ),
    "empty answer": (b'{"prompt": "Hi", "response": ""}', "response is empty"),
    "white answer": (b'{"prompt": "Hi", "response": " \\n"}', "response is empty"),
    "rating 0": (b'{"prompt": "Hi", "response": "x", "rating": 0}', "rating"),
    "rating 6": (b'{"prompt": "Hi", "response": "x", "rating": 6}', "rating"),
    "rating text": (b'{"prompt": "Hi", "response": "x", "rating": "5"}', "rating"),
    "difficulty 0": (b'{"prompt": "Hi", "response": "x", "difficulty": 0}', "difficulty"),
    "difficulty 11": (b'{"prompt": "Hi", "response": "x", "difficulty": 11}', "difficulty"),
}


def line(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False).encode() + b"\n"


def pair(**fields: Any) -> bytes:
    return line({"prompt": "Hi", "response": "Hello"} | fields)


@given(chats, labels, st.sampled_from(["messages", "turns"]))
def test_valid_chat_is_read_unchanged(chat: list[dict[str, Any]], labels: dict[str, Any], key: str) -> None:
    row = parse_row(line({key: chat} | labels), 7)
    expected = [Message(**turn) for turn in chat]
    values = [labels.get(name) for name in ("rating", "category", "difficulty", "lane")]
    assert row == TrainingRow(7, expected, *values)


@given(text, visible, st.sampled_from(["prompt", "instruction"]), st.sampled_from(["response", "output", "completion"]))
def test_valid_pair_is_read_as_two_turns(question: str, answer: str, first: str, second: str) -> None:
    row = parse_row(line({first: question, second: answer}), 1)
    assert row.messages == [Message("user", question), Message("assistant", answer)]


@given(st.lists(st.tuples(st.booleans(), st.sampled_from(sorted(BROKEN))), max_size=MAX_REPORTED_ERRORS))
def test_bad_lines_are_reported_with_their_number(choices: list[tuple[bool, str]]) -> None:
    report = DatasetReport()
    rows = list(read_rows([GOOD if good else BROKEN[name][0] for good, name in choices], report))
    expected = {number: name for number, (good, name) in enumerate(choices, start=1) if not good}
    assert [row.line for row in rows] == [number for number, (good, _) in enumerate(choices, start=1) if good]
    assert [error.line for error in report.errors] == list(expected)
    assert all(BROKEN[expected[error.line]][1] in error.reason for error in report.errors)
    assert report.error_count == len(expected)


@pytest.mark.parametrize("name", sorted(BROKEN))
def test_bad_line_has_a_reason(name: str) -> None:
    content, reason = BROKEN[name]
    with pytest.raises(ValueError) as caught:
        parse_row(content, 1)
    assert reason in str(caught.value)


@pytest.mark.exhaustive
@given(st.binary(max_size=60) | st.recursive(st.none() | st.integers() | text, lambda v: st.lists(v) | st.dictionaries(
    st.sampled_from(["messages", "turns", "prompt", "response", "role", "content", "rating"]), v)).map(line))  # fmt: skip
def test_any_bytes_are_a_row_or_a_reason(content: bytes) -> None:
    report = DatasetReport()
    rows = list(read_rows([content], report))
    assert len(rows) + report.error_count == 1


@pytest.mark.parametrize("opening", [b"[", b'{"a":'])
def test_deep_nesting_is_a_bad_line(opening: bytes) -> None:
    # Fails while parse_row lets msgspec's RecursionError pass.
    report = DatasetReport()
    assert not list(read_rows([b'{"unknown": ' + opening * 100_000], report))
    assert report.error_count == 1


def test_unknown_keys_are_ignored() -> None:
    assert parse_row(pair(source="web", spans=[{"start": 1}]), 1).messages == HI_HELLO


def test_carriage_return_is_white_space() -> None:
    assert parse_row(GOOD.strip() + b"\r\n", 1).messages == HI_HELLO


def test_tool_call_needs_no_content() -> None:
    call = [{"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}]
    chat = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": None, "tool_calls": call}]
    assert parse_row(line({"messages": chat}), 1).messages[1].tool_calls == call


def test_line_of_the_longest_length_is_read_and_one_more_byte_is_not() -> None:
    longest = pair(unknown="x" * (MAX_LINE_BYTES - len(pair(unknown="").rstrip())))
    assert len(longest.rstrip()) == MAX_LINE_BYTES
    assert parse_row(longest, 1).messages == HI_HELLO
    with pytest.raises(ValueError, match=f"longer than {MAX_LINE_BYTES} bytes"):
        parse_row(longest.rstrip() + b" \r\n", 1)


def test_first_bad_line_raises_without_a_report() -> None:
    rows = read_rows([GOOD, GOOD, b"{}", b"[]"])
    assert [next(rows).line, next(rows).line] == [1, 2]
    with pytest.raises(DatasetInvalid) as caught:
        next(rows)
    assert caught.value.code is Code.DATASET_LINE_INVALID
    assert caught.value.details["errors"][0]["line"] == 3


def test_report_is_capped_and_its_count_is_not() -> None:
    broken = [b"{}\n"] * (MAX_REPORTED_ERRORS + 30)
    with pytest.raises(DatasetInvalid) as caught:
        check_dataset([GOOD, *broken], param="data.validation_file")
    error = caught.value
    assert error.code is Code.DATASET_LINE_INVALID
    assert error.param == "data.validation_file"
    assert error.details["error_count"] == MAX_REPORTED_ERRORS + 30
    assert [entry["line"] for entry in error.details["errors"]] == list(range(2, MAX_REPORTED_ERRORS + 2))
    assert "line 2:" in error.message
    assert json.dumps(error.as_dict())


@pytest.mark.parametrize(
    ("rating", "min_rating", "kept"),
    [(None, 0, True), (None, 5, True), (1, 0, True), (1, 1, True), (2, 3, False), (3, 3, True), (5, 5, True)],
)
def test_rating_filter(rating: int | None, min_rating: int, kept: bool) -> None:
    assert is_trainable(parse_row(pair(rating=rating), 1), min_rating) is kept


def test_counts_rows_and_trainable_rows() -> None:
    report = check_dataset([GOOD, pair(rating=2), pair(rating=3), pair(rating=5)], min_rating=3)
    assert (report.rows, report.trainable_rows, report.error_count, report.errors) == (4, 3, 0, [])


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ([], "The training file is empty."),
        ([b"oops\n"], "The training file has no row that is valid, and 1 bad line."),
        ([pair(rating=2), pair(rating=1)], "The training file has no row that can be trained on (valid rows: 2)."),
    ],
    ids=["no rows", "all bad", "all filtered"],
)
def test_file_with_nothing_to_train_on_is_refused(lines: list[bytes], message: str) -> None:
    with pytest.raises(DatasetInvalid) as caught:
        check_dataset(lines, min_rating=3, strict=False)
    assert caught.value.code is Code.DATASET_EMPTY
    assert caught.value.param == "data.train_file"
    assert caught.value.message == message
    assert ("min_rating" in caught.value.remedy) == ("valid rows: 2" in message)


def test_rows_are_read_one_at_a_time() -> None:
    taken = 0

    def lines() -> Iterator[bytes]:
        nonlocal taken
        for _ in range(200_000):
            taken += 1
            yield GOOD

    rows = read_rows(lines())
    for number in range(1, 4):
        assert next(rows).line == taken == number


def peak_memory(rows: int) -> int:
    """Return the peak of Python's memory in bytes while it checked a file of this many rows."""
    lines = (b'{"prompt": "question %d", "response": "answer"}\n' % number for number in range(rows))
    tracemalloc.start()
    try:
        assert check_dataset(lines).rows == rows
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.exhaustive
def test_memory_does_not_grow_with_the_file() -> None:
    peak_memory(1_000)  # what the first pass ever leaves for good
    assert peak_memory(30_000) - peak_memory(1_000) < 29_000, "less than a byte a row"


@pytest.mark.parametrize("end", [b"", b"\n", b"\r\n"])
def test_byte_order_mark_and_any_line_end_are_accepted(tmp_path: Path, end: bytes) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(b"\xef\xbb\xbf" + GOOD.strip() + b"\r\n" + GOOD.strip() + end)
    with path.open("rb") as file:
        assert check_dataset(file).rows == 2
        assert not file.closed
    assert check_dataset([b"\xef\xbb\xbf" + GOOD]).rows == 1


def test_byte_order_mark_inside_the_file_is_a_bad_line() -> None:
    report = DatasetReport()
    list(read_rows([GOOD, b"\xef\xbb\xbf" + GOOD], report))
    assert [(error.line, error.code) for error in report.errors] == [(2, RowCode.ROW_NOT_JSON)]


@pytest.mark.parametrize("excess", [-4, -3, -2, -1, 0, 1, 2, 3, 4, MAX_LINE_BYTES, 5 * MAX_LINE_BYTES])
@pytest.mark.parametrize("end", [b"\n", b"\r\n"])
@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"])
def test_line_of_any_length_is_one_line(tmp_path: Path, excess: int, end: bytes, mark: bytes) -> None:
    long = pair(unknown="").rstrip()
    long = pair(unknown="x" * (MAX_LINE_BYTES + excess - len(long))).rstrip()
    path, report = tmp_path / "a.jsonl", DatasetReport()
    path.write_bytes(mark + long + end + b"{}" + end + long + end + GOOD)
    with path.open("rb") as file:
        rows = [row.line for row in read_rows(file, report)]
    if excess <= 0:
        assert rows == [1, 3, 4]
    else:
        assert rows == [4]
        assert [(e.line, e.code) for e in report.errors if e.line != 2] == [(n, RowCode.ROW_TOO_LONG) for n in (1, 3)]
