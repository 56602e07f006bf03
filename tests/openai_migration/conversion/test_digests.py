"""A set of digests contains what was added, and takes eight bytes for each."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from openai_migration.conversion.digests import DigestSet

digests = st.integers(0, 30) | st.integers(2**64 - 30, 2**64 - 1)


@given(st.lists(st.lists(digests, max_size=12), max_size=8), st.lists(digests, max_size=20))
def test_a_digest_is_in_the_set_if_it_was_added(added: list[list[int]], asked: list[int]) -> None:
    found, expected = DigestSet(), set[int]()
    for some in added:
        found.add(np.array(some, np.uint64))
        expected |= set(some)
        assert len(found) == len(expected)
    assert found.has(np.array(asked, np.uint64)).tolist() == [digest in expected for digest in asked]


def test_additions_leave_few_arrays() -> None:
    found = DigestSet()
    for begin in range(0, 100_000, 500):
        found.add(np.arange(begin, begin + 500, dtype=np.uint64))
    assert len(found) == 100_000
    assert found.nbytes == 8 * len(found)
    assert found.runs <= 10
