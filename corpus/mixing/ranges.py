"""Ranges of places: rows that stay are read from all pieces, sorted and written one range at a time."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np

from corpus.filters.duplicates import RowState, States
from corpus.mixing.mix_report import Label
from corpus.mixing.piece_rows import MixPiece
from corpus.mixing.pieces import rows_path
from corpus.mixing.selection import OutputEnds

STATES_NAME, PIECES_NAME = "states.npy", "pieces.json"
"""Names in the work folder: the decision on each row, and the pieces."""


@dataclass(frozen=True, slots=True)
class RangeTask:
    """A range of places that is read from all pieces; ``low`` is included."""

    low: int
    high: int
    work: Path
    bounds: OutputEnds


@dataclass(frozen=True, slots=True)
class SortedRange:
    """The rows of a range, for the output and the validation file and the provenance of each, with their counts.

    Attributes:
        counts: number of rows by source, labels and whether they are held out.
        sizes: size of the output's rows by source, in bytes.
    """

    contents: tuple[bytes, bytes, bytes, bytes]
    counts: Counter[tuple[int, bool, Label]]
    sizes: Counter[int]


def sorted_range(task: RangeTask) -> SortedRange:
    """Read the rows of a range from all pieces, and sort those that stay."""
    states: States = np.load(task.work / STATES_NAME, mmap_mode="r")
    pieces = msgspec.json.decode((task.work / PIECES_NAME).read_bytes())
    rows: list[tuple[int, int, int, bool, bytes, bytes]] = []
    counts: Counter[tuple[int, bool, Label]] = Counter()
    sizes: Counter[int] = Counter()
    for number, first_row, target, labels in pieces:
        piece = MixPiece(Path(target))
        index = piece.entries()
        if not len(index):
            continue
        low, high = np.searchsorted(index["key"], np.array([task.low, task.high - 1], np.uint64), "left")
        high = np.searchsorted(index["key"], np.uint64(task.high - 1), "right")
        entries = np.array(index[low:high])
        if not len(entries):
            continue
        state = states[first_row + entries["row"].astype(np.int64)]
        held_out = (state == RowState.HELD_OUT) & (entries["copy"] == 0)
        kept = state == RowState.KEPT
        for end in (task.bounds.all, task.bounds.by_source[number]):
            if end is not None:
                kept &= entries["key"] < np.uint64(end)
        with rows_path(piece.target).open("rb") as file:
            begin = int(entries["begin"][0])
            file.seek(begin)
            last = entries[-1]
            content = file.read(int(last["begin"]) + int(last["size"]) + int(last["origin_size"]) - begin)
        chosen = np.flatnonzero(kept | held_out)
        for entry, is_held_out in zip(entries[chosen].tolist(), held_out[chosen].tolist(), strict=True):
            key, start, row, size, origin_size, copy, label = entry
            middle = start - begin + size
            line, origin = content[start - begin : middle], content[middle : middle + origin_size]
            rows.append((key, first_row + row, copy, is_held_out, line, origin))
            counts[number, is_held_out, tuple(labels[label])] += 1
            if not is_held_out:
                sizes[number] += size
    rows.sort(key=lambda row: row[:3])
    trained, validated = ([row for row in rows if row[3] is side] for side in (False, True))
    contents = (
        b"".join(row[4] for row in trained),
        b"".join(row[5] for row in trained),
        b"".join(row[4] for row in validated),
        b"".join(row[5] for row in validated),
    )
    return SortedRange(contents, counts, sizes)
