"""From rows to tensors: no token is lost or repeated, and every target is predicted by the position before it."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from worker.training.data.batches import MicroBatch, collate, plan_micro_batches
from worker.training.data.prepared import Row

PAD = 0


def row(seed: int, length: int, learnt: int, weight: float = 1.0) -> Row:
    draw = np.random.default_rng(seed)
    ids = draw.integers(1, 1000, length).astype(np.uint32)
    weights = np.zeros(length, dtype=np.float32)
    weights[length - learnt :] = draw.uniform(0.5, 2.0, learnt)
    return Row(seed, ids, weights, 5, weight)


rows_strategy = st.lists(
    st.tuples(st.integers(2, 30), st.floats(0, 1)).map(lambda pair: (pair[0], 1 + int(pair[1] * (pair[0] - 2)))),
    min_size=1,
    max_size=12,
).map(lambda sizes: [row(seed, length, learnt, 1 + seed / 4) for seed, (length, learnt) in enumerate(sizes)])


def predictions(batch: MicroBatch) -> list[tuple[int, int, float]]:
    """(token before, target, weight) of every target."""
    before = batch.ids.flatten()[batch.predictors]
    return sorted(zip(before.tolist(), batch.targets.tolist(), batch.weights.tolist(), strict=True))


def expected_predictions(rows: list[Row]) -> list[tuple[int, int, float]]:
    return sorted(
        (int(one.ids[at - 1]), int(one.ids[at]), float(np.float32(one.weights[at] * one.weight)))
        for one in rows
        for at in np.flatnonzero(one.weights)
    )


@settings(max_examples=60, deadline=None)
@given(rows=rows_strategy, packed=st.booleans())
def test_targets_are_predicted_by_the_token_before_them(rows, packed):
    batch = collate(rows, PAD, packed=packed)
    found, expected = predictions(batch), expected_predictions(rows)
    assert [one[:2] for one in found] == [one[:2] for one in expected]
    assert [one[2] for one in found] == pytest.approx([one[2] for one in expected])
    assert batch.weight_sum == pytest.approx(sum(float(one.weights.sum()) for one in rows), rel=1e-5)
    assert batch.tokens == sum(len(one.ids) for one in rows)


@settings(max_examples=60, deadline=None)
@given(rows=rows_strategy)
def test_a_packed_sequence_is_the_documents_end_to_end(rows):
    batch = collate(rows, PAD, packed=True)
    lengths = [len(one.ids) for one in rows]
    assert batch.ids.shape == (1, sum(lengths)) == (1, batch.size)
    assert batch.boundaries.tolist() == [0, *np.cumsum(lengths)]
    assert batch.positions[0].tolist() == [position for length in lengths for position in range(length)]
    assert batch.ids[0].tolist() == [int(id_) for one in rows for id_ in one.ids]
    assert batch.mask is None


@settings(max_examples=60, deadline=None)
@given(rows=rows_strategy)
def test_padded_rows_keep_their_own_line(rows):
    batch = collate(rows, PAD, packed=False)
    longest = max(len(one.ids) for one in rows)
    assert batch.ids.shape == batch.mask.shape == batch.positions.shape == (len(rows), longest)
    for line, one in enumerate(rows):
        length = len(one.ids)
        assert batch.ids[line, :length].tolist() == one.ids.tolist()
        assert batch.mask[line].tolist() == [1] * length + [0] * (longest - length)
    assert batch.boundaries is None


@settings(max_examples=100, deadline=None)
@given(
    lengths=st.lists(st.integers(1, 50), min_size=1, max_size=40),
    budget=st.integers(1, 200),
    packed=st.booleans(),
)
def test_a_layout_holds_every_row_once_within_the_budget(lengths, budget, packed):
    groups = plan_micro_batches(lengths, budget, packed=packed)
    assert sorted(index for group in groups for index in group) == list(range(len(lengths)))
    capacity = max(budget, *lengths)
    for group in groups:
        sizes = [lengths[index] for index in group]
        assert (sum(sizes) if packed else len(sizes) * max(sizes)) <= capacity
    assert groups == plan_micro_batches(lengths, budget, packed=packed)


def test_rows_of_similar_length_are_padded_together():
    assert plan_micro_batches([3, 50, 4, 48, 2], 100, packed=False) == [[1, 3], [2, 0, 4]]
