"""Selection: which rows are held out, and where each source's output ends, given its share and the output's row limit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import floor
from typing import Any

import numpy as np
from numpy.typing import NDArray

from corpus.filters.duplicates import RowState, States
from shared.datasets.duplicates import Pairs

Keys = NDArray[np.uint64]


@dataclass(frozen=True, slots=True)
class OutputEnds:
    """Ends of the output: a row is in it if its place is before both.

    Attributes:
        rows: number of rows of the output.
        all: place of the first row that is left out; None if none is.
        by_source: the same for each source.
    """

    rows: int
    all: int | None
    by_source: tuple[int | None, ...]


def hold_out(states: States, groups: NDArray[np.uint64], most: int, near: Pairs | None) -> None:
    """Mark rows as held out: whole groups, by ascending hash, as long as they fit.

    Args:
        states: states of the rows, changed in place. A kept row that is a near duplicate of a row on the other side is
            left out.
        groups: hash of the group of each row.
        near: pairs of similar rows that are both kept; None if similar rows are left out already.
    """
    kept = np.flatnonzero(states == RowState.KEPT)
    names, group_of, sizes = np.unique(groups[kept], return_inverse=True, return_counts=True)
    chosen = np.zeros(len(names), np.bool_)
    left = most
    for number, size in enumerate(sizes.tolist()):
        if size <= left:
            chosen[number] = True
            left -= size
        if not left:
            break
    states[kept[chosen[group_of]]] = RowState.HELD_OUT
    if near is None:
        return
    both = np.stack((states[near.first], states[near.second]))
    across = (both == RowState.HELD_OUT).any(axis=0) & (both == RowState.KEPT).any(axis=0)
    pairs = near.where(across)
    trained = np.where(states[pairs.first] == RowState.KEPT, pairs.first, pairs.second)
    states[trained] = RowState.NEAR


def find_bounds(keys: Sequence[Keys], shares: Sequence[float | None], most: int | None) -> OutputEnds:
    """Return where the output ends.

    Args:
        keys: places of the rows of each source that are kept.
        shares: largest share of each source.
        most: largest number of rows of the output.
    """
    total = allowed_rows([len(places) for places in keys], shares, most)
    ends = [
        _end(places, floor(share * total)) if share is not None else None
        for places, share in zip(keys, shares, strict=True)
    ]
    inside = [
        places if end is None else places[places < np.uint64(end)] for places, end in zip(keys, ends, strict=True)
    ]
    return OutputEnds(total, _end(np.concatenate(inside), total), tuple(ends))


def allowed_rows(counts: Sequence[int], shares: Sequence[float | None], most: int | None) -> int:
    """Return the largest number of rows at which every source keeps its share."""
    total = sum(counts) if most is None else min(most, sum(counts))
    while True:
        bounds = [
            count if share is None else min(count, floor(share * total))
            for count, share in zip(counts, shares, strict=True)
        ]
        if sum(bounds) >= total:
            return total
        total = sum(bounds)


def _end(places: NDArray[Any], rows: int) -> int | None:
    """Return the place of the first row that is left out; None if all of them may stay."""
    return None if rows >= len(places) else int(np.partition(places, rows)[rows])
