"""Duplicate rows, exact (except for case and white space) or near, within a file or between two (leakage).

Memory is bounded: an exact index keeps 12 bytes per row and sorts ``_SORTED_ROWS`` at once, a near index keeps 44 bytes per
row for at most ``MAX_NEAR_ROWS`` rows and a band table of fixed size. Only fingerprints of rows are kept
(``fingerprints.py``), no content.

Near duplicates are rows whose sketches agree on four neighbouring elements and, by an estimate from all 32, share at
least 0.8 of their content.
"""

from __future__ import annotations

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
_SORTED_ROWS = 1 << 20

Digests = NDArray[np.uint64]
Lines = NDArray[np.uint32]


@dataclass(frozen=True, slots=True, order=True)
class SimilarLines:
    """Two equal or similar lines; ``first`` may be in another file (for leakage, in the training file)."""

    second: int
    first: int
    similarity: float = 1.0

    def as_dict(self) -> dict[str, float]:
        return {"first": self.first, "second": self.second, "similarity": round(self.similarity, 2)}


@dataclass(slots=True)
class PairReport:
    """Pairs found: ``rows`` counts the rows that repeat an earlier one, ``pairs`` lists the first of them by line."""

    rows: int = 0
    pairs: list[SimilarLines] = field(default_factory=list)

    @classmethod
    def of(cls, groups: list[Pairs]) -> PairReport:
        """Make the report of pairs given in any order."""
        report, pairs = cls(), joined(groups)
        report.extend(pairs.where(np.argsort(pairs.second)))
        return report

    def extend(self, pairs: Pairs) -> None:
        """Add the pairs of later rows."""
        self.rows += len(pairs)
        lines = zip(pairs.second.tolist(), pairs.first.tolist(), pairs.similarity.tolist(), strict=True)
        self.pairs += [SimilarLines(*pair) for pair in islice(lines, MAX_PAIRS - len(self.pairs))]


@dataclass(frozen=True, slots=True)
class Pairs:
    """Lines that are equal to another or nearly the same, each with the line that it is most similar to."""

    second: NDArray[np.uint32]
    first: NDArray[np.uint32]
    similarity: NDArray[np.float64]

    def __len__(self) -> int:
        return len(self.second)

    def where(self, chosen: NDArray[np.bool_] | NDArray[np.int64]) -> Pairs:
        """Return the chosen lines, in that order."""
        return Pairs(self.second[chosen], self.first[chosen], self.similarity[chosen])


def similarity(sketch: bytes, other: bytes) -> float:
    """Estimate the share of content that two sketched strings have in common, 0 to 1."""
    return sum(map(int.__eq__, sketch, other)) / SLOTS


@dataclass(slots=True)
class SketchedRows:
    """Rows as a near index compares them.

    Attributes:
        sketches: sketches of ``SLOTS`` bytes each, one after another.
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
        """Iterate over the rows, a bounded number at a time."""
        for begin in range(0, len(self), _ROWS_AT_ONCE):
            yield self.part(begin, begin + _ROWS_AT_ONCE)


class ExactIndex:
    """Exact duplicates: digests and line numbers of rows, which are added by ascending line."""

    def __init__(self, digests: array[int] | None = None, lines: array[int] | None = None) -> None:
        self._digests = array("Q") if digests is None else digests
        self._lines = array("I") if lines is None else lines

    def __len__(self) -> int:
        return len(self._lines)

    @property
    def nbytes(self) -> int:
        return sum(a.itemsize * len(a) for a in (self._digests, self._lines))

    def add(self, digests: Iterable[int], lines: Iterable[int]) -> None:
        """Keep rows by digest and line."""
        self._digests.extend(digests)
        self._lines.extend(lines)

    def extend(self, other: ExactIndex) -> None:
        """Add the rows of later lines."""
        self._digests += other._digests
        self._lines += other._lines

    def digests_of(self, lines: Lines) -> Digests:
        """Return the digests of rows in this index, by their lines."""
        digests, own_lines = np.frombuffer(self._digests, np.uint64), np.frombuffer(self._lines, np.uint32)
        line_digests: Digests = digests[np.searchsorted(own_lines, lines)]
        return line_digests

    def repeats(self) -> PairReport:
        """Find the rows that repeat an earlier one of the same file, and report the first of them."""
        return PairReport.of([self.pairs()])

    def pairs(self) -> Pairs:
        """Find all rows that repeat an earlier row of the same file, in any order, each with the first equal row."""
        groups = []
        for share in range(shares := _shares(len(self))):
            digests, lines = self._share(share, shares)
            ordered = np.sort(digests)
            repeated = np.unique(ordered[1:][ordered[1:] == ordered[:-1]])
            pairs = _pairs(digests, lines, repeated, _first_lines(digests, lines, repeated))
            groups.append(pairs.where(pairs.first != pairs.second))
        return joined(groups)

    def shared_with(self, training: ExactIndex) -> PairReport:
        """Find the rows of this file that are in the training file too."""
        groups = []
        for share in range(shares := _shares(max(len(self), len(training)))):
            digests, lines = self._share(share, shares)
            trained, trained_lines = training._share(share, shares)
            both = np.intersect1d(digests, trained)
            groups.append(_pairs(digests, lines, both, _first_lines(trained, trained_lines, both)))
        return PairReport.of(groups)

    def _share(self, number: int, of: int) -> tuple[NDArray[np.uint64], NDArray[np.uint32]]:
        """Divide the rows into ``of`` shares, and return the digests and lines of one; rows with equal digests are in
        the same share.
        """
        digests, lines = np.frombuffer(self._digests, np.uint64), np.frombuffer(self._lines, np.uint32)
        if of == 1:
            return digests, lines
        inside = digests % np.uint64(of) == number
        return digests[inside], lines[inside]


def _shares(rows: int) -> int:
    """Return the number of shares in which rows are compared, to bound the rows that are sorted at once."""
    return 1 + rows // _SORTED_ROWS


def _first_lines(digests: Digests, lines: Lines, selected: Digests) -> Lines:
    """Return the first line of each wanted digest; the wanted ones are sorted and all present."""
    inside = _are_in(digests, selected)
    _, index = np.unique(digests[inside], return_index=True)
    return lines[inside][index]


def _pairs(digests: Digests, lines: Lines, selected: Digests, firsts: Lines) -> Pairs:
    """Return the lines with a wanted digest, each with that digest's first line."""
    inside = _are_in(digests, selected)
    return Pairs(lines[inside], firsts[np.searchsorted(selected, digests[inside])], np.ones(np.count_nonzero(inside)))


def _are_in(digests: Digests, selected: Digests) -> NDArray[np.bool_]:
    if not len(selected):
        return np.zeros(len(digests), np.bool_)
    nearest: Digests = selected[np.minimum(np.searchsorted(selected, digests), len(selected) - 1)]
    is_in: NDArray[np.bool_] = nearest == digests
    return is_in


class NearIndex:
    """Near duplicates: sketches of rows, found by any four neighbouring elements (locality-sensitive hashing).

    The band table has a fixed size, and a newer row replaces an older one in it: in a file much larger than the table,
    some near duplicates are missed, but none is reported wrongly.
    """

    def __init__(self, expected_rows: int = MAX_NEAR_ROWS) -> None:
        self._slots = 1 << max(10, min(expected_rows, MAX_NEAR_ROWS).bit_length())
        self._table = np.zeros(BANDS * self._slots, np.uint32)
        """The band table: numbers of rows, from 1, by band and place; 0 is an empty place."""
        self._rows = SketchedRows()

    def __len__(self) -> int:
        return len(self._rows)

    def exact_index(self) -> ExactIndex:
        """Return an index of the same rows that finds equal ones. It takes their digests over, so this one can no longer
        be used.
        """
        index = ExactIndex(self._rows.digests, self._rows.lines)
        self._rows = SketchedRows()
        return index

    @property
    def full(self) -> bool:
        return len(self._rows) >= MAX_NEAR_ROWS

    @property
    def nbytes(self) -> int:
        """Bytes of the parts that grow with the rows, without the band table."""
        return self._rows.nbytes

    @property
    def table_bytes(self) -> int:
        return self._table.nbytes

    def find(self, rows: SketchedRows) -> Pairs:
        """Find the most similar row in the index for each row, if one is near but not equal."""
        return joined([self._find(part, self._candidates(part)) for part in rows.parts()])

    def find_and_add(self, rows: SketchedRows) -> Pairs:
        """Find the near duplicates of rows among those in the index and each other, and keep the rows until the index
        is full.
        """
        room = max(0, MAX_NEAR_ROWS - len(self))
        groups = [self._find_and_add(part) for part in rows.part(0, room).parts()]
        return joined([*groups, self.find(rows.part(room, len(rows)))])

    def _find_and_add(self, rows: SketchedRows) -> Pairs:
        places = self._places(rows)
        candidates = self._table[places]
        numbers = np.arange(len(self) + 1, len(self) + 1 + len(rows), dtype=np.uint32)
        self._table[places] = numbers[:, None]  # the last row with the same place stays
        self._take_earlier(candidates, places, numbers)
        self._rows.extend(rows)
        return self._find(rows, candidates)

    def _take_earlier(
        self, candidates: NDArray[np.uint32], places: NDArray[np.int64], numbers: NDArray[np.uint32]
    ) -> None:
        """Correct the candidates of rows that share a table place: each gets the row before it as its candidate, not
        the last one in the table.
        """
        flat = places.ravel()
        replaced = np.flatnonzero(self._table[flat] != np.repeat(numbers, BANDS))
        if not len(replaced):
            return
        last = (self._table[flat[replaced]] - numbers[0]) * np.int64(BANDS) + replaced % BANDS
        sharing = np.union1d(replaced, last)
        order = sharing[np.argsort(flat[sharing], kind="stable")]
        again = np.flatnonzero(flat[order[1:]] == flat[order[:-1]])
        candidates.ravel()[order[again + 1]] = numbers[order[again] // BANDS]

    def _candidates(self, rows: SketchedRows) -> NDArray[np.uint32]:
        """Look up, for each row and band, the number of the row in its table place."""
        rows_in_table: NDArray[np.uint32] = self._table[self._places(rows)]
        return rows_in_table

    def _places(self, rows: SketchedRows) -> NDArray[np.int64]:
        bands = np.frombuffer(rows.sketches, "<u4").reshape(-1, BANDS)
        return (bands & np.uint32(self._slots - 1)) + np.arange(BANDS) * self._slots

    def _find(self, rows: SketchedRows, candidates: NDArray[np.uint32]) -> Pairs:
        """Find the best candidate, the first row of equally similar ones; None if one of them is equal to the row."""
        there = np.flatnonzero(candidates.ravel())
        row, chosen = there // BANDS, candidates.ravel()[there].astype(np.int64) - 1
        kept = np.frombuffer(self._rows.sketches, np.uint8).reshape(-1, SLOTS)
        drawn = np.frombuffer(rows.sketches, np.uint8).reshape(-1, SLOTS)
        same = np.packbits(kept[chosen] == drawn[row], axis=1).view("<u4").ravel()
        alike = np.bitwise_count(same).astype(np.int64)
        ranks = np.full(len(rows), -1)
        similar = alike >= SIMILAR * SLOTS
        # One number for both: the greatest similarity, and among equal ones the earliest row.
        np.maximum.at(ranks, row[similar], (alike[similar] << 32) + (2**32 - 1 - chosen[similar]))
        equal = np.frombuffer(self._rows.digests, np.uint64)[chosen] == np.frombuffer(rows.digests, np.uint64)[row]
        ranks[row[equal]] = -1
        near = np.flatnonzero(ranks >= 0)
        return Pairs(
            np.frombuffer(rows.lines, np.uint32)[near],
            np.frombuffer(self._rows.lines, np.uint32)[2**32 - 1 - (ranks[near] & (2**32 - 1))],
            (ranks[near] >> 32) / SLOTS,
        )


def joined(groups: list[Pairs]) -> Pairs:
    """Join groups of pairs into one."""
    return Pairs(
        np.concatenate([np.empty(0, np.uint32), *(pairs.second for pairs in groups)]),
        np.concatenate([np.empty(0, np.uint32), *(pairs.first for pairs in groups)]),
        np.concatenate([np.empty(0), *(pairs.similarity for pairs in groups)]),
    )
