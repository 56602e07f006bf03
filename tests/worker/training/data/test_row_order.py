"""The order of a run: complete epochs, known before the first step, and the same after a start at any step."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.training_runs import contract_for
from worker.training.data.row_order import RowOrder

DIFFICULTIES = np.array([1, 9, 5, 3, 7, 5, 2, 10, 4, 6, 8], dtype=np.uint8)


def order(replay: int = 0, **sections: dict) -> RowOrder:
    exec_ = {"epochs": 3, "batch_size": 2, "grad_accum": 2, **sections.pop("exec", {})}
    return RowOrder(contract_for("base", exec=exec_, **sections), DIFFICULTIES, replay)


def rows_of(steps, epoch: int) -> list[int]:
    return [row for step in steps if step.epoch == epoch for row in step.rows]


def test_every_epoch_has_every_row_once_in_another_order():
    steps = list(order().after(0))
    epochs = [rows_of(steps, epoch) for epoch in range(3)]
    assert all(sorted(rows) == list(range(11)) for rows in epochs)
    assert epochs[0] != epochs[1] != epochs[2]
    assert [len(step.rows) for step in steps] == [4, 4, 3] * 3


def test_steps_are_counted_before_the_first():
    planned = order()
    steps = list(planned.after(0))
    assert planned.total_steps == len(steps) == 9
    assert [step.number for step in steps] == list(range(1, 10))


@settings(max_examples=40, deadline=None)
@given(done=st.integers(0, 12), replay=st.integers(0, 5), curriculum=st.booleans())
def test_a_resumed_order_is_the_rest_of_the_whole(done, replay, curriculum):
    planned = order(replay, curriculum={"enabled": curriculum})
    assert list(planned.after(done)) == list(planned.after(0))[done:]
    assert planned.total_steps == len(list(planned.after(0)))


def test_a_curriculum_begins_with_the_easy_rows():
    planned = order(curriculum={"enabled": True})
    steps = list(planned.after(0))
    easy, *_, all_ = [DIFFICULTIES[rows_of(steps, epoch)].tolist() for epoch in range(3)]
    assert easy == sorted(easy)
    assert max(easy) == 3
    assert sorted(all_) == sorted(DIFFICULTIES.tolist())
    assert planned.left_out(0) == 8
    assert planned.left_out(2) == 8 + planned.left_out(1) - planned.left_out(0)


def test_replayed_rows_are_numbered_after_the_others():
    steps = list(order(replay=6, data={"replay_file": "file-r", "replay_ratio": 0.25}).after(0))
    assert [sum(row >= 11 for row in rows_of(steps, epoch)) for epoch in range(3)] == [3, 3, 3]


@pytest.mark.parametrize("seed", [1, 2])
def test_the_seed_decides(seed):
    one, other = (list(order(exec={"seed": value}).after(0)) for value in (seed, seed))
    assert one == other
    assert one != list(order(exec={"seed": seed + 1}).after(0))
