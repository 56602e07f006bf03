"""Repeated comparisons: an error level for each, so that the chance of any false alarm stays at the requested level."""

from __future__ import annotations

import math


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
