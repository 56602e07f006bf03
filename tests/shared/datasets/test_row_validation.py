"""The fast path for plain chats and the slow path give the same result on every line."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from shared.datasets.reader import DatasetReport, read_records
from shared.datasets.row_validation import MAX_LINE_BYTES, ROLES, decode_line
from shared.datasets.rows import Record, RowError
from tests.support.invalid_rows import ANSWER, CALL, USER, bad_rows, chat, pair

Verdict = Record | tuple[str, str, str]
"""The record, or the error's code, field and reason."""

FRAGMENTS = [
    b"\xff", b"\xc3", b"\xed\xa0\x80", b"\xe2\x80\x83", b"\\ud800", b"\\udc00", b"\\ud83d\\ude00", b"\\u0000", b"\\u00a0",
    b"\\q", b"\\", b'"', b"\x00", b"\x1f", b"\n", b"\r", b" ", b"{", b"}", b"[", b"]", b",", b":", b"null", b"true", b"1e999",
    b"9" * 5_000, b"[" * 2_000, b'"rating": 9, ', b'"rating": 5, ', b'"messages": [], ', b'"role": "user", ', b'"content": "", ',
    b'"content": " ", ', b'"tools": [], ', b'"weight": 0, ', b'"tool_calls": [], ',
]  # fmt: skip
texts = st.sampled_from(["", " ", "\n\t", "\u3000", "\x85", "\x1f", "\u200b", "\0", " x", "x ", "é", "😀"]) | st.text(
    st.characters(exclude_categories=["Cs"]), max_size=8
)
turns = st.fixed_dictionaries(
    {"role": st.sampled_from(ROLES)},
    optional={
        "content": st.none() | texts | texts | st.integers(),
        "weight": st.sampled_from([None, 0, 1, 2, 1.0, True]),
        "tool_calls": st.sampled_from([None, [], [CALL], [{}], [CALL | {"function": {"name": "f", "arguments": "[]"}}]]),
        "name": st.none() | texts,
        "ignored": st.recursive(st.none() | texts, st.lists, max_leaves=3),
    },
)  # fmt: skip
plain_turns = st.builds(lambda role, content: {"role": role, "content": content}, st.sampled_from(ROLES), texts)
chats = st.lists(plain_turns, max_size=4) | st.lists(turns, max_size=3)
answered = st.builds(lambda chat, answer: [*chat, {"role": "assistant", "content": answer}], chats, texts)
rows = st.fixed_dictionaries(
    {},
    optional={
        "messages": st.none() | answered | answered | answered | chats,
        "turns": chats,
        "prompt": texts,
        "response": texts,
        "rating": st.sampled_from([None, 1, 5, 0, "5"]),
        "category": st.none() | texts,
        "tools": st.sampled_from([None, [], [{"name": "f"}], [{}]]),
        "syntax_spans": st.sampled_from([None, [], [{"start": 0, "end": 1, "weight": 1}]]),
    },
)
lines = st.builds(lambda row, escaped: json.dumps(row, ensure_ascii=escaped).encode(), rows, st.booleans())
good_lines = st.sampled_from([chat(USER, ANSWER), chat(USER, ANSWER, USER, ANSWER, rating=5), pair()])


def fast(line: bytes) -> Verdict:
    report = DatasetReport()
    found = [record for number, record in read_records([pair(), line], report) if number == 2]
    assert len(found) + report.error_count == 1
    if found:
        return found[0]
    [error] = report.errors
    return error.code, error.field, error.reason


def careful(line: bytes) -> Verdict:
    try:
        return decode_line(line)
    except RowError as error:
        return error.code, error.field, error.reason


@pytest.mark.parametrize(
    ("line", "field", "reason"),
    [
        (b'{"prompt": "a"}', "response", "`response` is missing"),
        (b'{"response": "a"}', "prompt", "`prompt` is missing"),
        (b'{"prompt": null, "response": "a"}', "prompt", "`prompt` is missing"),
        (b'{"prompt": "a", "messages": []}', "response", "`response` is missing"),
        (
            b'{"prompts": "a", "response": "b"}',
            "prompt",
            "`prompt` is missing; is `prompts` meant to be `prompt`?",
        ),
        (
            b'{"prompt": "a", "Completions": "b"}',
            "response",
            "`response` is missing; is `Completions` meant to be `completion`?",
        ),
        (
            b'{"message": [{"role": "user"}]}',
            "",
            "`messages`, or `prompt` with `response`, is missing; is `message` meant to be `messages`?",
        ),
        (b'{"question": "a"}', "", "`messages`, or `prompt` with `response`, is missing"),
        (b'{"prompt\\u001b": "a"}', "", "`messages`, or `prompt` with `response`, is missing"),
        (b'{"messages": []}', "messages", "`messages` is empty; it needs at least one turn"),
        (b'{"turns": [], "rating": 3}', "turns", "`turns` is empty; it needs at least one turn"),
    ],
)
def test_what_is_missing_is_named_on_both_paths(line: bytes, field: str, reason: str) -> None:
    assert fast(line) == careful(line) == ("ROW_FIELD_MISSING", field, reason)


@pytest.mark.parametrize("end", [b"", b"\n", b"\r\n"])
@pytest.mark.parametrize(
    ("start", "where"),
    [
        (b'{"prompt": "abc', " of a string"),
        (b'{"prompt": "say \\"abc\\"', " of a string"),
        (b'{"prompt": "abc\\', " of a string"),
        (b'{"prompt": "caf\xc3\xa9 \\u00', " of a string"),
        (b'{"prompt": "abc"', ""),
        (b'{"prompt": "abc", "rating": nul', ""),
    ],
)
def test_a_line_that_ends_too_early_is_called_so_on_both_paths(start: bytes, end: bytes, where: str) -> None:
    reason = f"the line is not JSON: it ends in the middle{where}"
    assert fast(start + end) == careful(start + end) == ("ROW_NOT_JSON", "", reason)


@pytest.mark.exhaustive
@given(lines)
@settings(max_examples=1_000)
@example(chat(USER, {"role": "assistant", "content": " "}, USER, ANSWER))
def test_fast_and_slow_path_agree_on_rows_of_any_kind(line: bytes) -> None:
    assert fast(line) == careful(line)


@pytest.mark.exhaustive
@given(good_lines | lines, st.integers(0, 2**32))
@settings(max_examples=400)
def test_fast_and_slow_path_agree_on_damaged_rows(line: bytes, seed: int) -> None:
    draw = random.Random(seed)  # not Hypothesis: its draws would take nearly all of the time
    for _ in range(8):
        damaged = line
        for _ in range(draw.randint(1, 3)):
            start = draw.randint(0, len(damaged))
            piece = draw.choice([draw.choice(FRAGMENTS), draw.randbytes(draw.randint(0, 4))])
            damaged = damaged[:start] + piece + damaged[start + draw.randint(0, 4) :]
        assert fast(damaged) == careful(damaged)


def test_fast_and_slow_path_agree_on_invalid_rows() -> None:
    for line, code in bad_rows():
        verdict: Any = fast(line)
        assert verdict == careful(line)
        assert verdict[0] == code


def test_fast_and_slow_path_agree_around_the_longest_line() -> None:
    for excess in range(-3, 4):
        for end in (b"", b"\n", b"\r\n", b" \n"):
            text = "x" * (MAX_LINE_BYTES + excess - len(chat(USER | {"content": ""}, ANSWER)))
            line = chat(USER | {"content": text}, ANSWER) + end
            assert fast(line) == careful(line)
