"""An epoch's rows and their order under a curriculum."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.contract.contracts import FineTuneContract
from shared.contract.epochs import highest_difficulty, rows_per_epoch
from tests.support.builders import contract
from worker.training.data.row_order import Difficulties, admitted, epoch_order, histogram

PLAIN = contract()
EASY_FIRST = contract(curriculum={"enabled": True})
difficulties = st.lists(st.integers(1, 10), min_size=1, max_size=60).map(lambda rows: np.array(rows, dtype=np.uint8))


@given(difficulties)
def test_without_a_curriculum_every_row_comes_once(rows: Difficulties) -> None:
    orders = [epoch_order(rows, PLAIN, epoch).tolist() for epoch in range(3)]
    assert all(sorted(order) == list(range(len(rows))) for order in orders)


@given(difficulties)
def test_a_curriculum_takes_the_easy_rows_in_ascending_order(rows: Difficulties) -> None:
    for epoch in range(3):
        order = epoch_order(rows, EASY_FIRST, epoch)
        assert sorted(order.tolist()) == np.flatnonzero(rows <= highest_difficulty(EASY_FIRST, epoch)).tolist()
        assert rows[order].tolist() == sorted(rows[order].tolist())
        assert admitted(rows, EASY_FIRST, epoch).sum() == len(order)


@given(difficulties)
def test_the_planner_counts_what_the_trainer_takes(rows: Difficulties) -> None:
    rows = np.append(rows, np.uint8(1))
    planned = rows_per_epoch(len(rows), EASY_FIRST, difficulties=histogram(rows))
    assert planned == [len(epoch_order(rows, EASY_FIRST, epoch)) for epoch in range(3)]


@pytest.mark.parametrize("made", [PLAIN, EASY_FIRST])
def test_order_is_decided_by_seed_and_epoch(made: FineTuneContract) -> None:
    rows = np.full(50, 3, dtype=np.uint8)
    other = made.model_copy(update={"exec": made.exec.model_copy(update={"seed": 7})})
    orders = [epoch_order(rows, *asked).tolist() for asked in [(made, 0), (made, 0), (made, 1), (other, 0)]]
    assert orders[0] == orders[1]
    assert len({tuple(order) for order in orders}) == 3
    assert orders[0] != sorted(orders[0]), "rows of one difficulty are shuffled"


def test_order_does_not_change_with_a_release() -> None:
    rows = np.array([3, 1, 2, 3, 1, 9], dtype=np.uint8)
    assert epoch_order(rows, PLAIN, 0).tolist() == [2, 5, 0, 1, 3, 4]
    assert epoch_order(rows, EASY_FIRST, 0).tolist() == [1, 4, 2, 0, 3]
