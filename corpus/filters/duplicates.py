"""Duplicate rows of a mix: decides which of several equal or similar rows stays, with the engine of
``shared/datasets/duplicates.py``.

Rows are added in the order of their sources. Among equal rows, the one with the highest rating stays, and the first of
those if several share it; among near duplicates, the first stays. Only fingerprints are kept in memory, never texts.
"""

from __future__ import annotations

from array import array
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from corpus.verdicts import VerdictCode
from shared.datasets.duplicates import ExactIndex, NearIndex, Pairs, SketchedRows, joined

States = NDArray[np.uint8]


class RowState(IntEnum):
    """Outcome for a row."""

    KEPT = 0
    EXACT = 1
    NEAR = 2
    HELD_OUT = 3


CODES = {RowState.EXACT: VerdictCode.DUPLICATE_EXACT, RowState.NEAR: VerdictCode.DUPLICATE_NEAR}


class DuplicateFinder:
    """Finds duplicates among rows that are added in order.

    Args:
        exact: whether equal rows are left out.
        near: minimum similarity of near duplicates; None keeps them.
        expected_rows: approximate number of rows that will be added.

    Attributes:
        rows: number of rows that were added.
    """

    def __init__(self, *, exact: bool, near: float | None, expected_rows: int) -> None:
        self.rows = 0
        self._exact = exact
        self._least = near
        self._index = ExactIndex()
        self._near = NearIndex(expected_rows) if near is not None else None
        self._compared = None if near is None else 0
        self._pairs: list[Pairs] = []
        self._ratings = bytearray()

    def add(self, sketched: SketchedRows, ratings: bytes) -> None:
        """Add rows. Their line numbers are replaced by their numbers among all rows."""
        count = len(ratings)
        lines = array("I", range(self.rows, self.rows + count))
        indexed = 0
        if self._near is not None:
            before = len(self._near)
            self._pairs.append(self._near.find_and_add(SketchedRows(sketched.sketches, sketched.digests, lines)))
            self._compared = len(self._near)
            indexed = self._compared - before
        if self._exact:
            # The index of near duplicates has the digests of the others.
            self._index.add(sketched.digests[indexed:], lines[indexed:])
        self._ratings += ratings
        self.rows += count

    @property
    def compared_rows(self) -> int:
        """How many rows, from the first, later rows are compared with for near duplicates; all rows if near duplicates
        are kept.
        """
        return self.rows if self._compared is None else self._compared

    def near_pairs(self) -> Pairs:
        """Return the pairs of near duplicates that are similar enough: each row with an earlier one."""
        pairs = joined(self._pairs)
        return pairs.where(pairs.similarity >= (self._least or 0))

    def states(self) -> States:
        """Return the state of each row: kept, or a duplicate. No rows can be added afterwards."""
        if self._near is not None:
            index = self._near.exact_index()
            index.extend(self._index)
            # The rest of it needs as much memory as the sort of equal rows.
            self._index, self._near = index, None
        states: States = np.zeros(self.rows, np.uint8)
        if self._least is not None:
            states[self.near_pairs().second] = RowState.NEAR
        if self._exact:
            self._keep_best_of_equal(states)
        return states

    def _keep_best_of_equal(self, states: States) -> None:
        pairs = self._index.pairs()
        if not len(pairs):
            return
        firsts = np.unique(pairs.first)
        rows = np.concatenate((firsts, pairs.second))
        groups = np.searchsorted(firsts, np.concatenate((firsts, pairs.first)))
        ratings = np.frombuffer(bytes(self._ratings), np.uint8)[rows].astype(np.int64)
        # The first of each group in this order stays.
        order = np.lexsort((rows, -ratings, groups))
        is_first = np.concatenate(([True], groups[order][1:] != groups[order][:-1]))
        # Of equal rows, only the first is compared with similar rows before it; its verdict applies to all of them.
        near = states[firsts] == RowState.NEAR
        states[rows[order]] = np.where(is_first, RowState.KEPT, RowState.EXACT)
        states[rows[order][is_first & near[groups[order]]]] = RowState.NEAR
