"""Standard errors of groups equal statsmodels'; copies of an answer add no evidence."""

from __future__ import annotations

import json
import random
import statistics
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shared.statistics.clustered import (
    Cluster,
    cluster_bca_interval,
    clustered_rate_interval,
    clustered_standard_error,
    clusters_of,
)
from shared.statistics.exact import wilson_interval
from shared.statistics.paired import Status, compare
from shared.statistics.resampling import bca_interval

CASES = json.loads((Path(__file__).with_name("golden") / "scipy.json").read_bytes())["clustered"]


@pytest.mark.parametrize("case", CASES, ids=lambda case: str(len(case["values"])))
def test_the_standard_error_is_statsmodels(case: dict[str, Any]) -> None:
    assert clustered_standard_error(case["values"], case["groups"]) == pytest.approx(case["standard_error"], rel=1e-9)


def test_groups_of_one_have_the_usual_error() -> None:
    values = [0.1, 0.5, 0.9, 0.2]
    usual = statistics.stdev(values) / 2
    assert clustered_standard_error(values, range(4)) == pytest.approx(usual)
    with pytest.raises(ValueError):
        clustered_standard_error(values, [1, 1, 1, 1])
    with pytest.raises(ValueError):
        clusters_of(values, [1, 1])


VALUES = st.lists(st.floats(-1, 1).map(lambda value: round(value, 3)), min_size=2, max_size=20)


@settings(max_examples=30)
@given(VALUES, st.integers(1, 4))
def test_copies_of_every_value_leave_the_interval_as_it_is(values: list[float], copies: int) -> None:
    clusters = clusters_of(values * copies, [*range(len(values))] * copies)
    found = cluster_bca_interval(clusters, 0.95, resamples=199)
    assert found == pytest.approx(bca_interval(values, 0.95, resamples=199), abs=1e-9)


def test_copies_of_an_answer_are_not_evidence() -> None:
    old, new = [1.0] * 10, [1.0] * 10
    copied = compare(old * 6, new * 6, 0.15, groups=[*range(10)] * 6)
    alone = compare(old, new, 0.15)
    assert (copied.status, copied.items) == (Status.MISSING_EVIDENCE, 60)
    assert copied.interval == pytest.approx(alone.interval)
    assert copied.smallest_visible == alone.smallest_visible
    assert copied.items_needed == 6 * (alone.items_needed or 0)
    # Taken for 60 prompts they would pass.
    assert compare(old * 6, new * 6, 0.15).status is Status.PASSED


def test_values_that_are_alike_within_a_group_widen_the_interval() -> None:
    generator = random.Random(4)
    groups = [group for group in range(20) for _ in range(5)]
    shifts = [generator.gauss(0, 0.3) for _ in range(20)]
    values = [shifts[group] + generator.gauss(0, 0.05) for group in groups]
    low, high = cluster_bca_interval(clusters_of(values, groups), 0.95, resamples=999)
    naive_low, naive_high = bca_interval(values, 0.95, resamples=999)
    assert high - low > 1.5 * (naive_high - naive_low)


def test_equal_groups_have_an_interval_of_no_width() -> None:
    assert cluster_bca_interval([Cluster(1.0, 2), Cluster(2.0, 4)], 0.95) == (0.5, 0.5)


def test_a_rate_of_answers_that_stand_alone_has_wilsons_interval() -> None:
    passed = [number % 4 == 0 for number in range(40)]
    low, high = wilson_interval(10, 40)
    found = clustered_rate_interval(passed, range(40))
    assert found == pytest.approx((low, high))


def test_copies_of_an_answer_do_not_narrow_a_rates_interval() -> None:
    passed = [number % 4 == 0 for number in range(40)]
    copies, groups = [value for value in passed for _ in range(8)], [number for number in range(40) for _ in range(8)]
    low, high = wilson_interval(10, 40)
    found = clustered_rate_interval(copies, groups)
    assert found == pytest.approx((low, high), abs=0.01)
    assert clustered_rate_interval([True] * 320, groups) == pytest.approx(wilson_interval(40, 40))
    naive = wilson_interval(80, 320)
    assert found[1] - found[0] > 2 * (naive[1] - naive[0])


def test_a_rate_needs_answers() -> None:
    with pytest.raises(ValueError):
        clustered_rate_interval([], [])
