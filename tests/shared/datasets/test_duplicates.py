"""Duplicates: all exact ones and most near ones are found, and the bytes per row are as documented."""

from __future__ import annotations

from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.datasets import duplicates
from shared.datasets.conversation_text import digest64
from shared.datasets.duplicates import (
    EXACT_BYTES_PER_ROW,
    MAX_PAIRS,
    NEAR_BYTES_PER_ROW,
    SIMILAR,
    ExactIndex,
    NearIndex,
    PairReport,
    Pairs,
    SimilarLines,
    SketchedRows,
    similarity,
)
from shared.datasets.fingerprints import SLOTS, fingerprints
from tests.support.texts import changed, words


def sketched(texts: list[str], first_line: int = 1) -> SketchedRows:
    digests, sketches = fingerprints(texts)
    lines = array("I", range(first_line, first_line + len(texts)))
    return SketchedRows(bytearray(sketches), array("Q", digests), lines)


def pairs_of(found: Pairs) -> list[SimilarLines]:
    report = PairReport()
    report.extend(found)
    return report.pairs


@given(st.lists(st.integers(0, 30), max_size=100))
def test_every_repeated_row_is_found_with_the_line_it_repeats(values: list[int]) -> None:
    index, first, expected = ExactIndex(), {}, []
    for line, value in enumerate(values, start=1):
        index.add([digest64(str(value))], [line])
        if value in first:
            expected.append(SimilarLines(line, first[value]))
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
    leaked = [
        SimilarLines(line, training.index(value) + 1) for line, value in enumerate(validation, 1) if value in training
    ]
    found = held_out.shared_with(there)
    assert (found.rows, found.pairs) == (len(leaked), leaked[:MAX_PAIRS])


def test_near_duplicates_are_found_among_many_rows_and_others_are_not() -> None:
    index = NearIndex(3_000)
    texts = [words(100) for _ in range(3_000)]
    assert not len(index.find_and_add(sketched([" ".join(text) for text in texts])))
    found = index.find(sketched([" ".join(changed(text, 1)) for text in texts[:300]]))
    assert sum(found.first == found.second) > 285
    assert not len(index.find(sketched([" ".join(words(100)) for _ in range(300)])))
    assert not len(index.find(sketched([" ".join(changed(text, 40)) for text in texts[:300]])))


def test_exact_duplicate_is_not_called_near() -> None:
    index, text = NearIndex(), " ".join(words(50))
    assert not len(index.find_and_add(sketched([text, text])))
    assert not len(index.find(sketched([text.upper()])))


class NaiveIndex:
    """A row at a time, with dictionaries: what :class:`NearIndex` must find."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.rows: list[tuple[bytes, int, int]] = []
        self.table: dict[tuple[int, int], int] = {}

    def find(self, drawn: bytes, digest: int, line: int) -> SimilarLines | None:
        candidates = {self.table[place] for place in places(drawn) if place in self.table}
        if any(self.rows[row][1] == digest for row in candidates):
            return None
        scores = [(similarity(drawn, self.rows[row][0]), -row) for row in candidates]
        best, row = max(scores, default=(0.0, 0))
        return SimilarLines(line, self.rows[-row][2], best) if best >= SIMILAR else None

    def add(self, drawn: bytes, digest: int, line: int) -> None:
        if len(self.rows) < self.limit:
            self.table |= dict.fromkeys(places(drawn), len(self.rows))
            self.rows.append((drawn, digest, line))


def places(drawn: bytes) -> list[tuple[int, int]]:
    return [(band, int.from_bytes(drawn[4 * band : 4 * band + 4], "little") % 1_024) for band in range(8)]


rows_of_few_kinds = st.lists(
    st.tuples(st.lists(st.tuples(st.integers(0, SLOTS - 1), st.integers(0, 3)), max_size=6), st.integers(0, 20)),
    max_size=30,
)


@pytest.mark.exhaustive
@given(rows_of_few_kinds, st.integers(0, 30), st.integers(1, 12), st.integers(0, 35))
def test_rows_at_once_are_compared_as_one_after_another(
    rows: list[tuple[list[tuple[int, int]], int]], cut: int, at_once: int, limit: int
) -> None:
    drawn = []
    for changes, _ in rows:
        sketch = bytearray(SLOTS)
        for place, value in changes:
            sketch[place] = value
        drawn.append(bytes(sketch))
    whole = SketchedRows(
        bytearray(b"".join(drawn)), array("Q", [digest for _, digest in rows]), array("I", range(1, len(rows) + 1))
    )
    naive, expected = NaiveIndex(limit), []
    for sketch, digest, line in zip(drawn, whole.digests, whole.lines, strict=True):
        expected.append(naive.find(sketch, digest, line))
        naive.add(sketch, digest, line)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(duplicates, "MAX_NEAR_ROWS", limit)
        patch.setattr(duplicates, "_ROWS_AT_ONCE", at_once)
        index = NearIndex()
        found = pairs_of(index.find_and_add(whole.part(0, cut))) + pairs_of(index.find_and_add(whole.part(cut, 99)))
    assert found == [pair for pair in expected if pair][:MAX_PAIRS]


def test_bytes_per_row_are_as_stated() -> None:
    exact, near = ExactIndex(), NearIndex(1_000)
    table = near.table_bytes
    for line in range(1, 10_001):
        exact.add([digest64(str(line))], [line])
    near.find_and_add(sketched([str(line) for line in range(10_000)]))
    assert exact.nbytes == EXACT_BYTES_PER_ROW * 10_000
    assert near.nbytes == NEAR_BYTES_PER_ROW * 10_000
    assert near.table_bytes == table == 32 * 1_024
