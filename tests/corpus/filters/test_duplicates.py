"""Duplicates in a mix: the best of equal rows stays, and near duplicates of a removed row are removed too."""

from __future__ import annotations

import tracemalloc
from array import array

import numpy as np
import pytest

from corpus.filters.duplicates import DuplicateFinder, RowState
from shared.datasets.duplicates import SketchedRows
from shared.datasets.fingerprints import SLOTS, fingerprints

LONG = " ".join(f"w{n}" for n in range(200))
KEPT, EXACT, NEAR = RowState.KEPT, RowState.EXACT, RowState.NEAR


def found(rows: list[tuple[str, int]], *, exact: bool = True, near: float | None = 0.8, blocks: int = 1) -> list[int]:
    finder = DuplicateFinder(exact=exact, near=near, expected_rows=100)
    size = max(1, -(-len(rows) // blocks))
    for begin in range(0, len(rows), size):
        part = rows[begin : begin + size]
        digests, sketches = fingerprints([text for text, _ in part])
        sketched = SketchedRows(bytearray(sketches), array("Q", digests), array("I", range(len(part))))
        finder.add(sketched, bytes(rating for _, rating in part))
    return [int(state) for state in finder.states()]


ROWS = [("a b c", 0), (f"{LONG} x", 1), ("A  b C", 3), (f"{LONG} y", 5), ("d e f", 0), ("a b c", 3), (f"{LONG} Y", 2)]


@pytest.mark.parametrize("blocks", [1, 3, 7])
def test_best_of_equal_rows_stays_and_near_ones_fall_together(blocks: int) -> None:
    assert found(ROWS, blocks=blocks) == [EXACT, KEPT, KEPT, NEAR, KEPT, EXACT, EXACT]


@pytest.mark.parametrize("blocks", [1, 3, 7])
def test_equal_rows_are_found_beyond_those_compared_for_similarity(
    monkeypatch: pytest.MonkeyPatch, blocks: int
) -> None:
    monkeypatch.setattr("shared.datasets.duplicates.MAX_NEAR_ROWS", 3)
    assert found(ROWS, blocks=blocks) == [EXACT, KEPT, KEPT, NEAR, KEPT, EXACT, EXACT]


def test_digests_are_kept_once() -> None:
    """44 bytes per row, its rating, and the memory that arrays reserve for the next rows."""
    count, drawn = 2_000, np.random.default_rng(7)
    finder = DuplicateFinder(exact=True, near=0.8, expected_rows=1_000)
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        for block in range(50):
            sketches = bytearray(drawn.bytes(count * SLOTS))
            digests = array("Q", range(block * count, (block + 1) * count))
            finder.add(SketchedRows(sketches, digests, array("I", range(count))), bytes(count))
        del sketches, digests
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert (after - before) / finder.rows < 44 + 8


def test_index_of_near_rows_is_gone_when_equal_rows_are_sorted() -> None:
    """Otherwise a mix would hold both at the same time."""
    digests, sketches = fingerprints(["a b c", "d e f"])
    tracemalloc.start()
    try:
        finder = DuplicateFinder(exact=True, near=0.8, expected_rows=1_000_000)
        finder.add(SketchedRows(bytearray(sketches), array("Q", digests), array("I", range(2))), bytes(2))
        before, _ = tracemalloc.get_traced_memory()
        assert finder.states().tolist() == [KEPT, KEPT]
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert before - after > 30_000_000
    assert finder.compared_rows == 2


def test_kinds_are_chosen() -> None:
    assert found(ROWS, near=None) == [EXACT, KEPT, KEPT, KEPT, KEPT, EXACT, EXACT]
    assert found(ROWS, exact=False) == [KEPT, KEPT, KEPT, NEAR, KEPT, KEPT, KEPT]
    assert found([]) == []
