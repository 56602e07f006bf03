"""Duplicates: exact ones are all found, near ones mostly, and the bytes per row are as stated."""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path

from hypothesis import example, given
from hypothesis import strategies as st

from shared.datasets.duplicates import (
    EXACT_BYTES_PER_ROW,
    MAX_PAIRS,
    NEAR_BYTES_PER_ROW,
    ExactIndex,
    NearIndex,
    Pair,
    digest64,
    normalised,
    similarity,
    sketch,
)
from shared.datasets.rows import Message

ROOT = Path(__file__).resolve().parents[3]
RANDOM = random.Random(1)


def words(count: int) -> list[str]:
    return [f"w{RANDOM.randrange(10**6)}" for _ in range(count)]


def changed(text: list[str], places: int) -> list[str]:
    copy = list(text)
    for place in RANDOM.sample(range(len(text)), places):
        copy[place] = f"other{place}"
    return copy


def test_case_and_white_space_make_no_difference_and_roles_do() -> None:
    one = normalised([Message("user", "Hi  there\n"), Message("assistant", "HELLO")])
    assert one == normalised([Message("user", "hi there"), Message("assistant", " hello")])
    assert one != normalised([Message("system", "hi there"), Message("assistant", "hello")])


def reference(messages: list[Message]) -> str:
    turns = [f"<{message.role}> {message.content or ''}" for message in messages]
    return " ".join(" ".join(turns).lower().split())


WHITE_SPACE = "".join(character for character in map(chr, range(0x3100)) if character.isspace())
texts = st.text() | st.text(st.sampled_from(f"aAbéÉßẞİKΣς新😀\u0131\u03c3\u200b\u0307{WHITE_SPACE}"))


@given(st.lists(st.builds(Message, st.sampled_from(["user", "assistant"]), st.none() | texts), max_size=4))
@example([Message("user", WHITE_SPACE), Message("assistant", f"a{' ' * 1000}b{WHITE_SPACE * 3}c")])
def test_fast_way_writes_what_lower_and_split_write(messages: list[Message]) -> None:
    assert normalised(messages) == reference(messages).encode()


def test_tool_calls_are_compared() -> None:
    first, second = ([Message("assistant", None, tool_calls=[{"name": name}])] for name in "ab")
    assert normalised(first) != normalised(second)


@given(st.lists(st.integers(0, 30), max_size=100))
def test_every_repeated_row_is_found_with_the_line_it_repeats(values: list[int]) -> None:
    index, first, expected = ExactIndex(), {}, []
    for line, value in enumerate(values, start=1):
        index.add([digest64(str(value))], [line])
        if value in first:
            expected.append(Pair(line, first[value]))
        first.setdefault(value, line)
    found = index.repeats()
    assert found.rows == len(expected)
    assert found.pairs == sorted(expected)[:MAX_PAIRS]


@given(st.lists(st.integers(0, 30), max_size=40), st.lists(st.integers(0, 30), max_size=40))
def test_every_leaked_row_is_found(training: list[int], validation: list[int]) -> None:
    there, held_out = ExactIndex(), ExactIndex()
    for index, values in ((there, training), (held_out, validation)):
        for line, value in enumerate(values, start=1):
            index.add([digest64(str(value))], [line])
    leaked = [Pair(line, training.index(value) + 1) for line, value in enumerate(validation, 1) if value in training]
    found = held_out.shared_with(there)
    assert (found.rows, found.pairs) == (len(leaked), leaked[:MAX_PAIRS])


def test_estimate_is_right_on_average() -> None:
    errors = []
    for places in (2, 6, 20) * 40:
        one = words(120)
        other = changed(one, places)
        shingles = [set(zip(text, text[1:], text[2:], strict=False)) for text in (one, other)]
        exact = len(shingles[0] & shingles[1]) / len(shingles[0] | shingles[1])
        errors.append(similarity(sketch(" ".join(one)), sketch(" ".join(other))) - exact)
    assert abs(sum(errors) / len(errors)) < 0.03


def test_near_duplicates_are_found_among_many_rows_and_others_are_not() -> None:
    index = NearIndex(3_000)
    texts = [words(100) for _ in range(3_000)]
    for line, text in enumerate(texts, start=1):
        index.add(sketch(" ".join(text)), line, line)
    near = [index.find(sketch(" ".join(changed(text, 1))), 0, 9_999) for text in texts[:300]]
    assert sum(pair is not None and pair.first == line for line, pair in enumerate(near, start=1)) > 285
    assert not any(index.find(sketch(" ".join(words(100))), 0, 9_999) for _ in range(300))
    assert not any(index.find(sketch(" ".join(changed(text, 40))), 0, 9_999) for text in texts[:300])


def test_exact_duplicate_is_not_called_near() -> None:
    index, text = NearIndex(), " ".join(words(50))
    index.add(sketch(text), 7, 1)
    assert index.find(sketch(text), 7, 2) is None


def test_script_without_spaces_is_compared_by_characters() -> None:
    text = "".join(chr(0x4E00 + RANDOM.randrange(5000)) for _ in range(200))
    assert similarity(sketch(text), sketch(text[:100] + "新" + text[100:])) > 0.8
    assert similarity(sketch(text), sketch(text[::-1])) < 0.2


def test_bytes_per_row_are_as_stated() -> None:
    exact, near = ExactIndex(), NearIndex(1_000)
    table = near.table_bytes
    for line in range(1, 10_001):
        exact.add([digest64(str(line))], [line])
        near.add(line.to_bytes(4) * 8, line, line)
    assert exact.nbytes == EXACT_BYTES_PER_ROW * 10_000
    assert near.nbytes == NEAR_BYTES_PER_ROW * 10_000
    assert near.table_bytes == table == 32 * 1_024


def test_sketch_is_the_same_in_every_process() -> None:
    code = (
        "from shared.datasets.duplicates import sketch, digest64; print(sketch('a b c d e f g').hex(), digest64('x'))"
    )
    run = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert run.stdout.split() == [sketch("a b c d e f g").hex(), str(digest64("x"))]


@given(st.text(max_size=50))
def test_any_text_has_a_sketch(text: str) -> None:
    assert len(sketch(normalised([Message("user", text)]))) == 32
    assert len(sketch(text)) == 32
