"""Choose the rows of a training file to hold out, for preflight and trainer alike; count copies of them that are
trained on.
"""

from __future__ import annotations

import random

import numpy as np
from numpy.typing import NDArray

from shared.datasets.duplicates import ExactIndex, Lines

Numbers = NDArray[np.int64]
"""Row numbers."""


def split_validation(rows: int, held_out: int, seed: int) -> tuple[Numbers, Numbers]:
    """Shuffle row numbers with the seed and hold out the tail; (training, validation)."""
    shuffled = list(range(rows))
    random.Random(f"split-{seed}").shuffle(shuffled)
    cut = rows - held_out
    return np.array(shuffled[:cut], dtype=np.int64), np.array(shuffled[cut:], dtype=np.int64)


def count_copies(index: ExactIndex, lines: Lines, held_out: int, seed: int) -> int:
    """Count held-out rows that repeat, ignoring case and white space, a row that is trained on.

    Args:
        index: the file's rows.
        lines: lines of the rows that are split, ascending; the others are left out by the filter, or skipped.
    """
    digests = index.digests_of(lines)
    training, validation = split_validation(len(lines), held_out, seed)
    return int(np.isin(digests[validation], digests[training]).sum())
