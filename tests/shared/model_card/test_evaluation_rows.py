"""Requesting answers within a time limit, and judging them."""

from __future__ import annotations

import math
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shared.model_card.evaluation_rows import (
    MIN_ROWS,
    EvaluationRows,
    RowScore,
    SamplePrompt,
    WrittenAnswer,
    answer_in_time,
    compare_accuracies,
    seconds_for,
)
from shared.model_card.general_questions import general_questions

RIGHT = (
    "It is Paris.",
    "H2O",
    "The Pacific.",
    "7 + 5 = 12.",
    "Cold.",
    "Bonjour!",
    "Red, blue and yellow.",
    "A dog barks.",
)


def rows(samples: int) -> EvaluationRows:
    prompts = [
        SamplePrompt(line=n, role="user", text=f"question {n}", turns=1, ids=[n], reference=f"{n}")
        for n in range(1, samples + 1)
    ]
    return EvaluationRows(samples=tuple(prompts), general=tuple([[0]] * len(general_questions())))


def ask(prompts: list[list[int]], _max_tokens: int) -> tuple[list[WrittenAnswer], list[WrittenAnswer]]:
    """The base knows all general questions and no sample; the tuned model writes each sample's reference, and JSON else."""
    if prompts[0] == [0]:
        return [WrittenAnswer(one, True) for one in RIGHT], [WrittenAnswer('{"a": "Paris"}', True) for _ in RIGHT]
    return [WrittenAnswer("?", False) for _ in prompts], [WrittenAnswer(str(ids[0]), True) for ids in prompts]


def test_all_answers_are_requested_while_there_is_time() -> None:
    seen: list[tuple[str, int, int]] = []
    found = answer_in_time(rows(6), ask, time.monotonic() + 60, lambda *told: seen.append(told))
    assert [sample.is_exact for sample in found.samples] == [True] * 6
    assert [answer.kept for answer in found.general] == [False] * 8
    assert seen == [
        ("general_questions", 0, 8),
        ("general_questions", 8, 8),
        ("sample_answers", 0, 6),
        ("sample_answers", 4, 6),
        ("sample_answers", 4, 6),
        ("sample_answers", 6, 6),
    ]
    assert found.notes == ()


def test_what_would_take_too_long_is_left_out_and_said() -> None:
    found = answer_in_time(rows(6), ask, time.monotonic() - 1, lambda *_: None)
    assert (len(found.samples), len(found.general)) == (4, 8)
    assert ["4 of 6 sample answers" in note for note in found.notes] == [True]


@given(samples=st.integers(0, 20), has_general=st.booleans(), is_late=st.booleans())
def test_the_last_progress_of_each_part_is_what_was_done(samples: int, has_general: bool, is_late: bool) -> None:
    wanted = rows(samples)
    wanted = wanted if has_general else wanted.model_copy(update={"general": ()})
    seen: dict[str, tuple[int, int]] = {}

    def advance(activity: str, done: int, total: int) -> None:
        seen[activity] = (done, total)

    found = answer_in_time(wanted, ask, -1.0 if is_late else math.inf, advance)
    notes = " ".join(found.notes)
    if samples:
        assert seen["sample_answers"] == (len(found.samples), samples)
        assert len(found.samples) == samples or f"{len(found.samples)} of {samples} sample answers" in notes
    assert len(found.general) == len(wanted.general), "however late it is, and without a sample"
    assert seen.get("general_questions") == ((8, 8) if has_general else None)


@settings(max_examples=25)
@given(st.lists(st.tuples(st.integers(0, 20), st.integers(0, 20)), min_size=MIN_ROWS, max_size=30))
def test_the_interval_of_an_accuracy_contains_its_difference(rows: list[tuple[int, int]]) -> None:
    """This holds for any rows of 20 tokens, even with 100 % on every row, although two rows are added."""
    base, tuned = ([RowScore(1.0, float(row[side]), 20.0, 20) for row in rows] for side in (0, 1))
    found = compare_accuracies(base, tuned)
    assert found and found.interval
    low, high = found.interval
    assert -1 <= low < high <= 1
    assert low - 1e-12 <= found.row_difference <= high + 1e-12
    assert found.tuned - found.base == pytest.approx(found.row_difference)


@pytest.mark.parametrize(
    ("training", "spent", "seconds"),
    [
        (0.0, 0.0, 15.0),
        (100.0, 0.0, 15.0),
        (3600.0, 0.0, 360.0),
        (3600.0, 200.0, 160.0),
        (3600.0, 350.0, 15.0),
        (3600.0, 9e3, 15.0),
    ],
)
def test_both_parts_of_a_self_evaluation_take_a_tenth_of_the_training(
    training: float, spent: float, seconds: float
) -> None:
    assert seconds_for(training, spent) == seconds
