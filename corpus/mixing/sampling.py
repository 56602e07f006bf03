"""Sampling: which rows a weight keeps, and their order.

Both come from hashes of seed and id, and depend on nothing else. A larger weight keeps every row that a smaller one
keeps, and a new row does not move any other row.
"""

from __future__ import annotations

from math import floor

from xxhash import xxh3_64_intdigest

_RANGE = 1 << 64


def hash_of(seed: int, *values: str) -> int:
    """Return XXH3 (64 bits) of seed and parts."""
    return xxh3_64_intdigest("\0".join(values).encode(errors="replace"), seed)


def copies_of(seed: int, row: str, weight: float, sample_rate: float | None = None) -> int:
    """Return the number of copies of a row in the output.

    Args:
        row: the row's id.
    """
    if sample_rate is not None and hash_of(seed, "sample", row) >= sample_rate * _RANGE:
        return 0
    whole = floor(weight)
    part = weight - whole
    return whole + (part > 0 and hash_of(seed, "weight", row) < part * _RANGE)


def order_of(seed: int, row: str, copy: int) -> int:
    """Return the sort key of a copy of a row."""
    return xxh3_64_intdigest(f"{row}\0{copy}".encode(), seed)
