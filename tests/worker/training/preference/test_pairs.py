"""Micro-batches of pairs: both answers of a pair are together, packed or padded, within the budget."""

from __future__ import annotations

import numpy as np
import pytest

from worker.training.data.prepared import Row
from worker.training.preference.pairs import Pair, no_pairs, pair_batches


def row(length: int, learnt: int) -> Row:
    weights = np.zeros(length, np.float32)
    weights[length - learnt :] = 1
    return Row(1, np.arange(length, dtype=np.uint32), weights, 5, 1.0)


PAIRS = [Pair(number, row(10 + number, 3), row(6, 2 + number % 2)) for number in range(9)]


@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize("budget", [1, 40, 100, 1_000])
def test_every_pair_is_in_one_micro_batch(budget: int, packed: bool) -> None:
    batches = pair_batches(PAIRS, budget, pad_token=0, packed=packed)
    assert sorted(number for batch in batches for number in batch.numbers.tolist()) == list(range(9))
    for batch in batches:
        assert batch.size <= max(budget, 2 * 18)
        assert batch.lengths.tolist() == [[3, 2 + number % 2] for number in batch.numbers.tolist()]
        assert len(batch.chats.targets) == batch.lengths.sum()
        assert batch.weight_sum == batch.target_count == len(batch.numbers)


def test_a_process_without_pairs_has_an_empty_batch() -> None:
    assert (no_pairs().weight_sum, no_pairs().target_count, no_pairs().size) == (0.0, 0, 1)
