"""Exact tests and rates agree with statsmodels and scipy; the detectable differences match the table of the design."""

from __future__ import annotations

import json
import math
from pathlib import Path
from statistics import NormalDist

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.statistics.exact import items_needed, mcnemar_p_value, smallest_visible, wilson_interval

SCIPY = json.loads((Path(__file__).with_name("golden") / "scipy.json").read_bytes())


def test_mcnemar_is_statsmodels() -> None:
    for case in SCIPY["mcnemar"]:
        assert mcnemar_p_value(case["losses"], case["wins"]) == pytest.approx(case["p"], abs=1e-12)


def test_wilson_is_scipys() -> None:
    for case in SCIPY["wilson"]:
        assert wilson_interval(case["passed"], case["items"]) == pytest.approx(tuple(case["interval"]), abs=1e-9)
    with pytest.raises(ValueError):
        wilson_interval(0, 0)


@given(st.data(), st.integers(1, 400), st.floats(0.5, 0.999))
def test_wilson_inverts_the_score_test(data: st.DataObject, items: int, confidence: float) -> None:
    """Independently of the closed form: an end is the rate whose standard error makes the found rate z errors away."""
    passed = data.draw(st.integers(0, items))
    low, high = wilson_interval(passed, items, confidence)
    rate, z = passed / items, NormalDist().inv_cdf((1 + confidence) / 2)
    assert 0 <= low <= rate <= high <= 1

    def errors_away(other: float) -> float:
        return abs(rate - other) - z * math.sqrt(other * (1 - other) / items)

    assert [errors_away(end) for end in (low, high)] == pytest.approx([0, 0], abs=1e-9)


@pytest.mark.parametrize(
    ("difference", "spread", "items"),
    [(0.10, 0.2, 122), (0.05, 0.1, 246), (0.05, 0.2, 493), (0.03, 0.1, 685), (0.02, 0.1, 1_544), (0.01, 0.05, 3_090)],
)
def test_what_a_number_of_items_shows(difference: float, spread: float, items: int) -> None:
    assert items_needed(difference, spread) == pytest.approx(items, abs=2)
    assert smallest_visible(items, spread) == pytest.approx(difference, rel=0.01)


def test_too_few_items_show_nothing() -> None:
    assert smallest_visible(2, 0.1) is None
    assert smallest_visible(100, 0.0) is None


@given(st.integers(1, 5_000), st.floats(0.001, 1))
def test_what_is_visible_needs_no_more_items(items: int, spread: float) -> None:
    visible = smallest_visible(items, spread)
    assert visible is None or items_needed(visible, spread) <= items


@given(st.integers(0, 300), st.integers(0, 300))
def test_a_p_value_is_symmetric_and_one_for_equal_counts(losses: int, wins: int) -> None:
    assert mcnemar_p_value(losses, wins) == mcnemar_p_value(wins, losses) <= 1
    assert mcnemar_p_value(losses, losses) == 1
