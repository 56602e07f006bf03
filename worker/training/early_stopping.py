"""Early stopping: a pure function of the validations so far, so a resumed run stops where the uninterrupted one does."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from worker.training.metrics import Score

COLUMN, ACCURACY_COLUMN = "valid_loss", "valid_mean_token_accuracy"
Metrics = Sequence[Mapping[str, float]]
"""Rows of `metrics.csv`, in the order of the steps."""


def is_exhausted(metrics: Metrics, patience: int | None) -> bool:
    """Return whether `patience` validations have passed since the best one; never without a patience."""
    losses = [row[COLUMN] for row in metrics if COLUMN in row]
    return patience is not None and bool(losses) and len(losses) - 1 - losses.index(min(losses)) >= patience


def score_at(metrics: Metrics, step: int) -> Score | None:
    """Return the validation score of a step if it is the newest step and was validated; its number of targets is not
    stored.
    """
    row = metrics[-1] if metrics else {}
    if row.get("step") != step or COLUMN not in row:
        return None
    return Score(row[COLUMN], row[ACCURACY_COLUMN], 0)
