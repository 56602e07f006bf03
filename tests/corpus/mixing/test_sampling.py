"""Sampling by hashes: the copies for a weight, and positions that do not depend on other rows."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from corpus.mixing.sampling import copies_of, order_of

WEIGHTS = st.floats(0, 20)


@given(st.text(), WEIGHTS, WEIGHTS)
def test_larger_weight_has_at_least_as_many_copies(row: str, one: float, other: float) -> None:
    smaller, larger = sorted((one, other))
    assert copies_of(1, row, smaller) <= copies_of(1, row, larger)
    assert int(one) <= copies_of(1, row, one) <= int(one) + 1


def test_places_are_the_same_on_every_machine() -> None:
    assert order_of(42, "83d46372d01c2b3d", 0) == 10148238783704987137
    assert len({order_of(seed, "83d46372d01c2b3d", copy) for seed in range(3) for copy in range(3)}) == 9
