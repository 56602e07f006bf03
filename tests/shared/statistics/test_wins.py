"""Win rates of paired scores."""

from __future__ import annotations

import pytest

from shared.statistics.wins import win_rate


def test_a_win_is_a_higher_score_and_a_tie_is_half_of_one() -> None:
    found = win_rate([0.0, 0.2, 0.5, 1.0], [0.1, 0.9, 0.5, 0.0])
    assert (found.wins, found.ties, found.losses) == (2, 1, 1)
    assert found.rate == pytest.approx(2.5 / 4)


@pytest.mark.parametrize(("won", "lost", "is_better"), [(20, 4, True), (24, 0, True), (13, 11, False), (4, 20, False)])
def test_interval_is_above_a_half_only_where_wins_are_shown(won: int, lost: int, is_better: bool) -> None:
    found = win_rate([0.0] * won + [1.0] * lost, [1.0] * won + [0.0] * lost)
    assert found.interval and found.rate == pytest.approx(won / (won + lost))
    assert 0 <= found.interval[0] < found.rate and found.interval[1] <= 1
    assert (found.interval[0] > 0.5) is is_better


def test_equal_answers_decide_nothing() -> None:
    found = win_rate([1.0] * 10, [1.0] * 10)
    assert found.rate == 0.5 and found.interval
    assert found.interval[0] < 0.5 < found.interval[1]


def test_several_answers_to_an_item_are_not_as_many_items() -> None:
    old, new = [0.0] * 6 + [1.0] * 2, [1.0] * 6 + [0.0] * 2
    once, often = win_rate(old, new).interval, win_rate(old * 8, new * 8, groups=[*range(8)] * 8).interval
    assert once and often and often[0] == pytest.approx(once[0], abs=0.1)


def test_no_pair_has_no_rate() -> None:
    found = win_rate([], [])
    assert (found.rate, found.interval, found.wins) == (None, None, 0)
