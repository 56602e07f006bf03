"""Early stopping: after a number of validations without an improvement over the best one."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from worker.training.early_stopping import is_exhausted, score_at


def metrics(losses: list[float | None]) -> list[dict[str, float]]:
    rows: list[dict[str, float]] = []
    for step, loss in enumerate(losses, start=1):
        found = {} if loss is None else {"valid_loss": loss, "valid_mean_token_accuracy": 0.5}
        rows.append({"step": step, "train_loss": 1.0} | found)
    return rows


@pytest.mark.parametrize(
    ("losses", "patience", "stops"),
    [
        ([], 1, False),
        ([None, None], 1, False),
        ([2.0], 1, False),
        ([2.0, 2.1], 1, True),
        ([2.0, 2.0], 1, True),
        ([2.0, 1.9], 1, False),
        ([2.0, None, 2.1, None, 2.2], 2, True),
        ([2.0, 2.1, 1.9, 2.0], 2, False),
        ([2.0, 9.0, 9.0, 9.0], None, False),
    ],
)
def test_it_stops_when_patience_is_over(losses, patience, stops):
    assert is_exhausted(metrics(losses), patience) is stops


@given(losses=st.lists(st.floats(0, 10), min_size=1, max_size=20), patience=st.integers(1, 5))
def test_a_best_loss_is_never_the_end(losses, patience):
    best_now = losses[-1] < min(losses[:-1], default=11.0)
    assert not (best_now and is_exhausted(metrics(losses), patience))


def test_a_score_is_of_the_newest_step_only():
    rows = metrics([2.0, None, 1.5])
    assert score_at(rows, 3)[:3] == (1.5, 0.5, 0)
    assert score_at(rows, 1) is None
    assert score_at(rows[:2], 2) is None
    assert score_at([], 1) is None
