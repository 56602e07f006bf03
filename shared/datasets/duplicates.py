"""Duplicate rows, exact (except for case and white space) or near, within a file or between two (leakage).

Memory is bounded: an exact index keeps 12 bytes a row, a near index 44 bytes a row for at most ``MAX_NEAR_ROWS`` rows
and a band table of fixed size. Nothing of the rows' text is kept, only its fingerprints (``fingerprints.py``).

Near duplicates are rows whose sketches agree on four neighbouring elements and, by an estimate from all 32, have 0.8 or
more of what they say in common.
"""

from __future__ import annotations

import heapq
from array import array
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from shared.datasets.fingerprints import SLOTS

MAX_PAIRS = 20
MAX_NEAR_ROWS = 1_000_000
SIMILAR = 0.8
BAND = 4
BANDS = SLOTS // BAND
EXACT_BYTES_PER_ROW, NEAR_BYTES_PER_ROW = 12, 44
_ROWS_AT_ONCE = 2_000
_BUCKETS = 256


@dataclass(frozen=True, slots=True, order=True)
class Pair:
    """Two equal or similar lines; ``first`` may be of another file (the training file, for leakage)."""

    second: int
    first: int
    similarity: float = 1.0

    def as_dict(self) -> dict[str, float]:
        return {"first": self.first, "second": self.second, "similarity": round(self.similarity, 2)}


@dataclass(slots=True)
class PairReport:
    """Pairs found: ``rows`` counts the rows that repeat an earlier one, ``pairs`` lists the first of them by line."""

    rows: int = 0
    pairs: list[Pair] = field(default_factory=list)

    def collect(self, pairs: Iterable[Pair]) -> PairReport:
        def counted() -> Iterator[Pair]:
            for pair in pairs:
                self.rows += 1
                yield pair

        self.pairs = heapq.nsmallest(MAX_PAIRS, counted())
        return self

    def extend(self, pairs: NearPairs) -> None:
        """Add the pairs of later rows."""
        self.rows += len(pairs)
        found = zip(pairs.second.tolist(), pairs.first.tolist(), pairs.similarity.tolist(), strict=True)
        self.pairs += [Pair(*pair) for pair in islice(found, MAX_PAIRS - len(self.pairs))]


@dataclass(frozen=True, slots=True)
class NearPairs:
    """Lines that are nearly the same as another, the most similar one there is."""

    second: NDArray[np.uint32]
    first: NDArray[np.uint32]
    similarity: NDArray[np.float64]

    def __len__(self) -> int:
        return len(self.second)


def similarity(one: bytes, other: bytes) -> float:
    """Estimated share of what two sketched texts have in common, 0 to 1."""
    return sum(map(int.__eq__, one, other)) / SLOTS


@dataclass(slots=True)
class SketchedRows:
    """Rows as a near index compares them.

    Attributes:
        sketches: of ``SLOTS`` bytes each, one after another.
    """

    sketches: bytearray = field(default_factory=bytearray)
    digests: array[int] = field(default_factory=lambda: array("Q"))
    lines: array[int] = field(default_factory=lambda: array("I"))

    def __len__(self) -> int:
        return len(self.lines)

    @property
    def nbytes(self) -> int:
        return len(self.sketches) + sum(a.itemsize * len(a) for a in (self.digests, self.lines))

    def extend(self, other: SketchedRows) -> None:
        self.sketches += other.sketches
        self.digests += other.digests
        self.lines += other.lines

    def part(self, begin: int, end: int) -> SketchedRows:
        sketches = self.sketches[begin * SLOTS : end * SLOTS]
        return SketchedRows(sketches, self.digests[begin:end], self.lines[begin:end])

    def parts(self) -> Iterator[SketchedRows]:
        """All of them, a bounded number at a time."""
        for begin in range(0, len(self), _ROWS_AT_ONCE):
            yield self.part(begin, begin + _ROWS_AT_ONCE)


class ExactIndex:
    """Exact duplicates: digests and line numbers, in 256 buckets so that a search needs one bucket's dictionary at a time."""

    def __init__(self) -> None:
        self._digests = [array("Q") for _ in range(_BUCKETS)]
        self._lines = [array("I") for _ in range(_BUCKETS)]

    def __len__(self) -> int:
        return sum(map(len, self._lines))

    @property
    def nbytes(self) -> int:
        return sum(a.itemsize * len(a) for a in (*self._digests, *self._lines))

    def add(self, digests: Iterable[int], lines: Iterable[int]) -> None:
        """Keep rows by digest and line."""
        digests_of, lines_of = self._digests, self._lines
        for digest, line in zip(digests, lines, strict=True):
            bucket = digest % _BUCKETS
            digests_of[bucket].append(digest)
            lines_of[bucket].append(line)

    def extend(self, other: ExactIndex) -> None:
        """Add the rows of later lines."""
        for bucket in range(_BUCKETS):
            self._digests[bucket] += other._digests[bucket]
            self._lines[bucket] += other._lines[bucket]

    def repeats(self) -> PairReport:
        """Rows that repeat an earlier one of the same file."""

        def pairs() -> Iterator[Pair]:
            for digests, lines in zip(self._digests, self._lines, strict=True):
                if len(set(digests)) == len(digests):
                    continue
                seen: dict[int, int] = {}
                for digest, line in zip(digests, lines, strict=True):
                    first = seen.setdefault(digest, line)
                    if first != line:
                        yield Pair(line, first)

        return PairReport().collect(pairs())

    def shared_with(self, training: ExactIndex) -> PairReport:
        """Rows of this file that are in the training file too."""

        def pairs() -> Iterator[Pair]:
            for bucket in range(_BUCKETS):
                trained: dict[int, int] = {}
                for digest, line in zip(training._digests[bucket], training._lines[bucket], strict=True):
                    trained.setdefault(digest, line)
                for digest, line in zip(self._digests[bucket], self._lines[bucket], strict=True):
                    if (first := trained.get(digest)) is not None:
                        yield Pair(line, first)

        return PairReport().collect(pairs())


class NearIndex:
    """Near duplicates: sketches of rows, found by any four neighbouring elements (locality-sensitive hashing).

    The band table has a fixed size, and a newer row replaces an older one in it: in a file much larger than the table
    some near duplicates are missed, but none is reported wrongly.
    """

    def __init__(self, expected_rows: int = MAX_NEAR_ROWS) -> None:
        self._slots = 1 << max(10, min(expected_rows, MAX_NEAR_ROWS).bit_length())
        self._table = np.zeros((BANDS, self._slots), np.uint32)
        """Numbers of rows, from 1; 0 is an empty place."""
        self._rows = SketchedRows()

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def full(self) -> bool:
        return len(self._rows) >= MAX_NEAR_ROWS

    @property
    def nbytes(self) -> int:
        """Bytes that grow with the rows, without the band table."""
        return self._rows.nbytes

    @property
    def table_bytes(self) -> int:
        return self._table.nbytes

    def find(self, rows: SketchedRows) -> NearPairs:
        """Of each row the most similar one in the index that is near but not equal, if there is one."""
        return _joined([self._find(part, self._candidates(part)) for part in rows.parts()])

    def find_and_add(self, rows: SketchedRows) -> NearPairs:
        """Find the near duplicates of rows among those in the index and each other, and keep the rows until the index is full."""
        room = max(0, MAX_NEAR_ROWS - len(self))
        found = [self._find_and_add(part) for part in rows.part(0, room).parts()]
        return _joined([*found, self.find(rows.part(room, len(rows)))])

    def _find_and_add(self, rows: SketchedRows) -> NearPairs:
        candidates, places = self._candidates(rows), self._places(rows)
        numbers = np.arange(len(self) + 1, len(self) + 1 + len(rows), dtype=np.uint32)
        for band in range(BANDS):
            # Where earlier ones of these rows are in the same place, the last of them is its row by now.
            order = np.argsort(places[:, band], kind="stable")
            again = np.flatnonzero(np.diff(places[order, band]) == 0)
            candidates[order[again + 1], band] = numbers[order[again]]
            self._table[band, places[:, band]] = numbers
        self._rows.extend(rows)
        return self._find(rows, candidates)

    def _candidates(self, rows: SketchedRows) -> NDArray[np.uint32]:
        """Of each row, by band, the number of the row that is in its place."""
        found: NDArray[np.uint32] = self._table[np.arange(BANDS), self._places(rows)]
        return found

    def _places(self, rows: SketchedRows) -> NDArray[np.uint32]:
        found: NDArray[np.uint32] = np.frombuffer(rows.sketches, "<u4").reshape(-1, BANDS) % np.uint32(self._slots)
        return found

    def _find(self, rows: SketchedRows, candidates: NDArray[np.uint32]) -> NearPairs:
        """The best of the candidates: of equally similar ones the first row. None if one of them is equal to the row."""
        if not len(self):
            return _joined([])
        there = candidates > 0
        chosen = np.maximum(candidates, 1) - 1
        kept = np.frombuffer(self._rows.sketches, np.uint8).reshape(-1, SLOTS)
        drawn = np.frombuffer(rows.sketches, np.uint8).reshape(-1, 1, SLOTS)
        digests = np.frombuffer(self._rows.digests, np.uint64)
        alike = (kept[chosen] == drawn).sum(axis=2, dtype=np.uint64) * there
        equal = (digests[chosen] == np.frombuffer(rows.digests, np.uint64)[:, None]) & there
        ranked = (alike << np.uint64(32)) + (np.uint64(2**32 - 1) - chosen)
        best = ranked.argmax(axis=1)
        every = np.arange(len(rows))
        near = (alike[every, best] >= SIMILAR * SLOTS) & ~equal.any(axis=1)
        lines = np.frombuffer(self._rows.lines, np.uint32)
        return NearPairs(
            np.frombuffer(rows.lines, np.uint32)[near],
            lines[chosen[every, best][near]],
            alike[every, best][near] / SLOTS,
        )


def _joined(found: list[NearPairs]) -> NearPairs:
    return NearPairs(
        np.concatenate([np.empty(0, np.uint32), *(pairs.second for pairs in found)]),
        np.concatenate([np.empty(0, np.uint32), *(pairs.first for pairs in found)]),
        np.concatenate([np.empty(0), *(pairs.similarity for pairs in found)]),
    )
