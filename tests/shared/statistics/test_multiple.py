"""Holm's adjustment equals statsmodels', and a family of true null hypotheses is seldom rejected anywhere."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.statistics.multiple import spent_alpha
from tests.support.holm import holm_adjusted

CASES = json.loads((Path(__file__).with_name("golden") / "scipy.json").read_bytes())["holm"]


@pytest.mark.parametrize("case", CASES, ids=lambda case: str(len(case["p"])))
def test_adjusted_values_are_statsmodels(case: dict[str, list[float]]) -> None:
    assert holm_adjusted(case["p"]) == pytest.approx(case["adjusted"], abs=1e-12)


def test_a_family_of_true_nulls_is_rejected_no_more_often_than_it_may() -> None:
    generator, runs, alpha = random.Random(2), 2_000, 0.05
    rejected = sum(min(holm_adjusted([generator.random() for _ in range(6)])) <= alpha for _ in range(runs))
    assert rejected / runs <= alpha + 3 * (alpha * (1 - alpha) / runs) ** 0.5
    # Six unadjusted comparisons would be rejected somewhere in a quarter of the runs.
    assert rejected > 0


@given(st.lists(st.floats(0, 1), max_size=20))
def test_adjusted_values_are_no_smaller_and_keep_their_order(values: list[float]) -> None:
    adjusted = holm_adjusted(values)
    assert all(value <= after <= 1 for value, after in zip(values, adjusted, strict=True))
    ranks = sorted(range(len(values)), key=values.__getitem__)
    assert [adjusted[index] for index in ranks] == sorted(adjusted)


def test_what_is_not_a_p_value_is_refused() -> None:
    for value in (-0.1, 1.1, float("nan")):
        with pytest.raises(ValueError):
            holm_adjusted([0.5, value])


def test_all_attempts_together_spend_no_more_than_alpha() -> None:
    spent = [spent_alpha(0.05, attempt) for attempt in range(1, 10_001)]
    assert spent == sorted(spent, reverse=True)
    assert 0.0499 < sum(spent) < 0.05
    with pytest.raises(ValueError):
        spent_alpha(0.05, 0)
