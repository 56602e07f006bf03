"""Values that a step and a validation report: score, step report, and arithmetic with results that JSON can represent.
Pure.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple


class Score(NamedTuple):
    """Means over ``targets`` supervised positions: loss in nats, share of positions that the arg-max predicts; for
    pairs of answers, the share of pairs whose preferred answer has gained more. ``sums`` are the training method's
    sums.
    """

    loss: float
    accuracy: float
    targets: int
    sums: Mapping[str, float] = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class StepReport:
    """A finished optimizer step.

    Attributes:
        epoch: 0-based.
        step: 1-based, over the whole run.
        norm: gradient norm before clipping.
        rate: learning rate.
        tokens: tokens of the step's rows, without padding.
        positions: positions computed, padding included.
        weighted_rows: rows whose trajectory weight is not 1.
        syntax_weight_sum: sum of the targets' weights.
        token_budget: largest number of tokens of a micro-batch; 0 when micro-batches are not packed by tokens.
        attended_keys: sum over the step's queries of the keys each attends to, Σ l·(l+1)/2 for rows of l tokens under
            full causal attention; None assumes that every row has the mean length, which gives a lower bound.
        extra: further metrics of the training method.
    """

    epoch: int
    step: int
    score: Score
    norm: float
    rate: float
    tokens: int
    positions: int
    micro_batches: int
    rows: int
    weighted_rows: int = 0
    syntax_weight_sum: float = 0.0
    token_budget: int = 0
    attended_keys: int | None = None
    extra: Mapping[str, float] = field(default_factory=dict)

    @property
    def keys(self) -> float:
        """Sum of attended keys, measured or bounded from below."""
        if self.attended_keys is not None:
            return self.attended_keys
        return self.tokens * (self.tokens / max(self.rows, 1) + 1) / 2


def mean(values: list[float]) -> float | None:
    """Return the arithmetic mean; None for an empty sequence."""
    return sum(values) / len(values) if values else None


def finite(value: float) -> float | None:
    """Return the value, or None if JSON cannot represent it."""
    return value if math.isfinite(value) else None
