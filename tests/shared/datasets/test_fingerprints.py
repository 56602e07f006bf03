"""Digests are equal for texts that differ only in case and white space; sketches are alike for similar texts."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from shared.datasets import fingerprints as module
from shared.datasets.duplicates import similarity
from shared.datasets.fingerprints import HASHED_BYTES, MAX_WORDS, SLOTS, fingerprints
from tests.support.texts import RANDOM, WHITE_SPACE, changed, texts, words

pieces = st.sampled_from(
    ["a", "B", "b", " ", "\n", "\u3000", "É", "é", "x" * 7, "x" * 8, "y" * 17, "z" * 80, "\0", "新"]
)

DIGESTS = [16116333461608515410, 18292176440953953361, 3890986111393913704]
SKETCHES = (
    "6e6e6e256e96b1b125966e25b1966e967a6e6e6e7ab16e25966e96b17a6e966e"
    "4c4c4c474c47474747474c47474c4c4c474c474c47474c47474c4c47474c4c4c"
    "6060606060606060606060606060606060606060606060606060606060606060"
)


def sketch(text: str) -> bytes:
    return fingerprints([text])[1]


def compared(text: str) -> str:
    return " ".join(text.lower().split())


@given(st.lists(texts | st.lists(pieces, max_size=12).map("".join), min_size=1, max_size=8))
@example([WHITE_SPACE, f"a{' ' * 1000}b{WHITE_SPACE * 3}c", "a b c", "", "a\0", "a", "ab", "a b"])
@example(["x" * (HASHED_BYTES + 1), "x" * HASHED_BYTES, "x" * HASHED_BYTES + "y", "X" * HASHED_BYTES])
@example([f"{'x' * 8}{'y' * 8}", f"{'y' * 8}{'x' * 8}", f"{'x' * 8} {'y' * 8}", f"{'y' * 8} {'x' * 8}"])
def test_digests_are_equal_where_lower_case_and_words_are(rows: list[str]) -> None:
    digests, _ = fingerprints(rows, near=False)
    assert len(digests) == len(rows)
    for one, digest in zip(rows, digests, strict=True):
        for other, its in zip(rows, digests, strict=True):
            assert (digest == its) == (compared(one) == compared(other))


@given(st.lists(texts, max_size=8))
@example(["Short", "", "É" * 500, "word " * (MAX_WORDS + 10), "新" * 200, " ", "one two", "one"])
def test_a_text_has_the_same_fingerprint_among_others(rows: list[str]) -> None:
    digests, sketches = fingerprints(rows)
    alone = [fingerprints([row]) for row in rows]
    assert digests == [digest for [digest], _ in alone]
    assert sketches == b"".join(drawn for _, drawn in alone)
    assert len(sketches) == SLOTS * len(rows)


@pytest.mark.parametrize("limit", ["BYTES_AT_ONCE", "TEXTS_AT_ONCE"])
def test_batches_make_no_difference(monkeypatch: pytest.MonkeyPatch, limit: str) -> None:
    rows = [" ".join(words(RANDOM.randrange(30))) for _ in range(50)]
    whole = fingerprints(rows)
    monkeypatch.setattr(module, limit, 3)
    assert fingerprints(rows) == whole


def test_fingerprints_are_the_same_everywhere() -> None:
    digests, sketches = fingerprints(
        ["a b c d e f g", "Ein längeres Wort: Fingerabdruckverfahrensbeschreibung", "数据" * 30]
    )
    assert digests == DIGESTS
    assert sketches.hex() == SKETCHES


def test_estimate_is_right_on_average() -> None:
    errors = []
    for places in (2, 6, 20) * 40:
        one = words(120)
        other = changed(one, places)
        shingles = [set(zip(text, text[1:], text[2:], strict=False)) for text in (one, other)]
        exact = len(shingles[0] & shingles[1]) / len(shingles[0] | shingles[1])
        errors.append(similarity(sketch(" ".join(one)), sketch(" ".join(other))) - exact)
    assert abs(sum(errors) / len(errors)) < 0.03


def test_script_without_spaces_is_compared_by_characters() -> None:
    text = "".join(chr(0x4E00 + RANDOM.randrange(5000)) for _ in range(200))
    assert similarity(sketch(text), sketch(text[:100] + "新" + text[100:])) > 0.8
    assert similarity(sketch(text), sketch(text[::-1])) < 0.2


def test_what_follows_many_words_is_not_compared_for_likeness() -> None:
    text = " ".join(words(MAX_WORDS))
    assert sketch(text) == sketch(" ".join([text, *words(500)])) != sketch(" ".join([*words(500), text]))
