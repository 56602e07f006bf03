"""Grouped values: k samples of one prompt, or questions about one document. Resampling draws groups, not values.

Values of one group are similar, so n of them carry less information than n values from n groups; treating them as
independent makes intervals too narrow.

Source: Miller, "Adding Error Bars to Evals" (arXiv 2411.00640).
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

from shared.statistics.exact import wilson_interval
from shared.statistics.resampling import RESAMPLES, bca_ends, drawn_sums, in_order


@dataclass(frozen=True, slots=True)
class Cluster:
    """Sum and number of the values of one group."""

    total: float
    size: float


def clusters_of(values: Sequence[float], groups: Sequence[Hashable]) -> list[Cluster]:
    """Sum values by the group that each belongs to, in the order of the groups' first values."""
    members: dict[Hashable, list[float]] = {}
    for value, group in zip(values, groups, strict=True):
        members.setdefault(group, []).append(value)
    return [Cluster(math.fsum(group_values), len(group_values)) for group_values in members.values()]


def clustered_standard_error(values: Sequence[float], groups: Sequence[Hashable]) -> float:
    """Return the standard error of the mean of grouped values; for groups of one value, the usual one.

    Raises:
        ValueError: fewer than two groups.
    """
    clusters = clusters_of(values, groups)
    if len(clusters) < 2:
        raise ValueError("an error needs two groups")
    spread = math.fsum(value**2 for value in _influences(clusters))
    return math.sqrt(len(clusters) / (len(clusters) - 1) * spread) / len(values)


def clustered_rate_interval(
    passed: Sequence[bool], groups: Sequence[Hashable], confidence: float = 0.95
) -> tuple[float, float]:
    """Return Wilson's two-sided interval of a rate of grouped answers, using the number of independent answers that
    would have the same variance.

    If all or none pass, the variance is 0, and each group counts as one answer.

    Source: Korn and Graubard, "Confidence intervals for proportions with small expected number of positive counts
    estimated from survey data" (1998), with Wilson's interval in place of the exact one.

    Raises:
        ValueError: no answers.
    """
    values, count = [float(value) for value in passed], len(set(groups))
    if not values:
        raise ValueError("a rate needs items")
    rate, effective = math.fsum(values) / len(values), float(count)
    if count > 1 and 0 < rate < 1 and (error := clustered_standard_error(values, groups)):
        # At most the number of answers: by chance they may vary less than independent ones.
        effective = min(float(len(values)), rate * (1 - rate) / error**2)
    if count == len(values):
        effective = float(count)
    return wilson_interval(rate * effective, effective, confidence)


def cluster_bca_interval(
    clusters: Sequence[Cluster], confidence: float, resamples: int = RESAMPLES
) -> tuple[float, float]:
    """Return the BCa bootstrap interval of the mean of all values, with whole groups redrawn.

    Args:
        clusters: the groups, at least one.
        confidence: confidence of each end alone.
        resamples: how often the groups are drawn.
    """
    mean, influences = _mean(clusters), _influences(clusters)
    if not any(influences):
        return mean, mean
    columns = [[cluster.total for cluster in clusters], [cluster.size for cluster in clusters]]
    totals, sizes = drawn_sums(columns, resamples)
    return bca_ends(in_order(totals / sizes), mean, influences, confidence)


def _mean(clusters: Sequence[Cluster]) -> float:
    return sum(cluster.total for cluster in clusters) / sum(cluster.size for cluster in clusters)


def _influences(clusters: Sequence[Cluster]) -> list[float]:
    mean = _mean(clusters)
    return [cluster.total - mean * cluster.size for cluster in clusters]
