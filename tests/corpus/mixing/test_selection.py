"""Shares and the maximum number of rows: no source exceeds its share, and no row is left out unnecessarily."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from corpus.mixing.selection import allowed_rows, find_bounds

SHARES = st.one_of(st.none(), st.floats(0.05, 0.95))


@given(
    st.lists(st.tuples(st.integers(0, 200), SHARES), min_size=1, max_size=4), st.one_of(st.none(), st.integers(1, 300))
)
def test_every_share_holds(sources: list[tuple[int, float | None]], most: int | None) -> None:
    places = np.random.default_rng(1).permutation(1_000).astype(np.uint64)
    keys, begin = [], 0
    for count, _ in sources:
        keys.append(places[begin : begin + count])
        begin += count
    shares = [share for _, share in sources]
    bounds = find_bounds(keys, shares, most)
    counts = []
    for own, end in zip(keys, bounds.by_source, strict=True):
        ends = [bound for bound in (end, bounds.all) if bound is not None]
        counts.append(int(sum(all(key < bound for bound in ends) for key in own.tolist())))
    assert sum(counts) == bounds.rows <= (most or 1_000)
    for count, share in zip(counts, shares, strict=True):
        assert share is None or count <= share * sum(counts) + 1e-9


@pytest.mark.parametrize(
    ("counts", "shares", "most", "rows"),
    [
        ([10, 10], [None, None], None, 20),
        ([10, 10], [None, 0.3], None, 14),
        ([10, 10], [None, 0.5], None, 20),
        ([100, 100], [None, 0.3], 50, 50),
        ([10], [0.9], None, 0),
        ([10, 10, 10], [0.5, 0.5, None], None, 30),
        ([0, 5], [None, 0.9], None, 0),
    ],
)
def test_most_rows_that_keep_every_share(
    counts: list[int], shares: list[float | None], most: int | None, rows: int
) -> None:
    assert allowed_rows(counts, shares, most) == rows
