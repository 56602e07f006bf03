"""A sequential test, valid at every look: whether a new model loses more often than it wins.

Wins and losses are the items on which the two models differ. If the new model is not worse, the e-value is a
supermartingale that begins at 1: the chance that it ever reaches 1/alpha is at most alpha, however often and whenever
it is looked at (Ville's inequality).

For the other direction (the model loses at most a margin more often than it wins), each item is a bet against a larger
loss. The wealth of the bets is an e-value too, and the margins that it refutes form an interval that is valid at every
look.
"""

from __future__ import annotations

import math

MAX_TERMS = 10_000
# A continued fraction divides by its terms, which may be zero (Lentz's method).
_TINY = 1e-300
STAKES = (0.9, 0.75, *(0.5**power for power in range(1, 10)))
"""Stakes, as shares of the largest bet that cannot lose everything: small ones gain if losses are frequent, large ones
if losses are absent.
"""


def log_e_value(losses: int, wins: int) -> float:
    """Return the natural logarithm of the e-value against "the new model loses at most half of the differing items".

    The likelihood ratio to a fair coin, mixed over all coins that lose more often, with the upper half of Jeffreys'
    prior: ``2^(b+c) · 2 · B(b+½, c+½) · (1 - I_½(b+½, c+½)) / π`` of b losses and c wins.

    Source: Ramdas and others, "Game-theoretic statistics and safe anytime-valid inference" (2023), the method of
    mixtures.

    Raises:
        ValueError: a count is negative.
    """
    if min(losses, wins) < 0:
        raise ValueError("losses and wins are counts")
    lost, won = losses + 0.5, wins + 0.5
    if wins >= losses:
        # 1 - I_½(lost, won) = I_½(won, lost), whose factors cancel all other factors.
        return math.log(_continued_fraction(won, lost) / (math.pi * won))
    log_beta = math.lgamma(lost) + math.lgamma(won) - math.lgamma(lost + won)
    log_lower = math.log(_continued_fraction(lost, won) / lost) - (lost + won) * math.log(2) - log_beta
    return (lost + won) * math.log(2) + log_beta + math.log1p(-math.exp(log_lower)) - math.log(math.pi)


def is_worse(losses: int, wins: int, alpha: float = 0.05) -> bool:
    """Return whether the new model is shown to be worse. Stop at the first look that shows it, because later looks may
    not show it.
    """
    return log_e_value(losses, wins) >= -math.log(alpha)


def log_e_within(losses: int, wins: int, ties: int, margin: float) -> float:
    """Return the natural logarithm of the e-value against the hypothesis that the new model loses more than a margin.

    The hypothesis is that the mean of -1 for a loss, 0 for a tie and 1 for a win is at most -margin. The e-value is the
    mean of ``Π (1 + λ (x + margin))`` over several bets λ, each below ``1 / (1 - margin)``, so that none can lose all.

    Source: Waudby-Smith and Ramdas, "Estimating means of bounded random variables by betting" (2024).

    Args:
        margin: above -1 and below 1; a negative one requires a gain.

    Raises:
        ValueError: a count is negative, or the margin is not between -1 and 1.
    """
    if min(losses, wins, ties) < 0 or not -1 < margin < 1:
        raise ValueError("losses, wins and ties are counts, and a margin lies between -1 and 1")
    logs = []
    for stake in STAKES:
        bet = stake / (1 - margin)
        won, tied, lost = math.log1p(bet * (1 + margin)), math.log1p(bet * margin), math.log1p(-stake)
        logs.append(wins * won + ties * tied + losses * lost)
    highest = max(logs)
    return highest + math.log(math.fsum(math.exp(log - highest) for log in logs) / len(logs))


def anytime_interval(losses: int, wins: int, ties: int, alpha: float = 0.05) -> tuple[float, float]:
    """Return an interval of the mean of -1 for a loss, 0 for a tie and 1 for a win; each end holds at every look with
    probability 1 - alpha.
    """
    return -_least_refuted(losses, wins, ties, alpha), _least_refuted(wins, losses, ties, alpha)


def _least_refuted(losses: int, wins: int, ties: int, alpha: float) -> float:
    """Return the smallest margin for which a larger loss is refuted; 1 without such a margin. The e-value grows with
    the margin.
    """
    low, high = -1.0, 1.0
    for _ in range(40):
        middle = (low + high) / 2
        if log_e_within(losses, wins, ties, middle) >= -math.log(alpha):
            high = middle
        else:
            low = middle
    return high


def _continued_fraction(a: float, b: float) -> float:
    """Compute the continued fraction of the incomplete beta function I_½(a, b) for a ≥ b, by Lentz's method.

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
