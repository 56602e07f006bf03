"""The e-value agrees with scipy's beta functions, and looking after every answer causes no additional false alarms."""

from __future__ import annotations

import json
import math
import random
from itertools import accumulate
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.statistics.sequential import anytime_interval, is_worse, log_e_value, log_e_within

CASES = json.loads((Path(__file__).with_name("golden") / "scipy.json").read_bytes())["log_e"]
LOOKS, ALPHA = 400, 0.05


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case['losses']}-{case['wins']}")
def test_the_logarithm_is_scipys(case: dict[str, float]) -> None:
    found = log_e_value(int(case["losses"]), int(case["wins"]))
    assert found == pytest.approx(case["log_e"], rel=1e-10, abs=1e-10)


def alarms_at() -> list[int]:
    """Return the smallest number of losses that raises an alarm after this many items on which the models differ."""
    fewest, losses = [LOOKS + 1], 0
    for total in range(1, LOOKS + 1):
        while losses <= total and not is_worse(losses, total - losses, ALPHA):
            losses += 1
        fewest.append(losses)
    return fewest


def false_alarm(chance_of_loss: float) -> float:
    """The exact chance that one of the looks raises an alarm."""
    fewest, alarmed = alarms_at(), 0.0
    chances = [1.0]
    for total in range(1, LOOKS + 1):
        after = [0.0] * (total + 1)
        for losses, chance in enumerate(chances):
            after[losses] += chance * (1 - chance_of_loss)
            after[losses + 1] += chance * chance_of_loss
        alarmed += math.fsum(after[fewest[total] :])
        after[fewest[total] :] = [0.0] * len(after[fewest[total] :])
        chances = after
    return alarmed


def test_looking_after_every_answer_raises_few_false_alarms() -> None:
    found = false_alarm(0.5)
    # The design's simulation of 4,000 runs found 3.0 %.
    assert found == pytest.approx(0.030, abs=3 * (0.03 * 0.97 / 4_000) ** 0.5)
    assert found <= ALPHA
    assert false_alarm(0.4) < 0.005
    assert false_alarm(0.65) > 0.95


def test_simulated_nulls_stop_no_more_often_than_they_may() -> None:
    fewest, generator, runs = alarms_at()[1:], random.Random(7), 2_000
    alarmed = 0
    for _ in range(runs):
        losses = accumulate(map(int, f"{generator.getrandbits(LOOKS):0{LOOKS}b}"))
        alarmed += any(map(int.__ge__, losses, fewest))
    assert 0 < alarmed / runs <= ALPHA + 3 * (ALPHA * (1 - ALPHA) / runs) ** 0.5


COUNTS = st.integers(0, 100_000)


@given(COUNTS, COUNTS)
def test_a_loss_speaks_against_the_model_and_a_win_for_it(losses: int, wins: int) -> None:
    now = log_e_value(losses, wins)
    assert log_e_value(losses + 1, wins) > now > log_e_value(losses, wins + 1)


@given(st.integers(0, 2_000), st.integers(0, 2_000))
def test_one_more_item_of_a_fair_coin_leaves_the_mean_at_most_where_it_is(losses: int, wins: int) -> None:
    now = log_e_value(losses, wins)
    after = (math.exp(log_e_value(losses + 1, wins) - now) + math.exp(log_e_value(losses, wins + 1) - now)) / 2
    assert after <= 1 + 1e-9


def test_negative_counts_are_refused() -> None:
    with pytest.raises(ValueError):
        log_e_value(-1, 0)


SOME = st.integers(0, 2_000)


@given(SOME, SOME, SOME, st.floats(-0.9, 0.9), st.floats(0, 1))
def test_no_item_is_expected_to_speak_for_a_model_that_loses_the_margin(
    losses: int, wins: int, ties: int, margin: float, differing: float
) -> None:
    # Chances of a loss, a win and a tie whose mean is -margin.
    decided = abs(margin) + (1 - abs(margin)) * differing
    lost, won = (decided + margin) / 2, (decided - margin) / 2
    now = log_e_within(losses, wins, ties, margin)
    after = (
        lost * math.exp(log_e_within(losses + 1, wins, ties, margin) - now)
        + won * math.exp(log_e_within(losses, wins + 1, ties, margin) - now)
        + (1 - decided) * math.exp(log_e_within(losses, wins, ties + 1, margin) - now)
    )
    assert after <= 1 + 1e-9


@given(SOME, SOME, SOME, st.floats(-0.9, 0.8))
def test_more_is_shown_of_a_larger_margin(losses: int, wins: int, ties: int, margin: float) -> None:
    assert log_e_within(losses, wins, ties, margin + 0.1) >= log_e_within(losses, wins, ties, margin)


def test_the_interval_says_what_the_counts_show() -> None:
    assert anytime_interval(0, 0, 0) == (-1.0, 1.0)
    low, high = anytime_interval(0, 0, 60)
    assert -0.1 < low < 0 < high < 0.1, "sixty answers that are alike exclude a loss of .1"
    low, high = anytime_interval(50, 50, 900)
    assert -0.05 < low < 0 < high < 0.05
    low, high = anytime_interval(60, 20, 120)
    assert low < -0.2 < high < 0, "forty more lost than won of two hundred"
    assert anytime_interval(20, 60, 120) == pytest.approx((-high, -low))


@pytest.mark.parametrize("margin", [-1.0, 1.0, 2.0])
def test_a_margin_that_is_none_is_refused(margin: float) -> None:
    with pytest.raises(ValueError):
        log_e_within(0, 0, 0, margin)
