"""Intervals and p-values by resampling agree with scipy's, up to the error of resampling."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shared.statistics.resampling import BLOCK, SEED, bca_interval, drawn_sums, sign_flip_p_value

SCIPY = json.loads((Path(__file__).with_name("golden") / "scipy.json").read_bytes())


@pytest.mark.exhaustive
@pytest.mark.parametrize("case", SCIPY["comparisons"], ids=lambda case: str(len(case["differences"])))
def test_the_interval_and_the_p_value_are_scipys(case: dict[str, Any]) -> None:
    differences = case["differences"]
    low, high = case["bca_90"]
    # The ends of two bootstraps of 9,999 and 99,999 resamples differ by chance, by a few hundredths of the width; of passes
    # and failures they can also be a whole step of 1/n apart.
    tolerance = (high - low) * 0.04 + (1 / len(differences) if set(differences) <= {-1, 0, 1} else 0)
    assert bca_interval(differences, 0.95) == pytest.approx((low, high), abs=tolerance)
    assert sign_flip_p_value(differences) == pytest.approx(case["sign_flip_p"], abs=0.02)


def test_few_differences_are_looked_at_in_every_combination() -> None:
    case = SCIPY["exact_sign_flip"]
    assert sign_flip_p_value(case["differences"]) == pytest.approx(case["p"], abs=1e-12)


@pytest.mark.parametrize("count", [7, 33, 100])
def test_resamples_are_those_of_pythons_own_generator(count: int) -> None:
    generator = random.Random(SEED)
    values, resamples = [generator.gauss(0, 1) for _ in range(count)], BLOCK // count + 9
    generator = random.Random(SEED)
    expected = [sum(generator.choices(values, k=count)) for _ in range(resamples)]
    [sums] = drawn_sums([values], resamples)
    assert sums.tolist() == pytest.approx(expected, abs=1e-12)


def test_random_signs_are_those_of_pythons_own_generator() -> None:
    differences = [number / 40 - 0.3125 for number in range(40)]
    generator, whole = random.Random(SEED), abs(sum(differences))
    drawn = [generator.getrandbits(40) for _ in range(199)]
    sums = [
        sum(-abs(size) if bits >> place & 1 else abs(size) for place, size in enumerate(differences)) for bits in drawn
    ]
    assert sign_flip_p_value(differences, resamples=199) == (1 + sum(abs(total) >= whole for total in sums)) / 200


VALUES = st.lists(st.floats(-1, 1, allow_nan=False).map(lambda value: round(value, 3)), min_size=1, max_size=30)


@settings(max_examples=40, deadline=None)
@given(VALUES)
def test_an_interval_lies_within_the_values_and_is_the_same_every_time(values: list[float]) -> None:
    low, high = bca_interval(values, 0.95, resamples=199)
    assert min(values) - 1e-9 <= low <= high <= max(values) + 1e-9
    assert bca_interval(values, 0.95, resamples=199) == (low, high)


@settings(max_examples=40, deadline=None)
@given(VALUES)
def test_a_p_value_is_one_and_does_not_change_with_the_sides(values: list[float]) -> None:
    found = sign_flip_p_value(values, resamples=199)
    assert 0 < found <= 1
    assert sign_flip_p_value([-value for value in values], resamples=199) == found
