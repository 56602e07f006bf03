"""Curves of series: every extreme is included as measured, and the points of a growing run stay the same."""

from __future__ import annotations

import math
import struct
import time
from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.job_series import (
    ABSENT,
    CHUNK_STEPS,
    LARGEST,
    NOT_FINITE,
    SeriesChunk,
    bucket_size,
    storable,
    thinned,
    unpack,
)

FINITE = st.floats(-1e6, 1e6, width=32).map(lambda value: struct.unpack("<f", struct.pack("<f", value))[0])
VALUES = st.lists(FINITE | st.sampled_from([ABSENT, NOT_FINITE]), max_size=300)
SIZES = st.sampled_from([1, 2, 4, 16, 64])


def shown(value: float) -> float | None:
    return float(f"{value:.7g}") if math.isfinite(value) else None


def buckets(values: list[float], first: int, size: int) -> dict[int, list[tuple[int, float]]]:
    """Steps and values of each bucket, without those that have none."""
    found: dict[int, list[tuple[int, float]]] = {}
    for step, value in enumerate(values, start=first):
        if not math.isnan(value):
            found.setdefault((step - 1) // size, []).append((step, value))
    return found


@given(VALUES, st.integers(1, 1000), SIZES)
def test_every_extreme_of_every_bucket_is_there(values: list[float], first: int, size: int) -> None:
    points = dict(zip(*thinned(values, first, size), strict=True))
    for present in buckets(values, first, size).values():
        kept = [points[step] for step, _ in present if step in points]
        finite = [value for _, value in present if math.isfinite(value)]
        if finite:
            assert {shown(min(finite)), shown(max(finite))} <= set(kept)
        assert (None in kept) == (len(finite) < len(present))


@given(VALUES, st.integers(1, 1000), SIZES)
def test_points_are_measured_ones_in_order_with_both_ends(values: list[float], first: int, size: int) -> None:
    steps, points = thinned(values, first, size)
    assert steps == sorted(set(steps))
    assert points == [shown(values[step - first]) for step in steps]
    present = [step for step, value in enumerate(values, start=first) if not math.isnan(value)]
    assert steps[:1] + steps[-1:] == present[:1] + present[-1:]
    assert size > 1 or steps == present


@given(st.integers(1, 10**6), st.integers(1, 10**6), st.integers(2, 5000))
def test_points_are_about_as_many_as_wanted(first: int, steps: int, points: int) -> None:
    last = first + steps - 1
    size = bucket_size(first, last, points)
    assert math.log2(size).is_integer()
    if size == 1:
        assert steps <= points
    else:
        assert 2 * len(range((first - 1) // size, (last - 1) // size + 1)) <= points
        assert steps > points


@given(st.lists(FINITE, min_size=2, max_size=300), st.data())
def test_points_of_a_growing_run_stay(values: list[float], data: st.DataObject) -> None:
    shorter = values[: data.draw(st.integers(1, len(values) - 1))]
    size = data.draw(SIZES.filter(lambda each: each > 1))
    complete = len(shorter) // size * size
    before, after = thinned(shorter, 1, size), thinned(values, 1, size)
    inner = [step for step in before.step if 1 < step <= complete and step != len(shorter)]
    assert inner == [step for step in after.step if 1 < step <= complete and step != len(shorter)]


def test_single_peak_among_a_hundred_thousand_is_there() -> None:
    values = [1.0] * 100_000
    values[54_321], values[77_777], values[88_888] = 9.0, -9.0, NOT_FINITE
    size = bucket_size(1, len(values), 1000)
    points = dict(zip(*thinned(values, 1, size), strict=True))
    assert (points[54_322], points[77_778], points[88_889]) == (9.0, -9.0, None)
    assert len(points) <= 1000 + 3


def test_hundred_thousand_steps_are_thinned_without_a_look_at_each() -> None:
    """Python's own loops took 20 ms a series, during which the API answered more slowly to everybody."""
    values = array("f", map(float, range(100_000)))
    seconds = []
    for _ in range(5):
        began = time.process_time()
        thinned(values, 1, 256)
        seconds.append(time.process_time() - began)
    assert min(seconds) < 0.010


def test_a_smaller_range_shows_more() -> None:
    assert [bucket_size(1, last, 1000) for last in (1000, 1001, 90_000)] == [1, 4, 256]


@pytest.mark.parametrize("value", [0.0, -1.5, LARGEST, 80e9])
def test_values_that_float32_holds_are_kept(value: float) -> None:
    chunk = SeriesChunk.of("train_loss", 1, [ABSENT, storable(value), *[ABSENT] * (CHUNK_STEPS - 2)])
    assert (chunk.first_step, chunk.last_step, len(chunk.values)) == (258, 258, 4 * CHUNK_STEPS)
    assert unpack(chunk.values)[1] == pytest.approx(value, rel=1e-7)
    assert all(math.isnan(each) for each in unpack(chunk.values)[2:])


@pytest.mark.parametrize("value", [None, math.nan, math.inf, -math.inf, 1e300])
def test_others_are_not_finite(value: float | None) -> None:
    assert storable(value) == NOT_FINITE
