"""2,000 comparisons of models that do not differ, for each method: it sees a difference no more often than it may.

The chance of a false alarm is alpha; what 2,000 runs show of it scatters, and 3 standard deviations are allowed for that.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable

import pytest

from shared.statistics.clustered import cluster_bca_interval, clustered_standard_error, clusters_of
from shared.statistics.exact import mcnemar_p_value, wilson_interval
from shared.statistics.resampling import bca_interval, sign_flip_p_value
from shared.statistics.sequential import log_e_within

pytestmark = pytest.mark.simulation

RUNS, ALPHA, RESAMPLES = 2_000, 0.05, 399
GROUPS = [group for group in range(60) for _ in range(3)]


def mcnemar(generator: random.Random) -> bool:
    bits = [generator.random() < 0.5 for _ in range(40)]
    return mcnemar_p_value(sum(bits), 40 - sum(bits)) <= ALPHA


def sign_flip(generator: random.Random) -> bool:
    return sign_flip_p_value([generator.gauss(0, 0.3) for _ in range(40)], resamples=RESAMPLES) <= ALPHA


def wilson(generator: random.Random) -> bool:
    low, high = wilson_interval(sum(generator.random() < 0.7 for _ in range(120)), 120)
    return not low <= 0.7 <= high


def bca(generator: random.Random) -> bool:
    # Each end is one-sided, at half of alpha.
    low, high = bca_interval([generator.gauss(0, 0.3) for _ in range(150)], 1 - ALPHA / 2, resamples=RESAMPLES)
    return not low <= 0 <= high


def in_groups(generator: random.Random) -> list[float]:
    shifts = [generator.gauss(0, 0.3) for _ in range(60)]
    return [shifts[group] + generator.gauss(0, 0.1) for group in GROUPS]


def cluster_bootstrap(generator: random.Random) -> bool:
    clusters = clusters_of(in_groups(generator), GROUPS)
    low, high = cluster_bca_interval(clusters, 1 - ALPHA / 2, resamples=RESAMPLES)
    return not low <= 0 <= high


def clustered_z(generator: random.Random) -> bool:
    values = in_groups(generator)
    return abs(sum(values) / len(values)) > 2.0010 * clustered_standard_error(values, GROUPS)


def rate(method: Callable[[random.Random], bool]) -> float:
    generator = random.Random(20)
    return sum(method(generator) for _ in range(RUNS)) / RUNS


@pytest.mark.parametrize("method", [mcnemar, sign_flip, wilson, bca, cluster_bootstrap, clustered_z])
def test_a_method_holds_its_level(method: Callable[[random.Random], bool]) -> None:
    assert 0 < rate(method) <= ALPHA + 3 * (ALPHA * (1 - ALPHA) / RUNS) ** 0.5


def test_values_in_groups_break_a_method_that_takes_them_for_independent() -> None:
    def naive(generator: random.Random) -> bool:
        low, high = bca_interval(in_groups(generator), 1 - ALPHA / 2, resamples=99)
        return not low <= 0 <= high

    assert rate(naive) > 3 * ALPHA


LOOKS, MARGIN = 300, 0.05


def shown_at() -> list[list[int]]:
    """By the number of losses and of wins: the fewest ties at which it is shown that no more than the margin is lost."""
    fewest = []
    for losses in range(LOOKS + 1):
        row = []
        for wins in range(LOOKS + 1 - losses):
            low, high = 0, LOOKS + 1
            while low < high:
                middle = (low + high) // 2
                is_shown = log_e_within(losses, wins, middle, MARGIN) >= -math.log(ALPHA)
                low, high = (low, middle) if is_shown else (middle + 1, high)
            row.append(low)
        fewest.append(row)
    return fewest


def test_peeking_seldom_passes_a_model_that_loses_the_margin() -> None:
    # It loses a tenth of the requests and wins a twentieth: more losses than wins by just the margin.
    fewest, generator, shown = shown_at(), random.Random(3), 0
    for _ in range(RUNS):
        losses = wins = ties = 0
        for _ in range(LOOKS):
            drawn = generator.random()
            losses, wins, ties = losses + (drawn < 0.1), wins + (0.1 <= drawn < 0.15), ties + (drawn >= 0.15)
            if ties >= fewest[losses][wins]:
                shown += 1
                break
    assert 0 < shown / RUNS <= ALPHA + 3 * (ALPHA * (1 - ALPHA) / RUNS) ** 0.5
