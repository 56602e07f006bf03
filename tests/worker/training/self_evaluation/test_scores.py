"""Which rows are scored, and how two models' scores of them are compared."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.model_card.evaluation_rows import MIN_ROWS, RowScore, compare_accuracies, compare_losses
from worker.training.self_evaluation.scores import (
    MAX_ROWS,
    MAX_TOKENS,
    MIN_TOKENS,
    choose_rows,
)

OLD = [RowScore(loss=2.0 * n, correct=1, weight=n, targets=n) for n in range(1, 11)]
NEW = [RowScore(loss=1.0 * n, correct=n, weight=n, targets=n) for n in range(1, 11)]


@given(st.lists(st.integers(1, 4096), min_size=1, max_size=300), st.integers(0, 10**7), st.integers(0, 5))
def test_rows_are_few_and_always_the_same(lengths, trained, seed):
    chosen = choose_rows(lengths.__getitem__, len(lengths), trained, seed)
    assert chosen == choose_rows(lengths.__getitem__, len(lengths), trained, seed)
    assert len(set(chosen)) == len(chosen)
    assert min(MIN_ROWS, len(lengths)) <= len(chosen) <= MAX_ROWS
    limit = min(MAX_TOKENS, max(MIN_TOKENS, trained // 10))
    assert len(chosen) <= MIN_ROWS or sum(lengths[row] for row in chosen) <= limit


def test_another_seed_takes_other_rows():
    assert choose_rows(lambda _: 1, 10_000, 0, 1) != choose_rows(lambda _: 1, 10_000, 0, 2)


def test_losses_are_per_token_and_differences_per_row():
    found = compare_losses(OLD, NEW)
    assert found is not None
    assert (found.base, found.tuned, found.row_difference) == pytest.approx((2.0, 1.0, -1.0))
    assert found.interval == pytest.approx((-1.0, -1.0))


def test_accuracies_are_per_token_and_their_interval_has_a_width():
    found = compare_accuracies(OLD, NEW)
    assert found is not None
    assert (found.base, found.tuned) == pytest.approx((10 / 55, 1.0))
    assert found.row_difference == pytest.approx(sum((n - 1) / n for n in range(1, 11)) / 10)
    assert found.interval is not None
    assert found.interval[0] < found.row_difference < found.interval[1]
    equal = compare_accuracies(OLD, OLD)
    assert equal is not None
    assert equal.interval is not None
    assert equal.interval[0] < 0 < equal.interval[1]


def test_few_rows_have_no_interval():
    for found in (compare_losses(OLD[:7], NEW[:7]), compare_accuracies(OLD[:7], NEW[:7])):
        assert found is not None
        assert found.interval is None


def test_a_loss_that_is_not_finite_is_not_compared():
    assert compare_losses(OLD, [NEW[0]._replace(loss=math.nan), *NEW[1:]]) is None
    assert compare_losses([], []) is None
    assert compare_accuracies([], []) is None
