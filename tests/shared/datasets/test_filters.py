"""Row filters: which rows are trained on."""

from __future__ import annotations

from typing import Any

import pytest

from shared.contract.sections import ContextFilter, DataSection
from shared.datasets.filters import RowFilter, is_trainable
from shared.datasets.rows import Message, Record, TrainingRow


def row(**labels: Any) -> TrainingRow:
    return TrainingRow(1, [Message("user", "Hi"), Message("assistant", "Hello")], **labels)


@pytest.mark.parametrize("minimum", range(6))
@pytest.mark.parametrize("rating", [None, 1, 2, 3, 4, 5])
def test_rating_bound_is_inclusive_and_unrated_rows_pass(minimum: int, rating: int | None) -> None:
    expected = rating is None or rating >= minimum
    assert RowFilter(min_rating=minimum).admits(row(rating=rating)) is expected
    assert is_trainable(row(rating=rating), minimum) is expected


@pytest.mark.parametrize(
    ("difficulty", "kept"), [(None, True), (1, False), (3, True), (5, True), (7, True), (8, False)]
)
def test_difficulty_bounds_are_inclusive_and_rows_without_one_pass(difficulty: int | None, kept: bool) -> None:
    assert RowFilter(min_difficulty=3, max_difficulty=7).admits(row(difficulty=difficulty)) is kept


@pytest.mark.parametrize(
    ("labels", "kept"),
    [
        ({}, False), ({"category": "Tool_Trace"}, True), ({"category": "tool"}, False), ({"lane": "my_TOOL_TRACE_2"}, True),
        ({"task_family": "tool_trace"}, True), ({"category": "x", "lane": "y", "task_family": "speech"}, True),
        ({"category": ""}, False), ({"response_mode": "tool_trace"}, False),
    ],
)  # fmt: skip
def test_category_is_a_part_of_any_of_three_labels(labels: dict[str, str], kept: bool) -> None:
    wanted = RowFilter.combine(0, ContextFilter(categories=["Tool_trace", "SPEECH"]))
    assert wanted.admits(row(**labels)) is kept


def test_filter_of_a_contract_takes_the_stricter_rating() -> None:
    data = DataSection(train_file="f", min_rating=2, context_filter=ContextFilter(rating_min=4, difficulty_max=5))
    assert RowFilter.of(data) == RowFilter(min_rating=4, max_difficulty=5)
    assert RowFilter.of(DataSection(train_file="f", min_rating=2)) == RowFilter(min_rating=2)


def test_records_are_filtered_like_rows() -> None:
    assert not RowFilter(min_rating=3).admits(Record(prompt="Hi", response="Hello", rating=2))
    assert RowFilter(min_rating=3).admits(Record(prompt="Hi", response="Hello"))
