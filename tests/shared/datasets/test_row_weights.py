"""Row weights: which boosts apply, that they multiply, and that no weight is outside 0 to 8."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.contract.sections import TrajectorySection
from shared.datasets.row_weights import MAX_WEIGHT, row_weight
from shared.datasets.rows import Message, TrainingRow

BOOSTS = TrajectorySection(
    enabled=True, tool_trace_boost=1.5, failure_category_boost=2.0, quality_floor=4, quality_boost=3.0
)
boost = st.floats(min_value=0.0, allow_nan=False, allow_infinity=False)


def row(category: str | None = None, rating: int | None = None) -> TrainingRow:
    return TrainingRow(1, [Message("user", "q"), Message("assistant", "a")], rating=rating, category=category)


@pytest.mark.parametrize(
    ("category", "rating", "weight"),
    [
        (None, None, 1.0), ("prose", None, 1.0), ("tool_trace", None, 1.5), ("Agent_Tool_Trace", None, 1.5),
        ("trajectory", None, 1.5), ("tool", None, 1.0), ("failure_case", None, 2.0), ("ERROR_correction", None, 2.0),
        ("tool_trace_failed", None, 3.0), (None, 3, 1.0), (None, 4, 3.0), (None, 5, 3.0),
        ("trajectory_error", 5, 8.0),
    ],
)  # fmt: skip
def test_boosts_by_hand(category: str | None, rating: int | None, weight: float) -> None:
    assert row_weight(row(category, rating), BOOSTS) == (weight, category == "trajectory_error")


def test_without_a_floor_no_rating_is_boosted() -> None:
    assert row_weight(row(rating=5), BOOSTS.model_copy(update={"quality_floor": None})) == (1.0, False)


def test_a_boost_of_nothing_takes_the_row_out_of_the_loss() -> None:
    assert row_weight(row("tool_trace"), TrajectorySection(enabled=True, tool_trace_boost=0.0)) == (0.0, False)


def test_a_product_that_overflows_counts_once() -> None:
    huge = TrajectorySection(enabled=True, tool_trace_boost=1e308, failure_category_boost=1e308)
    assert row_weight(row("tool_trace_error"), huge) == (1.0, True)


@given(st.text(), st.none() | st.integers(1, 5), boost, boost, boost, st.none() | st.integers(1, 5))
def test_weight_is_the_clamped_product(
    category: str, rating: int | None, trace: float, failure: float, quality: float, floor: int | None
) -> None:
    section = TrajectorySection(
        enabled=True,
        tool_trace_boost=trace,
        failure_category_boost=failure,
        quality_floor=floor,
        quality_boost=quality,
    )
    for name in (category, f"{category}tool_trace", f"{category}fail"):
        weight, clamped = row_weight(row(name, rating), section)
        assert math.isfinite(weight)
        assert 0.0 <= weight <= MAX_WEIGHT
        assert not clamped or weight in {0.0, 1.0, MAX_WEIGHT}


@given(st.text() | st.none(), st.none() | st.integers(1, 5), boost)
def test_disabled_weighs_every_row_alike(category: str | None, rating: int | None, value: float) -> None:
    section = TrajectorySection(
        tool_trace_boost=value, failure_category_boost=value, quality_boost=value, quality_floor=1
    )
    assert row_weight(row(category, rating), section) == (1.0, False)
