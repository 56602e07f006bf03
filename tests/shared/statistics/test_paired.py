"""Non-inferiority: a model that passes is not worse, an undecided result says so, and a worse model seldom passes."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shared.statistics.paired import Status, compare

MARGIN = 0.03


def test_equal_answers_pass_only_when_they_are_enough() -> None:
    few = compare([1.0] * 40, [1.0] * 40, MARGIN)
    assert (few.status, few.difference, few.p_value) == (Status.MISSING_EVIDENCE, 0, 1)
    assert few.items_needed
    assert few.items_needed > 40
    assert few.reason == "40 items are too few to exclude a loss of 0.03"
    many = compare([1.0] * 200, [1.0] * 200, MARGIN)
    assert (many.status, many.items_needed, many.reason) == (Status.PASSED, None, "")
    assert many.smallest_visible
    assert many.smallest_visible < MARGIN


def test_a_much_worse_model_fails_and_a_better_one_passes() -> None:
    good, bad = [1.0] * 90 + [0.0] * 10, [1.0] * 60 + [0.0] * 40
    worse = compare(good, bad, MARGIN)
    assert worse.status is Status.FAILED
    assert (worse.old, worse.new, worse.difference) == (0.9, 0.6, pytest.approx(-0.3))
    assert worse.p_value
    assert worse.p_value < 1e-6
    assert compare(bad, good, MARGIN).status is Status.PASSED


def test_a_loss_that_enough_items_leave_open_is_a_failure() -> None:
    # 1,000 items would show that no loss exists; a loss of 2.5 % stays within reach of the margin.
    old = [1.0] * 1_000
    new = [1.0] * 975 + [0.0] * 25
    found = compare(old, new, MARGIN)
    assert found.status is Status.FAILED
    assert "cannot be excluded" in found.reason


def test_without_a_margin_only_a_better_model_passes() -> None:
    equal = compare([1.0, 0.0] * 20, [1.0, 0.0] * 20, 0.0)
    better = compare([0.0] * 40, [1.0] * 40, 0.0)
    assert (equal.status, equal.items_needed) == (Status.MISSING_EVIDENCE, None)
    assert better.status is Status.PASSED


def test_nothing_is_not_evidence() -> None:
    found = compare([], [], MARGIN)
    assert (found.status, found.items, found.interval) == (Status.MISSING_EVIDENCE, 0, None)


def test_scores_other_than_passes_and_failures_are_compared_too() -> None:
    generator = random.Random(3)
    old = [generator.uniform(0.6, 0.9) for _ in range(300)]
    new = [min(1.0, score + generator.gauss(0, 0.05)) for score in old]
    found = compare(old, new, MARGIN)
    assert found.status is Status.PASSED
    assert found.interval
    assert found.interval[0] < (found.difference or 0) < found.interval[1]


def test_models_that_did_not_answer_the_same_items_are_not_compared() -> None:
    with pytest.raises(ValueError):
        compare([1.0, 0.0], [1.0], MARGIN)
    with pytest.raises(ValueError):
        compare([1.0, 0.0], [1.0, 0.0], MARGIN, groups=[1])


def test_ten_tasks_decide_nothing_about_three_hundredths() -> None:
    """The original's `max_regression_drop` on its ten tasks: equal answers are not evidence; the result says how many
    would be.
    """
    found = compare([1.0] * 10, [1.0] * 10, MARGIN)
    assert found.status is Status.MISSING_EVIDENCE
    assert found.smallest_visible is None or found.smallest_visible > MARGIN
    assert found.items_needed
    enough = compare([1.0] * found.items_needed, [1.0] * found.items_needed, MARGIN)
    assert enough.status is Status.PASSED, "the number that it names does"


SCORES = st.lists(
    st.tuples(st.sampled_from([0.0, 0.5, 1.0]), st.sampled_from([0.0, 0.5, 1.0])), min_size=1, max_size=40
)


@settings(max_examples=25, deadline=None)
@given(SCORES)
def test_a_verdict_fits_its_interval(pairs: list[tuple[float, float]]) -> None:
    found = compare([old for old, _ in pairs], [new for _, new in pairs], 0.2)
    assert found.interval
    assert (found.status is Status.PASSED) == (found.interval[0] > -0.2)
    assert (found.items_needed is None) == (found.status is not Status.MISSING_EVIDENCE)
