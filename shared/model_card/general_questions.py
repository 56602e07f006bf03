"""Fixed questions unrelated to a job's data: they show how much of its base's skills a tuned model keeps. Eight are asked
after each training; the gate `forget` asks all 200, which is enough for an interval.

An answer counts if it names the right words, in prose: a model that was tuned on JSON and writes ``{"city": "Paris"}``
has forgotten how to answer the question, though it has not forgotten the fact. Only questions that the base itself
answers count, so the number measures the cost of tuning and not the quality of the base.
"""

from __future__ import annotations

import re
from functools import cache
from importlib.resources import files

from pydantic import BaseModel, ConfigDict, TypeAdapter

from shared.model_card.self_evaluation import GeneralAnswer

MAX_NEW_TOKENS = 48
"""Largest number of tokens of an answer to one of them."""
AFTER_TRAINING = 8
"""Number of questions, from the first, that a self-evaluation asks."""
_MARKUP = tuple("{[<|`")


class GeneralQuestion(BaseModel):
    """A question, and the words of a correct answer: it must contain at least one of each group."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    question: str
    right: tuple[tuple[str, ...], ...]

    def is_answered_by(self, answer: str) -> bool:
        """Return whether the answer names the right words, in prose."""
        if answer.lstrip().startswith(_MARKUP):
            return False
        return all(any(_names(answer, word) for word in group) for group in self.right)

    def judge(self, base: str, tuned: str) -> GeneralAnswer:
        """Compare the answers of base and tuned model."""
        knew = self.is_answered_by(base)
        return GeneralAnswer(
            question=self.question, base=base, tuned=tuned, kept=self.is_answered_by(tuned) if knew else None
        )


def general_questions() -> tuple[GeneralQuestion, ...]:
    """Return the questions of a self-evaluation."""
    return all_general_questions()[:AFTER_TRAINING]


@cache
def all_general_questions() -> tuple[GeneralQuestion, ...]:
    """Return the questions in `data/general_questions.json`."""
    text = files("shared.model_card").joinpath("data", "general_questions.json").read_bytes()
    return TypeAdapter(tuple[GeneralQuestion, ...]).validate_json(text)


def _names(answer: str, word: str) -> bool:
    return re.search(rf"(?<!\w){re.escape(word)}(?!\w)", answer, re.IGNORECASE) is not None
