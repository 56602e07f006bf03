"""Holm's adjustment of p-values, which the product's comparisons are checked against; equal to statsmodels'."""

from __future__ import annotations

from collections.abc import Sequence


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
