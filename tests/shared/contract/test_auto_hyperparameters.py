"""The auto rules."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.contract.auto_hyperparameters import (
    MEASURED_FORGETTING,
    auto_batch_size,
    auto_epochs,
    auto_exec,
    auto_learning_rate,
    auto_pair_epochs,
    note_on_default_rate,
    note_on_forgetting,
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
    ("epochs", "rate", "of_base", "is_noted"),
    [
        (1, 2e-4, None, 0),
        (2, 2e-4, None, 1),
        (3, 2e-4, 2e-4, 1),
        (4, 1e-4, None, 1),
        (3, 2e-5, None, 0),
        (10, 4e-3, 4e-3, 0),
    ],
)
def test_passes_that_may_cost_a_real_base_skills_are_noted_unless_rows_are_replayed(
    epochs: int, rate: float, of_base: float | None, is_noted: int
) -> None:
    notes = note_on_forgetting(epochs, rate, of_base, has_replay=False)
    assert len(notes) == is_noted
    assert all("--replay FILE (data.replay_file)" in note and "6 of 32 general answers" in note for note in notes)
    assert all(note.startswith("exec.epochs is") is (epochs > 3) for note in notes)
    assert not note_on_forgetting(epochs, rate, of_base, has_replay=True)
    assert not note_on_forgetting(epochs, rate, of_base, has_replay=False, pairs=True), "pairs have no replay"


def test_figures_of_the_note_are_those_of_the_decisions_table() -> None:
    [decision] = (Path(__file__).parents[3] / "docs" / "decisions").glob("0075-*.md")
    rows = [line.strip("|").split("|") for line in decision.read_text().splitlines() if line.startswith("| ")]
    kept = [(row[1], int(row[5].strip(" *"))) for row in rows if len(row) == 6 and row[5].strip(" *").isdigit()]
    by_default = [answers for recipe, answers in kept if "**the rule**" in recipe]
    replayed = [answers for recipe, answers in kept if "--replay" in recipe]
    assert f"kept {sum(by_default)} of {8 * len(by_default)} general answers" in MEASURED_FORGETTING
    assert f"two with --replay kept {sum(replayed)} of {8 * len(replayed)}" in MEASURED_FORGETTING


@pytest.mark.parametrize(("pairs", "epochs"), [(1, 3), (60, 3), (300, 3), (500, 2), (5_000, 1)])
def test_pairs_have_fewer_passes_and_a_tenth_of_the_rate(pairs: int, epochs: int) -> None:
    assert auto_pair_epochs(pairs, auto_batch_size(pairs)) == epochs
    exec_ = auto_exec(pairs, 1e-3, pairs=True)
    assert (exec_["epochs"], exec_["learning_rate"]) == (epochs, pytest.approx(1e-4))
