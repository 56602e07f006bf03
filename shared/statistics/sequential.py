"""A test that may be looked at after every answer: whether a new model loses more often than it wins.

Wins and losses are the items on which the two models differ. While the new model is no worse, the e-value is a
supermartingale that begins at 1: that it ever reaches 1/alpha has at most the chance alpha, however often and
whenever it is looked at (Ville's inequality).
"""

from __future__ import annotations

import math

MAX_TERMS = 10_000
_TINY = 1e-300


def log_e_value(losses: int, wins: int) -> float:
    """The natural logarithm of the e-value against "the new model loses at most half of what differs".

    The likelihood ratio to a fair coin, mixed over all coins that lose more often, with the upper half of Jeffreys' prior:
    ``2^(b+c) · 2 · B(b+½, c+½) · (1 - I_½(b+½, c+½)) / π`` of b losses and c wins.

    Source: Ramdas and others, "Game-theoretic statistics and safe anytime-valid inference" (2023), the method of mixtures.

    Raises:
        ValueError: a count is negative.
    """
    if min(losses, wins) < 0:
        raise ValueError("losses and wins are counts")
    lost, won = losses + 0.5, wins + 0.5
    if wins >= losses:
        # 1 - I_½(lost, won) = I_½(won, lost), whose factors cancel all others.
        return math.log(_continued_fraction(won, lost) / (math.pi * won))
    log_beta = math.lgamma(lost) + math.lgamma(won) - math.lgamma(lost + won)
    log_lower = math.log(_continued_fraction(lost, won) / lost) - (lost + won) * math.log(2) - log_beta
    return (lost + won) * math.log(2) + log_beta + math.log1p(-math.exp(log_lower)) - math.log(math.pi)


def is_worse(losses: int, wins: int, alpha: float = 0.05) -> bool:
    """Whether the new model is shown to be worse. Stop at the first look that says so: later ones may not."""
    return log_e_value(losses, wins) >= -math.log(alpha)


def _continued_fraction(a: float, b: float) -> float:
    """The continued fraction of the incomplete beta function I_½(a, b) for a ≥ b, by Lentz's method.

    Source: DLMF 8.17.22.
    """
    numerator, denominator, value = 1.0, 0.0, 1.0
    for term in range(MAX_TERMS):
        m = term // 2
        if term == 0:
            step = 1.0
        elif term % 2 == 0:
            step = m * (b - m) / (2 * (a + 2 * m - 1) * (a + 2 * m))
        else:
            step = -(a + m) * (a + b + m) / (2 * (a + 2 * m) * (a + 2 * m + 1))
        denominator = 1 / _away_from_zero(1 + step * denominator)
        numerator = _away_from_zero(1 + step / numerator)
        value *= numerator * denominator
        if term and abs(numerator * denominator - 1) < 1e-15:
            break
    # The leading 1 was the fraction's first numerator.
    return value - 1


def _away_from_zero(value: float) -> float:
    return value if abs(value) > _TINY else _TINY
