"""Test whether a new model's scores are not worse than an old model's on the same items. Start reading here.

Non-inferiority: the test passes when the interval of the mean difference is above ``-margin``, not because no
difference was found. If the items are too few to tell, the result says so, with the number that would suffice.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from shared.counted_nouns import counted
from shared.statistics.clustered import Cluster, cluster_bca_interval, clusters_of
from shared.statistics.exact import items_needed, mcnemar_p_value, smallest_visible
from shared.statistics.resampling import bca_interval, sign_flip_p_value

CONFIDENCE = 0.95
PADDING = (-1.0, 1.0)
"""Two pairs, each won completely by one of the models, that are added to every comparison, so that a few equal answers
do not give an interval of zero width. After Agresti and Min, "Simple improved confidence intervals for comparing
matched proportions" (2005).
"""


class Status(StrEnum):
    """Outcome of a comparison."""

    PASSED = "passed"
    FAILED = "failed"
    MISSING_EVIDENCE = "missing_evidence"


@dataclass(frozen=True, slots=True)
class Comparison:
    """Scores of two models on the same items; higher is better.

    Attributes:
        old: mean score of the old model; None without items.
        new: mean score of the new model.
        difference: mean of ``new - old``.
        interval: the difference's interval; each end is one-sided at the requested confidence.
        p_value: two-sided p-value of the hypothesis of no difference: exact McNemar for passes and failures, sign flips
            for other scores.
        smallest_visible: the smallest loss that this many items detect with a power of .8; None when they detect none.
        items_needed: number that would detect a loss of the margin; only if these are too few and the margin is above
            0.
    """

    status: Status
    items: int
    old: float | None
    new: float | None
    difference: float | None
    interval: tuple[float, float] | None
    p_value: float | None
    smallest_visible: float | None
    items_needed: int | None
    reason: str


def compare(
    old: Sequence[float],
    new: Sequence[float],
    margin: float,
    confidence: float = CONFIDENCE,
    groups: Sequence[Hashable] | None = None,
) -> Comparison:
    """Compare scores from 0 to 1, pair by pair. The same scores give the same result.

    Args:
        old: scores of the old model.
        new: scores of the new model on the same items, in the same order.
        margin: accepted loss of the mean; 0: only a better model passes.
        confidence: confidence of each end of the interval.
        groups: the group of each pair, such as the prompt of several samples; None when all pairs are independent.
    """
    differences = [after - before for before, after in zip(old, new, strict=True)]
    if not differences:
        return Comparison(
            Status.MISSING_EVIDENCE, 0, None, None, None, None, None, None, None, "no items were compared"
        )
    items = len(differences)
    clusters = clusters_of(differences, range(items) if groups is None else groups)
    # The added pairs weigh as much as a group.
    weight = items / len(clusters)
    padded = [*(cluster.total / weight for cluster in clusters), *PADDING]
    if weight == 1:
        interval = bca_interval(padded, confidence)
    else:
        added = [Cluster(value * weight, weight) for value in PADDING]
        interval = cluster_bca_interval([*clusters, *added], confidence)
    spread = sum(difference**2 for difference in padded) / len(padded)
    visible = smallest_visible(len(clusters), spread, 1 - confidence)
    status, reason = _decide(interval, visible, margin, items)
    # No number of items shows a loss of exactly zero.
    needed = items_needed(margin, spread, 1 - confidence) if status is Status.MISSING_EVIDENCE and margin > 0 else None
    return Comparison(
        status=status,
        items=items,
        old=sum(old) / items,
        new=sum(new) / items,
        difference=sum(differences) / items,
        interval=interval,
        p_value=_p_value([cluster.total / weight for cluster in clusters]),
        smallest_visible=visible,
        items_needed=None if needed is None else math.ceil(needed * weight),
        reason=reason,
    )


def noise_floor(first: Sequence[float], again: Sequence[float]) -> float | None:
    """Return the mean absolute difference between a model's scores and its own in a second run.

    No difference of the two runs' means exceeds it. None: it ran once, or not for every item.
    """
    if not first or len(first) != len(again):
        return None
    return math.fsum(abs(after - before) for before, after in zip(first, again, strict=True)) / len(first)


def within_bounds(old: Sequence[float], new: Sequence[float]) -> tuple[list[float], list[float]]:
    """Scale scores for :func:`compare`: if some are outside 0 to 1, their range is mapped to it."""
    scores = [*old, *new]
    low, high = min(scores, default=0.0), max(scores, default=1.0)
    if low >= 0 and high <= 1:
        return [*old], [*new]
    low, high = min(low, 0.0), max(high, 1.0)
    return [(score - low) / (high - low) for score in old], [(score - low) / (high - low) for score in new]


def _decide(interval: tuple[float, float], visible: float | None, margin: float, items: int) -> tuple[Status, str]:
    if interval[0] > -margin:
        return Status.PASSED, ""
    if interval[1] < -margin:
        return Status.FAILED, f"the loss is larger than {margin:g}"
    if visible is not None and visible <= margin:
        return (
            Status.FAILED,
            (
                f"a loss of {margin:g} cannot be excluded, although {counted(items, 'item is', 'items are')} enough to "
                "exclude it"
            ),
        )
    return Status.MISSING_EVIDENCE, f"{counted(items, 'item is', 'items are')} too few to exclude a loss of {margin:g}"


def _p_value(differences: Sequence[float]) -> float:
    wins, losses = differences.count(1.0), differences.count(-1.0)
    if wins + losses == sum(1 for difference in differences if difference):
        return mcnemar_p_value(losses, wins)
    return sign_flip_p_value(differences)
