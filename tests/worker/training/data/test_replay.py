"""Replayed rows: how many, each at most once per epoch, all in turn, and mixed with the others."""

from __future__ import annotations

from collections import Counter

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from shared.contract.contracts import FineTuneContract
from shared.contract.epochs import rows_per_epoch
from shared.datasets.filters import RowFilter
from tests.support.builders import contract
from worker.training.data.row_order import (
    MOST_WATCHED,
    RowOrder,
    epoch_order,
    histogram,
    mixed_order,
    replay_contract,
    replay_draw,
)


def asked(ratio: float, epochs: int = 6, *, easy_first: bool = False) -> FineTuneContract:
    return contract(
        data={"train_file": "f", "replay_file": "r", "replay_ratio": ratio},
        exec={"epochs": epochs},
        curriculum={"enabled": easy_first},
    )


cases = st.tuples(st.integers(1, 60), st.integers(0, 30), st.floats(0.0, 0.5), st.booleans())


@given(cases)
def test_an_epoch_has_its_rows_and_the_planned_share_of_replay(case: tuple[int, int, float, bool]) -> None:
    rows, replay, ratio, easy_first = case
    made = asked(ratio, easy_first=easy_first)
    difficulties = np.arange(rows, dtype=np.uint8) % 10 + 1
    planned = rows_per_epoch(rows, made, difficulties=histogram(difficulties), replay=replay)
    for epoch in range(made.exec.epochs):
        order = mixed_order(difficulties, replay, made, epoch)
        assert len(order) == planned[epoch] == len(set(order.tolist())), "each row once"
        assert order[order < rows].tolist() == epoch_order(difficulties, made, epoch).tolist(), "in their own order"
        assert all(rows <= index < rows + replay for index in order[order >= rows])


@given(cases)
def test_replay_goes_round_so_that_all_are_seen(case: tuple[int, int, float, bool]) -> None:
    rows, replay, ratio, easy_first = case
    made = asked(ratio, easy_first=easy_first)
    difficulties = np.full(rows, 3, dtype=np.uint8)
    if not replay:
        return
    seen = Counter(
        index for epoch in range(made.exec.epochs) for index in replay_draw(difficulties, replay, made, epoch).tolist()
    )
    times = [seen[index] for index in range(replay)]
    assert max(times) - min(times) <= 1


@given(cases, st.data())
def test_rows_at_risk_come_first_and_the_others_go_round(
    case: tuple[int, int, float, bool], data: st.DataObject
) -> None:
    rows, replay, ratio, easy_first = case
    made = asked(ratio, easy_first=easy_first)
    difficulties = np.full(rows, 3, dtype=np.uint8)
    at_risk = data.draw(st.lists(st.integers(0, replay - 1), unique=True) if replay else st.just([]))
    usual = replay_draw(difficulties, replay, made, 2).tolist() if replay else []
    drawn = replay_draw(difficulties, replay, made, 2, at_risk).tolist() if replay else []
    assert len(drawn) == len(set(drawn)) == len(usual), "as many as planned, each once"
    first = at_risk[: len(drawn)]
    assert drawn[: len(first)] == first
    others = [row for row in usual if row not in first]
    assert drawn[len(first) :][: len(others)] == others[: len(drawn) - len(first)]
    mixed = mixed_order(difficulties, replay, made, 2, at_risk)
    assert (mixed[mixed >= rows] - rows).tolist() == drawn, "in this order"


def test_watched_rows_are_those_whose_turn_is_first() -> None:
    difficulties = np.full(40, 3, dtype=np.uint8)
    order = RowOrder(asked(0.1), difficulties, 100)
    turns = [row for epoch in range(2) for row in replay_draw(difficulties, 100, asked(0.1), epoch).tolist()]
    assert order.watched == turns
    assert len(RowOrder(asked(0.5), np.full(9000, 3, dtype=np.uint8), 9000).watched) == MOST_WATCHED
    assert RowOrder(asked(0.1), difficulties).watched == []


def test_the_replay_file_has_the_filter_that_the_preflight_counted_with() -> None:
    made = contract(
        data={"train_file": "f", "min_rating": 4, "context_filter": {"categories": ["new"], "rating_min": 5}}
    )
    assert RowFilter.of(replay_contract(made).data) == RowFilter.of_replay(made.data) == RowFilter(min_rating=4)
    assert made.data.context_filter is not None


def test_replay_stands_among_the_others_and_not_at_an_end() -> None:
    difficulties = np.full(1000, 3, dtype=np.uint8)
    orders = [mixed_order(difficulties, 500, asked(0.5), epoch) for epoch in range(2)]
    for order in orders:
        places = np.flatnonzero(order >= 1000) / len(order)
        assert 0.45 < places.mean() < 0.55
        assert np.histogram(places, bins=10, range=(0, 1))[0].min() > 20
    assert orders[0].tolist() == mixed_order(difficulties, 500, asked(0.5), 0).tolist()
    assert orders[0].tolist() != orders[1].tolist()
