"""Counts, verdict and printed answers of a comparison."""

from __future__ import annotations

import io
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from cli.demo.comparison import AnswerComparison, compare
from cli.demo.lessons import Lesson, tickets


def answers(lesson: Lesson, right: int) -> list[str]:
    """The first ``right`` references, and something else for the rest."""
    return [item.reference if index < right else '{"a": 1}' for index, item in enumerate(lesson.items)]


@pytest.mark.parametrize(("base", "tuned", "succeeded"), [(0, 24, True), (0, 15, True), (0, 14, False), (1, 24, False)])
def test_tuned_model_must_be_right_and_the_base_never(base: int, tuned: int, succeeded: bool) -> None:
    lesson = tickets()
    assert AnswerComparison(lesson, answers(lesson, base), answers(lesson, tuned)).succeeded() == succeeded


def test_counts_and_a_wrong_answer_are_shown() -> None:
    lesson, console = tickets(), Console(record=True, width=160, file=io.StringIO())
    wrong = answers(lesson, 20)
    AnswerComparison(lesson, ["Sorry!"] * 24, wrong).show(console)
    output = console.export_text()
    assert "0 of 24" in output
    assert "20 of 24" in output
    assert '{"a": 1}' in output


def test_answers_are_printed_as_they_are_and_cut() -> None:
    lesson, console = tickets(), Console(record=True, width=160, file=io.StringIO())
    AnswerComparison(lesson, ["[/b] no markup\n" + "so " * 200] * 24, answers(lesson, 24)).show(console)
    output = console.export_text()
    assert "[/b] no markup so" in output
    assert "…" in output
    assert output.count("so so") < 100


def test_every_item_is_sent_to_both_models_in_order() -> None:
    lesson = tickets()

    def create(**request: Any) -> Any:
        assert (request["temperature"], request["messages"][0]["role"]) == (0, "system")
        content = f"{request['model']}: {request['messages'][-1]['content']}"
        return SimpleNamespace(choices=[SimpleNamespace(message=SimpleNamespace(content=content))])

    client: Any = SimpleNamespace(chat=SimpleNamespace(completions=SimpleNamespace(create=create)))
    comparison = compare(client, lesson, "tickets@1")
    assert comparison.base == [f"{lesson.base}: {item.question}" for item in lesson.items]
    assert comparison.tuned == [f"tickets@1: {item.question}" for item in lesson.items]
