"""Win rates: the share of the items on which a new model's score is higher than an old model's. A tie is half a win.

A score measures the quality of an answer; a win only shows which of two answers is better. So a win rate also works if
scores of different items cannot be compared, such as those of a judge that reads both answers.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

from shared.statistics.paired import CONFIDENCE, compare


@dataclass(frozen=True, slots=True)
class WinRate:
    """Share of items on which a new model's answer is better than an old model's.

    Attributes:
        rate: (wins + ties / 2) / items; None without items.
        interval: the rate's interval; each end is one-sided at the requested confidence.
    """

    wins: int
    ties: int
    losses: int
    rate: float | None
    interval: tuple[float, float] | None


def win_rate(
    old: Sequence[float],
    new: Sequence[float],
    confidence: float = CONFIDENCE,
    groups: Sequence[Hashable] | None = None,
) -> WinRate:
    """Count wins, pair by pair; the arguments are those of :func:`shared.statistics.paired.compare`."""
    won = shares_won(old, new)
    comparison = compare([1 - share for share in won], won, 0.0, confidence, groups)
    return WinRate(won.count(1.0), won.count(0.5), won.count(0.0), comparison.new, rate_interval(comparison.interval))


def shares_won(old: Sequence[float], new: Sequence[float]) -> list[float]:
    """Return, for each pair, 1 if the new score is higher, 0 if the old one is, and 0.5 if they are equal."""
    return [(1 + (after > before) - (after < before)) / 2 for before, after in zip(old, new, strict=True)]


def rate_interval(difference: tuple[float, float] | None) -> tuple[float, float] | None:
    """Return the interval of a win rate, given the interval of wins minus losses per item."""
    return difference and ((1 + difference[0]) / 2, (1 + difference[1]) / 2)
