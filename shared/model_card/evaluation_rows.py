"""Rows and prompts of a self-evaluation, and the comparison of base and adapter on them. No torch.

The trainer measures on its own weights and leaves the same rows, as token ids, for the publisher, which measures the
served model.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, Protocol

from pydantic import BaseModel, ConfigDict

from shared.counted_nouns import counted
from shared.model_card.general_questions import MAX_NEW_TOKENS as GENERAL_TOKENS
from shared.model_card.general_questions import general_questions
from shared.model_card.self_evaluation import GeneralAnswer, PairedMeasure, PreferredAnswers, SampleAnswer
from shared.statistics.paired import CONFIDENCE, PADDING
from shared.statistics.resampling import bca_interval

MIN_ROWS = 8
"""Minimum number of rows for an interval."""
SAMPLE_TOKENS = 64
"""Largest number of tokens of a sample answer."""
ANSWERS_AT_ONCE = 4
SHARE_OF_TRAINING = 0.1
"""Share of the training's time after which a self-evaluation measures nothing beyond its least content."""
LEAST_SECONDS = 15.0
"""Least budget of a self-evaluation, or of its part on the served model, however short the training was."""
TOO_LONG = f"more would have taken over {LEAST_SECONDS:.0f} s and over a tenth of the training's time"
MAX_CHARACTERS = 600
"""Largest number of characters of a stored string."""


class EvaluationRow(BaseModel):
    """A row's token ids, and the positions of its supervised tokens."""

    model_config = ConfigDict(frozen=True)
    token_ids: tuple[int, ...]
    positions: tuple[int, ...]


class SamplePrompt(BaseModel):
    """A row up to its last answer, as a request would send it.

    Attributes:
        ids: token ids of the chat with the template's generation prompt.
        reference: the row's answer as the template writes it.
        system: the row's system turn, if any.
    """

    model_config = ConfigDict(frozen=True)
    line: int
    role: str
    text: str
    turns: int
    ids: list[int]
    reference: str
    system: str | None = None


class EvaluationRows(BaseModel):
    """The rows that the trainer scored, and the prompts for the served model.

    Attributes:
        general: token ids of the general questions, in their order; empty if the template does not accept them.
        seconds: how long the trainer's part of the self-evaluation took.
    """

    model_config = ConfigDict(frozen=True)
    rows: tuple[EvaluationRow, ...] = ()
    samples: tuple[SamplePrompt, ...] = ()
    general: tuple[list[int], ...] = ()
    seconds: float = 0.0


def seconds_for(training_seconds: float, spent: float = 0.0) -> float:
    """Return the seconds that a self-evaluation may take after a training of this length.

    Args:
        spent: seconds that its earlier part took: the trainer's, when the served model is measured.
    """
    return max(LEAST_SECONDS, SHARE_OF_TRAINING * training_seconds - spent)


class WrittenAnswer(NamedTuple):
    """An answer without special tokens, and whether its model ended it."""

    text: str
    ended: bool


class RowScore(NamedTuple):
    """Sums over a row's supervised tokens."""

    loss: float
    correct: float
    weight: float
    targets: int


def compare_losses(base: Sequence[RowScore], tuned: Sequence[RowScore]) -> PairedMeasure | None:
    """Compare nats per supervised token; None if a loss is not finite."""
    differences = [(new.loss - old.loss) / old.weight for old, new in zip(base, tuned, strict=True) if old.weight]
    weight = sum(score.weight for score in base)
    if not differences or not all(math.isfinite(score.loss) for score in (*base, *tuned)):
        return None
    return PairedMeasure(
        base=sum(score.loss for score in base) / weight,
        tuned=sum(score.loss for score in tuned) / weight,
        row_difference=sum(differences) / len(differences),
        interval=bca_interval(differences, CONFIDENCE) if len(differences) >= MIN_ROWS else None,
    )


def compare_accuracies(base: Sequence[RowScore], tuned: Sequence[RowScore]) -> PairedMeasure | None:
    """Compare the share of supervised tokens that the arg-max predicts; None without such tokens."""
    pairs = [(old, new) for old, new in zip(base, tuned, strict=True) if old.targets]
    if not pairs:
        return None
    targets = sum(old.targets for old, _ in pairs)
    differences = [(new.correct - old.correct) / old.targets for old, new in pairs]
    return PairedMeasure(
        base=sum(old.correct for old, _ in pairs) / targets,
        tuned=sum(new.correct for _, new in pairs) / targets,
        row_difference=sum(differences) / len(differences),
        interval=bca_interval([*differences, *PADDING], CONFIDENCE) if len(pairs) >= MIN_ROWS else None,
    )


def compare_preferences(
    reference: Literal["base", "parent"], before: Sequence[bool], tuned: Sequence[bool]
) -> PreferredAnswers:
    """Compare the number of pairs in which the preferred answer is the more likely one.

    Args:
        reference: the model that is compared with.
        before: for each pair, whether that model finds the preferred answer more likely.
        tuned: the same for the tuned model.
    """
    scores = ([RowScore(0.0, float(is_ahead), 1.0, 1) for is_ahead in model] for model in (before, tuned))
    measure = compare_accuracies(*scores)
    return PreferredAnswers(
        reference=reference,
        pairs=len(before),
        before=sum(before),
        tuned=sum(tuned),
        interval=measure and measure.interval,
    )


def compare_answers(
    prompts: Sequence[SamplePrompt], base: Sequence[WrittenAnswer], tuned: Sequence[WrittenAnswer]
) -> tuple[SampleAnswer, ...]:
    """Pair the answers of base and adapter to each prompt, shortened."""
    return tuple(
        SampleAnswer(
            line=prompt.line,
            role=prompt.role,
            prompt=shorten(prompt.text),
            turns=prompt.turns,
            system=prompt.system and shorten(prompt.system),
            reference=shorten(prompt.reference),
            base=shorten(old.text),
            tuned=shorten(new.text),
            base_ended=old.ended,
            tuned_ended=new.ended,
        )
        for prompt, old, new in zip(prompts, base, tuned, strict=True)
    )


class Asker(Protocol):
    """Requests answers from base and adapter."""

    def __call__(
        self, prompts: Sequence[list[int]], max_tokens: int, /
    ) -> tuple[list[WrittenAnswer], list[WrittenAnswer]]:
        """Return greedy answers of base and adapter to token ids, of at most ``max_tokens`` tokens."""


@dataclass(frozen=True, slots=True)
class Answers:
    """Answers that were made, and notes on those that were not."""

    samples: tuple[SampleAnswer, ...] = ()
    general: tuple[GeneralAnswer, ...] = ()
    notes: tuple[str, ...] = ()


def answer_in_time(
    rows: EvaluationRows, ask: Asker, deadline: float, advance: Callable[[str, int, int], None]
) -> Answers:
    """Get the general answers, the first samples, and the other samples as far as the time allows.

    Args:
        deadline: monotonic seconds. A batch that began before it is finished. The general questions and the first
            samples are always requested, because a short training can cost a model much of what it knew.
        advance: called with an activity, how much of it is done, and its total.
    """
    base: list[WrittenAnswer] = []
    tuned: list[WrittenAnswer] = []
    general: tuple[GeneralAnswer, ...] = ()
    notes = []
    if rows.general:
        advance("general_questions", 0, len(rows.general))
        general = judge_general(*ask(rows.general, GENERAL_TOKENS))
        advance("general_questions", len(rows.general), len(rows.general))
    for at in range(0, len(rows.samples), ANSWERS_AT_ONCE):
        if at and time.monotonic() > deadline:
            notes.append(f"{at} of {counted(len(rows.samples), 'sample answer')} were asked for: {TOO_LONG}.")
            break
        advance("sample_answers", at, len(rows.samples))
        old, new = ask([prompt.ids for prompt in rows.samples[at : at + ANSWERS_AT_ONCE]], SAMPLE_TOKENS)
        base, tuned = base + old, tuned + new
        advance("sample_answers", len(base), len(rows.samples))
    return Answers(compare_answers(rows.samples[: len(base)], base, tuned), general, tuple(notes))


def judge_general(base: Sequence[WrittenAnswer], tuned: Sequence[WrittenAnswer]) -> tuple[GeneralAnswer, ...]:
    """Judge the answers of base and adapter to the general questions; they are shortened."""
    pairs = zip(general_questions(), base, tuned, strict=True)
    return tuple(question.judge(shorten(old.text), shorten(new.text)) for question, old, new in pairs)


def shorten(text: str) -> str:
    """Shorten a string to ``MAX_CHARACTERS``, keeping its beginning and end."""
    half = MAX_CHARACTERS // 2
    return text if len(text) <= MAX_CHARACTERS else f"{text[:half]} … {text[-half:]}"
