"""Hundreds of comparisons of equal models, for each method: it reports a difference no more often than it may.

The probability of a false alarm is alpha. The share in a limited number of runs varies, so the tests allow 3 standard
deviations. The long tests have 2,000 runs, so their tolerance is smaller.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from functools import cache, partial

import pytest

from shared.statistics import paired
from shared.statistics.clustered import (
    cluster_bca_interval,
    clustered_rate_interval,
    clustered_standard_error,
    clusters_of,
)
from shared.statistics.exact import items_needed, mcnemar_p_value, wilson_interval
from shared.statistics.paired import Status, compare
from shared.statistics.resampling import bca_interval, sign_flip_p_value
from shared.statistics.sequential import log_e_within

pytestmark = pytest.mark.simulation

ALPHA, RESAMPLES = 0.05, 399
GROUPS = [group for group in range(60) for _ in range(3)]


@pytest.fixture(params=[300, pytest.param(2_000, marks=pytest.mark.long)])
def runs(request: pytest.FixtureRequest) -> int:
    return int(request.param)


def most(runs: int) -> float:
    """Return the highest rate of false alarms that this many runs may show."""
    return ALPHA + 3 * (ALPHA * (1 - ALPHA) / runs) ** 0.5


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


def clustered_rate(generator: random.Random) -> bool:
    # Passes of one group are alike: .7 in the mean of groups.
    chances = [generator.choice((0.5, 0.9)) for _ in range(60)]
    low, high = clustered_rate_interval([generator.random() < chances[group] for group in GROUPS], GROUPS)
    return not low <= 0.7 <= high


def rate(method: Callable[[random.Random], bool], runs: int) -> float:
    generator = random.Random(20)
    return sum(method(generator) for _ in range(runs)) / runs


@pytest.mark.parametrize("method", [mcnemar, sign_flip, wilson, bca, cluster_bootstrap, clustered_z, clustered_rate])
def test_a_method_holds_its_level(method: Callable[[random.Random], bool], runs: int) -> None:
    assert 0 < rate(method, runs) <= most(runs)


def test_values_in_groups_break_a_method_that_takes_them_for_independent(runs: int) -> None:
    def naive(generator: random.Random) -> bool:
        low, high = bca_interval(in_groups(generator), 1 - ALPHA / 2, resamples=99)
        return not low <= 0 <= high

    assert rate(naive, runs) > 3 * ALPHA


@pytest.fixture
def few_resamples(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paired, "bca_interval", partial(bca_interval, resamples=299))
    monkeypatch.setattr(paired, "cluster_bca_interval", partial(cluster_bca_interval, resamples=299))
    # The p-value does not belong to the verdict.
    monkeypatch.setattr(paired, "sign_flip_p_value", lambda _differences: 1.0)


LOST = 0.15
OUTCOMES, WEIGHTS = ((1.0, 0.0), (0.0, 1.0), (1.0, 1.0)), (LOST + 0.1, 0.1, 0.8 - LOST)
"""Scores of the old model and the new one, which loses the margin: the worst that must not pass."""


def passes_at_the_margin(generator: random.Random) -> bool:
    pairs = generator.choices(OUTCOMES, WEIGHTS, k=60)
    return compare([old for old, _ in pairs], [new for _, new in pairs], LOST).status is Status.PASSED


def passes_at_the_margin_in_groups(generator: random.Random) -> bool:
    # Three answers to a prompt, of which each repeats the first one with a chance of a half.
    pairs = []
    for _ in range(40):
        first = generator.choices(OUTCOMES, WEIGHTS)[0]
        pairs += [first, *(generator.choice((first, *generator.choices(OUTCOMES, WEIGHTS))) for _ in range(2))]
    groups = [number // 3 for number in range(len(pairs))]
    return compare([old for old, _ in pairs], [new for _, new in pairs], LOST, groups=groups).status is Status.PASSED


@pytest.mark.usefixtures("few_resamples")
@pytest.mark.parametrize("method", [passes_at_the_margin, passes_at_the_margin_in_groups])
def test_a_model_that_loses_the_margin_passes_no_more_often_than_it_may(
    method: Callable[[random.Random], bool], runs: int
) -> None:
    assert 0 < rate(method, runs) <= most(runs)


@pytest.mark.parametrize(("difference", "differing"), [(0.10, 0.2), (0.05, 0.1), (0.05, 0.2)])
def test_so_many_items_show_a_difference_with_the_power_that_is_said(
    difference: float, differing: float, runs: int
) -> None:
    items, generator = items_needed(difference, differing), random.Random(8)
    lost, won = (differing + difference) / 2, (differing - difference) / 2

    def is_shown() -> bool:
        drawn = generator.choices((1, -1, 0), (lost, won, 1 - differing), k=items)
        differ = sum(map(abs, drawn))
        # The one-sided score test of a mean of 0, at .05.
        return differ > 0 and sum(drawn) / math.sqrt(differ) > 1.6449

    shown = sum(is_shown() for _ in range(runs)) / runs
    # Counts are whole numbers, so the level is not met exactly, and the power by a hundredth or two neither.
    assert shown == pytest.approx(0.8, abs=3 * (0.8 * 0.2 / runs) ** 0.5 + 0.02)


LOOKS, MARGIN = 300, 0.05


@cache
def shown_from(losses: int, wins: int) -> int:
    """The fewest ties at which it is shown that no more than the margin is lost."""
    low, high = 0, LOOKS + 1
    while low < high:
        middle = (low + high) // 2
        is_shown = log_e_within(losses, wins, middle, MARGIN) >= -math.log(ALPHA)
        low, high = (low, middle) if is_shown else (middle + 1, high)
    return low


def test_peeking_seldom_passes_a_model_that_loses_the_margin(runs: int) -> None:
    # It loses a tenth of the requests and wins a twentieth: more losses than wins by just the margin.
    generator, shown = random.Random(3), 0
    for _ in range(runs):
        losses = wins = ties = 0
        for _ in range(LOOKS):
            drawn = generator.random()
            losses, wins, ties = losses + (drawn < 0.1), wins + (0.1 <= drawn < 0.15), ties + (drawn >= 0.15)
            if ties >= shown_from(losses, wins):
                shown += 1
                break
    assert 0 < shown / runs <= most(runs)
