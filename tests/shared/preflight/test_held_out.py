"""Which rows are held out, and how many of them also occur among the training rows."""

from __future__ import annotations

import numpy as np
import pytest

from shared.datasets.duplicates import ExactIndex
from shared.preflight.held_out import count_copies, split_validation


@pytest.mark.parametrize(("rows", "held_out"), [(10, 3), (1, 0), (40, 10)])
def test_held_out_rows_are_the_tail_of_a_seeded_shuffle(rows: int, held_out: int) -> None:
    training, validation = split_validation(rows, held_out, seed=7)
    assert len(validation) == held_out
    assert sorted([*training, *validation]) == list(range(rows))
    again = split_validation(rows, held_out, seed=7)
    assert training.tolist() == again[0].tolist()
    if rows > 1:
        assert training.tolist() != split_validation(rows, held_out, seed=8)[0].tolist()


def index_of(digests: list[int]) -> ExactIndex:
    """Rows of these digests, in the lines 1, 2, …."""
    index = ExactIndex()
    index.add(digests, range(1, len(digests) + 1))
    return index


@pytest.mark.parametrize(
    ("digests", "copies"), [(list(range(60)), 0), ([number % 5 for number in range(60)], 10), ([2**64 - 1] * 60, 10)]
)
def test_held_out_rows_that_repeat_a_trained_one_are_counted(digests: list[int], copies: int) -> None:
    assert count_copies(index_of(digests), np.arange(1, 61, dtype=np.uint32), 10, seed=7) == copies


def test_held_out_rows_that_repeat_each_other_are_new_to_the_model() -> None:
    _, held_out = split_validation(60, 10, seed=7)
    digests = [0 if number in held_out else 1 + number for number in range(60)]
    assert count_copies(index_of(digests), np.arange(1, 61, dtype=np.uint32), 10, seed=7) == 0


def test_rows_that_are_left_out_are_not_trained_on() -> None:
    """Every row of the first half is in the second, which is left out."""
    index = index_of([*range(30), *range(30)])
    assert count_copies(index, np.arange(1, 31, dtype=np.uint32), 10, seed=7) == 0
    assert count_copies(index, np.arange(1, 61, dtype=np.uint32), 10, seed=7) > 0
