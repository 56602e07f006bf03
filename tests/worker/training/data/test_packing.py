"""Packing: every row once, no bin over its capacity, few bins, always the same ones, and a million rows in seconds."""

from __future__ import annotations

import itertools
import random
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from worker.training.data.packing import efficiency, pack

CASES = st.integers(1, 300).flatmap(lambda capacity: st.tuples(st.lists(st.integers(1, capacity)), st.just(capacity)))


def best_fit_decreasing(lengths: list[int], capacity: int) -> int:
    """Bins that the rule needs, in its simplest form."""
    rooms: list[int] = []
    for length in sorted(lengths, reverse=True):
        fitting = [room for room in rooms if room >= length]
        if fitting:
            rooms.remove(min(fitting))
        rooms.append((min(fitting) if fitting else capacity) - length)
    return len(rooms)


@pytest.mark.exhaustive
@settings(max_examples=300, deadline=None)
@given(case=CASES)
def test_every_row_is_in_one_bin_that_holds_it(case):
    lengths, capacity = case
    bins = pack(lengths, capacity)
    assert sorted(index for indices in bins for index in indices) == list(range(len(lengths)))
    assert all(sum(lengths[index] for index in indices) <= capacity for indices in bins)
    assert all(indices == sorted(indices) for indices in bins)
    assert bins == pack(lengths, capacity)


@pytest.mark.exhaustive
@settings(max_examples=300, deadline=None)
@given(case=CASES)
def test_it_is_best_fit_decreasing(case):
    lengths, capacity = case
    assert len(pack(lengths, capacity)) == best_fit_decreasing(lengths, capacity)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.lists(st.integers(1, 99), max_size=6, unique=True), min_size=1, max_size=30))
def test_it_keeps_within_two_ninths_of_the_fewest_bins(cuts):
    """Rows that are cut out of full bins: as many bins as were cut are the fewest."""
    lengths = [after - before for one in cuts for before, after in itertools.pairwise([0, *sorted(one), 100])]
    assert len(pack(lengths, 100)) <= 11 / 9 * len(cuts) + 6 / 9


def test_small_cases():
    assert pack([], 8) == []
    assert pack([3, 8, 5, 2, 6], 8) == [[1], [3, 4], [0, 2]]
    assert pack([4, 4, 4], 8) == [[0, 1], [2]]


@pytest.mark.parametrize("lengths", [[9], [0], [4, -1]])
def test_a_length_that_no_bin_holds_is_an_error(lengths):
    with pytest.raises(ValueError, match="a bin holds 1 to 8"):
        pack(lengths, 8)


def test_efficiency_is_the_part_that_holds_tokens():
    assert efficiency([], [], 8) == 1.0
    assert efficiency([8, 4, 2], pack([8, 4, 2], 8), 8) == 14 / 16


@pytest.mark.exhaustive
def test_chats_fill_their_bins_and_a_million_take_seconds():
    draw = random.Random(0)
    lengths = [max(1, min(8192, round(draw.lognormvariate(5.595, 0.995)))) for _ in range(300_000)]
    start = time.process_time()
    bins = pack(lengths, 8192)
    assert time.process_time() - start < 6
    assert efficiency(lengths, bins, 8192) >= 0.999
