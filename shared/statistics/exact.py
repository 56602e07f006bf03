"""Statistics without resampling: exact tests, intervals of rates, and differences that a number of items can show."""

from __future__ import annotations

import math
from statistics import NormalDist

POWER = 0.8
_NORMAL = NormalDist()


def mcnemar_p_value(losses: int, wins: int) -> float:
    """Return the exact two-sided p-value of McNemar's test: the test of a fair coin on the items where the models
    differ.
    """
    total, fewer = losses + wins, min(losses, wins)
    tail = sum(math.comb(total, count) for count in range(fewer + 1))
    return min(1.0, float(2 * tail / 2**total))


def wilson_interval(passed: float, items: float, confidence: float = 0.95) -> tuple[float, float]:
    """Return Wilson's two-sided interval of a rate. Dependent items may count as fewer, such as 12.5.

    Source: Wilson, "Probable inference, the law of succession, and statistical inference" (1927).

    Raises:
        ValueError: no items.
    """
    if items <= 0:
        raise ValueError("a rate needs items")
    z, rate = _NORMAL.inv_cdf((1 + confidence) / 2), passed / items
    scale = 1 + z * z / items
    center = (rate + z * z / (2 * items)) / scale
    half = z * math.sqrt(rate * (1 - rate) / items + z * z / (4 * items * items)) / scale
    # Rounding must not push an end beyond 0 or 1.
    return (0.0 if passed == 0 else center - half), (1.0 if passed == items else center + half)


def items_needed(difference: float, spread: float, alpha: float = 0.05, power: float = POWER) -> int:
    """Return the number of items that show a difference, one-sided.

    Args:
        difference: the smallest to detect.
        spread: mean of the squared differences of pairs; for passes and failures, the share of items on which the
            models differ.
        alpha: probability of a false alarm.
        power: probability of detecting an existing difference.
    """
    left = max(spread - difference**2, 0.0)
    deviation = _NORMAL.inv_cdf(1 - alpha) * math.sqrt(spread) + _NORMAL.inv_cdf(power) * math.sqrt(left)
    return math.ceil((deviation / difference) ** 2)


def smallest_visible(items: int, spread: float, alpha: float = 0.05, power: float = POWER) -> float | None:
    """Return the smallest difference that a number of items detects, within a thousandth of itself; None if none.

    Arguments are as in :func:`items_needed`, whose inverse this is.
    """
    low, high = 0.0, math.sqrt(spread)
    if high == 0 or items_needed(high, spread, alpha, power) > items:
        return None
    while high - low > high / 1_000:
        middle = (low + high) / 2
        low, high = (low, middle) if items_needed(middle, spread, alpha, power) <= items else (middle, high)
    return high
