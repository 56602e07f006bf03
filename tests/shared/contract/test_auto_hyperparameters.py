"""The auto rules."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.contract.auto_hyperparameters import (
    auto_batch_size,
    auto_epochs,
    auto_learning_rate,
    note_on_default_rate,
)


@given(st.integers(min_value=0, max_value=10**9))
def test_auto_stays_within_bounds(rows: int) -> None:
    batch_size = auto_batch_size(rows)
    assert batch_size in (1, 2, 4, 8)
    assert 1 <= auto_epochs(rows, batch_size) <= 10


@pytest.mark.parametrize(
    ("rows", "batch_size", "epochs"), [(1, 1, 10), (16, 1, 10), (64, 4, 10), (1000, 8, 2), (10**6, 8, 1)]
)
def test_auto_values_by_hand(rows: int, batch_size: int, epochs: int) -> None:
    assert (auto_batch_size(rows), auto_epochs(rows, batch_size)) == (batch_size, epochs)


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
