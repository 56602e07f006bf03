"""The order of examples and the tensors of a step."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.labels import IGNORED, Example
from worker.training.batches import collate, epoch_steps, split_validation


def example(line: int, length: int = 3, learnt: int = 1) -> Example:
    ids = list(range(10 * line, 10 * line + length))
    return Example(line, ids, [IGNORED] * (length - learnt) + ids[length - learnt :], 0)


def examples(count: int) -> list[Example]:
    return [example(line) for line in range(1, count + 1)]


def lines(step: list[list[Example]]) -> list[int]:
    return [one.line for rows in step for one in rows]


def test_collate_pads_on_the_right_and_never_learns_padding():
    batch = collate([example(1, 2), example(2, 4, 2)], pad_token=99)
    assert batch.ids.tolist() == [[10, 11, 99, 99], [20, 21, 22, 23]]
    assert batch.labels.tolist() == [[IGNORED, 11, IGNORED, IGNORED], [IGNORED, IGNORED, 22, 23]]
    assert batch.attention_mask.tolist() == [[1, 1, 0, 0], [1, 1, 1, 1]]
    assert (batch.targets, batch.tokens) == (3, 6)


def test_a_learnt_first_token_is_no_target():
    assert collate([example(1, 3, 3)], pad_token=0).targets == 2


def test_pad_token_inside_a_row_is_a_token():
    row = Example(1, [0, 5, 0], [IGNORED, 5, 0], 0)
    batch = collate([row, example(2, 4)], pad_token=0)
    assert batch.attention_mask[0].tolist() == [1, 1, 1, 0]
    assert batch.labels[0].tolist() == [IGNORED, 5, 0, IGNORED]


@given(st.integers(1, 40), st.integers(0, 3), st.integers(0, 9), st.integers(1, 5), st.integers(1, 4))
def test_an_epoch_holds_every_example_once(count, epoch, seed, rows, grad_accum):
    steps = epoch_steps(examples(count), epoch, seed, rows, grad_accum)
    assert sorted(line for step in steps for line in lines(step)) == list(range(1, count + 1))
    assert all(1 <= len(step) <= grad_accum and all(1 <= len(batch) <= rows for batch in step) for step in steps)
    assert len(steps) == math.ceil(math.ceil(count / rows) / grad_accum)
    assert steps == epoch_steps(examples(count), epoch, seed, rows, grad_accum)


def test_order_depends_on_seed_and_epoch_alone():
    first, again = (epoch_steps(examples(20), 0, 1, 2, 2) for _ in range(2))
    assert first == again
    assert first != epoch_steps(examples(20), 1, 1, 2, 2)
    assert first != epoch_steps(examples(20), 0, 2, 2, 2)


def test_order_of_today_is_the_order_of_every_release():
    """A resumed run relies on it, also after an upgrade."""
    assert [lines(step) for step in epoch_steps(examples(6), 1, 42, 2, 2)] == GOLDEN_ORDER
    training, held_out = split_validation(examples(6), 2, 42)
    assert ([one.line for one in training], [one.line for one in held_out]) == GOLDEN_SPLIT


GOLDEN_ORDER = [[6, 3, 4, 2], [1, 5]]
GOLDEN_SPLIT = ([1, 5, 2, 4], [3, 6])


@pytest.mark.parametrize("held_out", [0, 1, 5])
def test_split_is_seeded_disjoint_and_complete(held_out):
    rows = examples(10)
    training, validation = split_validation(rows, held_out, 3)
    assert len(validation) == held_out
    assert sorted(one.line for one in training + validation) == list(range(1, 11))
    assert (training, validation) == split_validation(rows, held_out, 3)
    assert training != split_validation(rows, held_out, 4)[0]
    assert rows == examples(10)
