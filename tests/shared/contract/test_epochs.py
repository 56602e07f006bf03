"""Curriculum limits, and the number of rows of an epoch: by hand, and compared with a loop over every row."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.contract.contracts import FineTuneContract
from shared.contract.epochs import highest_difficulty, phase_of, replayed_rows, rows_per_epoch
from shared.errors import Code, ContractRejected
from tests.support.builders import contract

level = st.integers(1, 10)


def curriculum(epochs: int, *ceilings: int | None, ratio: float = 0.1) -> FineTuneContract:
    schedule: dict[str, Any] | None = {f"epoch_{i}_max_difficulty": bound for i, bound in enumerate(ceilings, 1)}
    return contract(
        curriculum={"enabled": True},
        exec={"epochs": epochs, "curriculum_schedule": schedule or None},
        data={"train_file": "f", "replay_ratio": ratio},
    )


def bounds(made: FineTuneContract) -> list[int]:
    return [highest_difficulty(made, epoch) for epoch in range(made.exec.epochs)]


@pytest.mark.parametrize(
    ("made", "expected"),
    [
        (curriculum(1), [10]), (curriculum(2), [3, 10]), (curriculum(3), [3, 7, 10]), (curriculum(4), [3, 6, 8, 10]),
        (curriculum(3, 4, 7, 10), [4, 7, 10]), (curriculum(5, 3, 6, 9), [3, 6, 9, 9, 9]),
        (curriculum(1, 4, 7, 10), [4]), (curriculum(4, 4, None, 9), [4, 4, 9, 9]),
        (curriculum(3, None, 5, None), [3, 5, 5]), (curriculum(3, None, None, None), [3, 7, 10]),
        (contract(exec={"epochs": 2, "curriculum_schedule": {"epoch_1_max_difficulty": 1}}), [10, 10]),
    ],
)  # fmt: skip
def test_bounds_by_hand(made: FineTuneContract, expected: list[int]) -> None:
    assert bounds(made) == expected


@given(st.integers(2, 1000))
def test_without_a_schedule_the_bound_rises_from_3_to_10(epochs: int) -> None:
    found = bounds(curriculum(epochs))
    assert (found[0], found[-1]) == (3, 10)
    assert found == sorted(found)
    exact = [3 + 7 * epoch / (epochs - 1) for epoch in range(epochs)]
    assert all(0 <= bound - value < 1 or math.isclose(bound, value) for bound, value in zip(found, exact, strict=True))


@pytest.mark.parametrize(
    ("rows", "available", "ratio", "replayed"),
    [
        (100, 50, 0.1, 10),
        (101, 50, 0.1, 11),
        (1, 50, 0.1, 1),
        (100, 5, 0.1, 5),
        (100, 50, 0.0, 0),
        (100, 0, 0.5, 0),
        (70, 50, 0.1, 7),
    ],
)
def test_replayed_rows_by_hand(rows: int, available: int, ratio: float, replayed: int) -> None:
    assert replayed_rows(rows, available, ratio) == replayed


@given(
    st.lists(level, min_size=1),
    st.lists(st.none() | level, min_size=3, max_size=3),
    st.integers(1, 5),
    st.integers(0, 9),
)
def test_epochs_have_the_rows_that_a_loop_would_admit(
    rows: list[int], ceilings: list[int | None], epochs: int, replay: int
) -> None:
    made = curriculum(epochs, *ceilings, ratio=0.5)
    admitted = [sum(difficulty <= bound for difficulty in rows) for bound in bounds(made)]
    counts = {difficulty: rows.count(difficulty) for difficulty in rows}
    if 0 in admitted:
        with pytest.raises(ContractRejected, match=f"Epoch {admitted.index(0) + 1} has no rows") as caught:
            rows_per_epoch(len(rows), made, difficulties=counts, replay=replay)
        assert (caught.value.code, caught.value.param) == (Code.CORPUS_TOO_SMALL, "exec.curriculum_schedule")
        assert str(min(rows)) in caught.value.remedy
    else:
        expected = [easy + min(replay, math.ceil(easy / 2)) for easy in admitted]
        assert rows_per_epoch(len(rows), made, difficulties=counts, replay=replay) == expected


def test_an_epoch_is_called_as_the_schedule_says() -> None:
    schedule = {"curriculum_phases": ["warmup", "general"]}
    made = contract(curriculum={"enabled": True}, exec={"epochs": 3, "curriculum_schedule": schedule})
    assert [phase_of(made, epoch) for epoch in range(3)] == ["warmup", "general", "general"]
    assert phase_of(contract(exec={"curriculum_schedule": schedule}), 0) is None, "there is no curriculum"
    assert phase_of(curriculum(2, 4), 0) is None, "it names none"


def test_before_the_split_it_is_an_upper_bound() -> None:
    assert rows_per_epoch(90, curriculum(3), difficulties={3: 40, 7: 55, 10: 5}) == [40, 90, 90]
    assert rows_per_epoch(90, curriculum(3)) == [90, 90, 90]


def test_without_a_curriculum_difficulty_does_not_count() -> None:
    assert rows_per_epoch(90, contract(), difficulties={10: 90}) == [90, 90, 90]
