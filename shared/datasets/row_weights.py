"""Weight of a whole row in the loss, by its own metadata.

The weight is the product of the boosts that apply: for a category that marks a tool trace or a trajectory, for a
category that marks a failure, and for a rating that reaches the quality floor. It is at most 8, so that no row
dominates the others in a step.
"""

from __future__ import annotations

import ctypes
import math

from shared.contract.sections import TrajectorySection
from shared.datasets.filters import Labelled

MAX_WEIGHT = 8.0
TRACE_MARKS = ("tool_trace", "trajectory")
FAILURE_MARKS = ("fail", "error")


def row_weight(row: Labelled, section: TrajectorySection) -> tuple[float, bool]:
    """Return the factor on a row's part of the step's loss.

    Args:
        row: the row's category (compared without case) and rating; without one of them, the boosts that depend on it do
            not apply.
        section: the boosts; when it is not enabled every row weighs 1.

    Returns:
        The weight, finite and in [0, 8]; and whether it differs from the product of the boosts. A product out of range
        is replaced by the nearest bound, and one that is not finite by 1.
    """
    if not section.enabled:
        return 1.0, False
    weight = math.prod(_boosts(row, section))
    if not math.isfinite(weight):
        return 1.0, True
    kept = min(max(weight, 0.0), MAX_WEIGHT)
    return kept, kept != weight


def stored_weight(weight: float) -> float:
    """Return a row's weight as the trainer stores it, in float32, where a very small one is 0."""
    return ctypes.c_float(weight).value


def _boosts(row: Labelled, section: TrajectorySection) -> list[float]:
    category = (row.category or "").lower()
    boosts = []
    if any(mark in category for mark in TRACE_MARKS):
        boosts.append(section.tool_trace_boost)
    if any(mark in category for mark in FAILURE_MARKS):
        boosts.append(section.failure_category_boost)
    if section.quality_floor is not None and row.rating is not None and row.rating >= section.quality_floor:
        boosts.append(section.quality_boost)
    return boosts
