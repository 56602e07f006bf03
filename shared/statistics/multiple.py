"""Several comparisons at once: p-values adjusted so that the chance of any false alarm stays at the requested level."""

from __future__ import annotations

import math
from collections.abc import Sequence


def spent_alpha(alpha: float, attempt: int) -> float:
    """Return the error level of a test's k-th repetition, ``alpha · 6 / (π² k²)``.

    The error probability of all repetitions together is then at most alpha, for any number of repetitions.

    Source: Foster and Stine, "Alpha-investing" (2008): this is their plain spending rule. The factor makes the levels
        add up to alpha (the Basel problem).

    Raises:
        ValueError: the attempt is below 1.
    """
    if attempt < 1:
        raise ValueError("attempts count from 1")
    return alpha * 6 / (math.pi * attempt) ** 2


def holm_adjusted(p_values: Sequence[float]) -> list[float]:
    """Return Holm's adjusted p-values, in the order given: reject those that are at most alpha.

    The probability of any false rejection is at most alpha, even if the comparisons depend on each other.

    Source: Holm, "A simple sequentially rejective multiple test procedure" (1979).

    Raises:
        ValueError: a p-value is not between 0 and 1.
    """
    if not all(0 <= value <= 1 for value in p_values):
        raise ValueError("a p-value lies between 0 and 1")
    adjusted = [0.0] * len(p_values)
    largest = 0.0
    for rank, index in enumerate(sorted(range(len(p_values)), key=p_values.__getitem__)):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[index]))
        adjusted[index] = largest
    return adjusted
