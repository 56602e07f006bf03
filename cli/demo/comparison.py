"""Answers of a base and its tuned model to held-out items, side by side and counted."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table
from rich.text import Text

from cli.demo.lessons import Item, Lesson
from cli.output import on_one_line

if TYPE_CHECKING:
    from openai import OpenAI

MAX_TOKENS = 64
SHOWN_CHARACTERS = 160
REQUESTS_AT_ONCE = 24
"""A replica on a CPU reads all weights for each token of a batch, so further concurrent answers cost little."""


@dataclass(frozen=True, slots=True)
class AnswerComparison:
    """Greedy answers of both models to a lesson's items, in the items' order."""

    lesson: Lesson
    base: list[str]
    tuned: list[str]

    def count(self, answers: Sequence[str], check: str) -> int:
        """Count the answers that pass one of the lesson's checks."""
        passes = self.lesson.checks[check]
        return sum(passes(answer, item.reference) for answer, item in zip(answers, self.lesson.items, strict=True))

    def succeeded(self) -> bool:
        """Return whether the tuned model answers enough items correctly, and the base none."""
        right, items = list(self.lesson.checks)[-1], len(self.lesson.items)
        return self.count(self.tuned, right) >= self.lesson.required * items and self.count(self.base, right) == 0

    def show(self, console: Console) -> None:
        """Print some answers of both models next to each other, a wrong one of the tuned model if it has one, and the counts."""
        lesson = self.lesson
        table = Table("prompt", f"base: {lesson.base}", f"tuned: {lesson.alias}", show_lines=True)
        for index in self._shown():
            texts = (lesson.items[index].question, self.base[index], self.tuned[index])
            table.add_row(*(Text(on_one_line(text, SHOWN_CHARACTERS)) for text in texts))
        console.print(table)
        items = len(lesson.items)
        counts = Table(f"{items} held-out prompts, greedy answers", "base", "tuned")
        for check in lesson.checks:
            numbers = (f"{self.count(answers, check)} of {items}" for answers in (self.base, self.tuned))
            counts.add_row(check, *numbers)
        console.print(counts)

    def _shown(self) -> list[int]:
        """Return the indices of the first items, and of the first one that the tuned model answers incorrectly."""
        lesson = self.lesson
        is_wrong = [not lesson.is_right(self.tuned[index], item.reference) for index, item in enumerate(lesson.items)]
        shown = list(range(min(lesson.shown, len(lesson.items))))
        return shown + [index for index, wrong in enumerate(is_wrong) if wrong and index not in shown][:1]


def compare(client: OpenAI, lesson: Lesson, tuned: str) -> AnswerComparison:
    """Send every item to both models, and return their answers.

    Args:
        tuned: id of the tuned model.
    """

    def ask(request: tuple[str, Item]) -> str:
        model, item = request
        completion = client.chat.completions.create(
            model=model,
            messages=item.messages,  # type: ignore[arg-type]  # the client's type names each role's own class
            temperature=0,
            max_tokens=MAX_TOKENS,
        )
        return (completion.choices[0].message.content or "").strip()

    requests = [(model, item) for model in (lesson.base, tuned) for item in lesson.items]
    with ThreadPoolExecutor(REQUESTS_AT_ONCE) as threads:
        answers = list(threads.map(ask, requests))
    return AnswerComparison(lesson, answers[: len(lesson.items)], answers[len(lesson.items) :])
