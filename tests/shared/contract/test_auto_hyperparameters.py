"""The auto rules."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.contract.auto_hyperparameters import (
    auto_batch_size,
    auto_epochs,
    auto_exec,
    auto_learning_rate,
    auto_pair_epochs,
    note_on_default_rate,
    note_on_epochs,
)


@given(st.integers(min_value=0, max_value=10**9))
def test_auto_stays_within_bounds(rows: int) -> None:
    batch_size = auto_batch_size(rows)
    assert batch_size in (1, 2, 4, 8)
    assert 1 <= auto_epochs(rows, batch_size, None) <= 3
    assert auto_epochs(rows, batch_size, None) <= auto_epochs(rows, batch_size, 4e-3) <= 10


@pytest.mark.parametrize(
    ("rows", "batch_size", "of_a_tiny_base", "of_a_real_base"),
    [(1, 1, 10, 3), (16, 1, 10, 3), (64, 4, 10, 3), (228, 8, 8, 3), (1000, 8, 2, 2), (10**6, 8, 1, 1)],
)
def test_auto_values_by_hand(rows: int, batch_size: int, of_a_tiny_base: int, of_a_real_base: int) -> None:
    assert auto_batch_size(rows) == batch_size
    assert auto_epochs(rows, batch_size, 4e-3) == of_a_tiny_base
    assert auto_epochs(rows, batch_size, None) == auto_epochs(rows, batch_size, 2e-4) == of_a_real_base


def test_learning_rate_is_the_base_s_own() -> None:
    assert (auto_learning_rate(4e-3), auto_learning_rate(None)) == (4e-3, 2e-4)


@pytest.mark.parametrize(
    ("is_default", "of_base", "is_noted"),
    [(True, 4e-3, True), (True, 2e-4, False), (True, None, False), (False, 4e-3, False)],
)
def test_default_rate_is_noted_where_the_base_has_another(
    is_default: bool, of_base: float | None, is_noted: bool
) -> None:
    notes = note_on_default_rate(2e-4, is_default=is_default, base="tiny", rate_of_base=of_base)
    assert len(notes) == is_noted
    assert all("exec.learning_rate" in note and "0.0002" in note and "0.004" in note for note in notes)


@pytest.mark.parametrize(
    ("epochs", "of_base", "has_replay", "is_noted"),
    [
        (3, None, False, False),
        (4, None, False, True),
        (4, 2e-4, False, True),
        (4, None, True, False),
        (10, 4e-3, False, False),
    ],
)
def test_many_epochs_on_a_real_base_are_noted(
    epochs: int, of_base: float | None, has_replay: bool, is_noted: bool
) -> None:
    notes = note_on_epochs(epochs, of_base, has_replay=has_replay)
    assert len(notes) == is_noted
    assert all("--replay" in note for note in notes)


@pytest.mark.parametrize(("pairs", "epochs"), [(1, 3), (60, 3), (300, 3), (500, 2), (5_000, 1)])
def test_pairs_have_fewer_passes_and_a_tenth_of_the_rate(pairs: int, epochs: int) -> None:
    assert auto_pair_epochs(pairs, auto_batch_size(pairs)) == epochs
    exec_ = auto_exec(pairs, 1e-3, pairs=True)
    assert (exec_["epochs"], exec_["learning_rate"]) == (epochs, pytest.approx(1e-4))
