"""The self-evaluation of a run: adapter against base on the same rows, and sample answers of both. Values only."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from shared.counted_nouns import counted

SCHEMA: Literal["mens_self_evaluation_v1"] = "mens_self_evaluation_v1"
KEY = "self_evaluation"
"""Key of the self-evaluation in a job's result and an adapter's metrics."""


LEAST_KEPT = 0.75
"""Share of general answers to keep; a smaller one is reported as forgetting."""
FORGETTING_REMEDY = (
    "the model has forgotten general knowledge: train fewer epochs, or add rows of general chats with --replay FILE"
)
LEAST_LOSS_SHARE = 0.25
"""Share by which the served model's loss must exceed the trainer's to give a warning."""
SHIFT_REMEDY = "Train over 16 bit (quant.base none), or serve the dequantised twin (`mens base dequantize NAME`)."


class EvaluationPart(BaseModel):
    """Part of a self-evaluation; closed and frozen."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class RowSource(StrEnum):
    """Source of the scored rows."""

    VALIDATION_FILE = "validation_file"
    HELD_OUT = "held_out"
    TRAINING = "training"


class PairedMeasure(EvaluationPart):
    """One measure of base and adapter on the same rows."""

    base: float = Field(
        description="The base's value: the same model with the adapter switched off; mean per supervised token."
    )
    tuned: float = Field(description="Value of the base with the adapter.")
    row_difference: float = Field(description="Mean over the rows of tuned minus base.")
    interval: tuple[float, float] | None = Field(
        description="Interval of row_difference; each end holds with 95 % confidence. Null if there are too few rows."
    )


class PreferredAnswers(EvaluationPart):
    """Number of pairs in which the preferred answer is the more likely one, by mean log-probability per token."""

    reference: Literal["base", "parent"] = Field(description="The model that the run started from.")
    pairs: int
    before: int = Field(description="Pairs in which that model finds the preferred answer more likely.")
    tuned: int = Field(description="Pairs in which the tuned model finds the preferred answer more likely.")
    interval: tuple[float, float] | None = Field(
        description=(
            "Interval of (tuned - before) / pairs; each end holds with 95 % confidence. Null if there are too few "
            "pairs."
        )
    )

    def __str__(self) -> str:
        """Describe the numbers in one line of plain text."""
        return (
            f"the preferred answer is more likely per token in {self.before} of {counted(self.pairs, 'pair')} "
            f"for the {self.reference} and in {self.tuned} for the tuned model; "
        ) + _change((self.tuned - self.before) / self.pairs, self.interval, 100.0, ".1f", " points", "")


class SampleAnswer(EvaluationPart):
    """One row's answer by base and adapter, greedy, from the same token ids."""

    line: int = Field(description="Line of the row in its file, from 1.")
    role: str = Field(description="Role of the last turn before the answer: user or tool.")
    prompt: str = Field(description="Text of that turn, shortened.")
    turns: int = Field(description="Turns before the answer.")
    system: str | None = Field(
        None,
        description="The row's system turn, shortened; null if it has none, or if an earlier release made the evaluation.",
    )
    reference: str = Field(description="The row's own answer as the template writes it, shortened.")
    base: str
    tuned: str
    base_ended: bool = Field(description="True if the base ended its answer; false if the token limit cut it off.")
    tuned_ended: bool

    @property
    def is_exact(self) -> bool:
        """Return true if the tuned model wrote the reference, ignoring white space."""
        return self.tuned_ended and self.tuned.split() == self.reference.split()


class GeneralAnswer(EvaluationPart):
    """One general question's answers, greedy; `shared/model_card/general_questions.py` judges them."""

    question: str
    base: str
    tuned: str
    kept: bool | None = Field(description="True if the tuned model still answers correctly; null if the base does not.")


class ServedEvaluation(EvaluationPart):
    """Measures of the served model on the same rows, scored token by token by a replica."""

    base: str = Field(description="Name of the base that the replica serves.")
    dtype: str = Field(description="Dtype that the replica computes in.")
    weights: Literal["original", "twin"] = Field(
        description="The base's own weights, or those of its dequantised twin."
    )
    rows: int
    tokens: int = Field(description="Supervised tokens of these rows.")
    loss: PairedMeasure | None
    token_accuracy: PairedMeasure | None


class AnswerSource(StrEnum):
    """The process that generated the sample answers and the general answers."""

    TRAINER = "trainer"
    REPLICA = "replica"


class SelfEvaluation(EvaluationPart):
    """Self-evaluation of a finished run."""

    version: Literal["mens_self_evaluation_v1"] = SCHEMA
    source: RowSource
    rows: int = Field(description="Rows that were scored.")
    held_out_copies: int = Field(
        0, description="Scored held-out rows that are trained on too, because the file repeats them."
    )
    rows_available: int = Field(description="Rows of that source whose answer is one that a model should give.")
    tokens: int = Field(description="Supervised tokens of these rows.")
    loss: PairedMeasure | None = Field(description="Nats per supervised token; lower is better.")
    token_accuracy: PairedMeasure | None = Field(description="Share of supervised tokens that the arg-max predicts.")
    preferred: PreferredAnswers | None = Field(
        None,
        description="The same for pairs of answers; null for other rows, or if an earlier release made the evaluation.",
    )
    precision: str | None = Field(
        None,
        description="Format of the base in training: nf4, or a dtype; null if an earlier release made the evaluation.",
    )
    served: ServedEvaluation | None = Field(
        None, description="The same measures of the served model; null where nothing was published."
    )
    answers_from: AnswerSource | None = Field(None, description="Origin of the answers; null without answers.")
    sample_answers: tuple[SampleAnswer, ...] = ()
    general_answers: tuple[GeneralAnswer, ...] = ()
    notes: tuple[str, ...] = Field((), description="Measurements that were not made, and why.")
    warnings: tuple[str, ...] = Field((), description="Warnings for users of the model.")

    @property
    def exact_answers(self) -> int:
        """Sample answers of the tuned model that equal their reference."""
        return sum(sample.is_exact for sample in self.sample_answers)

    @property
    def wrong_sample(self) -> SampleAnswer | None:
        """The first sample that the tuned model did not answer as its reference does."""
        return next((sample for sample in self.sample_answers if not sample.is_exact), None)

    @property
    def system_sample(self) -> SampleAnswer | None:
        """The first sample if its row has a system turn: a chat without that turn is not what was trained."""
        first = next(iter(self.sample_answers), None)
        return first if first and first.system else None

    @property
    def known_answers(self) -> list[GeneralAnswer]:
        """General answers that the base itself had right."""
        return [answer for answer in self.general_answers if answer.kept is not None]

    @property
    def lost_answer(self) -> GeneralAnswer | None:
        """The first general question that the tuned model no longer answers."""
        return next((answer for answer in self.general_answers if answer.kept is False), None)


TEXTS = ("sample_answers", "general_answers")


def without_samples(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return a job's result or an adapter's metrics without the answers, for a list."""
    evaluation = values.get(KEY)
    if not isinstance(evaluation, dict):
        return dict(values)
    return {**values, KEY: {name: value for name, value in evaluation.items() if name not in TEXTS}}


def shift_warning(evaluation: SelfEvaluation) -> str | None:
    """Return a warning if the served model is much worse than the trained one, else None."""
    trained, served = evaluation.loss, evaluation.served and evaluation.served.loss
    if not (trained and served and evaluation.precision == "nf4"):
        return None
    if not served.tuned > (1 + LEAST_LOSS_SHARE) * trained.tuned:
        return None
    return (
        f"Serving loses a part of what was learnt: the loss is {served.tuned:.4f} there and"
        f" {trained.tuned:.4f} on the NF4 base of the training. {SHIFT_REMEDY}"
    )


def summarize(evaluation: SelfEvaluation) -> list[str]:
    """Describe the measures in a few lines of plain text, with fixed wording. The served model's come first."""
    rows = {
        RowSource.VALIDATION_FILE: ("row of the validation file", "rows of the validation file"),
        RowSource.HELD_OUT: ("held-out row", "held-out rows"),
        RowSource.TRAINING: ("training row", "training rows"),
    }[evaluation.source]
    is_trained_on = evaluation.source is RowSource.TRAINING
    memorised = ", because no others can be measured: this shows what was memorised" if is_trained_on else ""
    copies = evaluation.held_out_copies
    leaked = f"; {copies} of them are trained on too, so new rows may do worse" if copies else ""
    measured = f"{evaluation.rows} of {counted(evaluation.rows_available, *rows)}{memorised}{leaked}"
    lines = [f"{measured}; {counted(evaluation.tokens, 'supervised token')}"]
    if served := evaluation.served:
        some = f", {served.rows} of these rows" if served.rows < evaluation.rows else ""
        lines += _measures(
            f"served ({served.weights} weights, {served.dtype}{some}): ", served.loss, served.token_accuracy
        )
    trained = f"on the training's own weights ({evaluation.precision}): " if evaluation.precision else ""
    lines += _measures(trained, evaluation.loss, evaluation.token_accuracy)
    if evaluation.precision and not served:
        lines.append("not measured on served weights")
    if evaluation.preferred:
        lines.append(str(evaluation.preferred))
    lines += _answers(evaluation)
    return [*lines, *evaluation.notes, *(f"warning: {warning}" for warning in evaluation.warnings)]


def _measures(where: str, loss: PairedMeasure | None, accuracy: PairedMeasure | None) -> list[str]:
    lines = []
    if loss:
        lines.append(
            f"{where}loss {loss.base:.4f} -> {loss.tuned:.4f} nats per token; "
            + _change(loss.row_difference, loss.interval, -1.0, ".4f", "")
        )
    if accuracy:
        before, after = 100 * accuracy.base, 100 * accuracy.tuned
        change = _change(accuracy.row_difference, accuracy.interval, 100.0, ".1f", " points")
        lines.append(f"{where}token accuracy {before:.1f} % -> {after:.1f} %; {change}")
    return lines


def _change(
    difference: float,
    interval: tuple[float, float] | None,
    sign: float,
    form: str,
    unit: str,
    where: str = " on an average row",
) -> str:
    """Describe in words how much better an average row is. Multiplying by ``sign`` makes higher better, and scales the
    value.
    """

    def amount(value: float) -> str:
        return f"{format(abs(value), form)}{unit}"

    mean = sign * difference
    if interval is None:
        return f"{'better' if mean >= 0 else 'worse'} by {amount(mean)}{where} (too few rows to be sure)"
    low, high = sorted(sign * end for end in interval)
    if low <= 0 <= high:
        return f"not certain: between {amount(low)} worse and {amount(high)} better{where}"
    near, far = sorted((abs(low), abs(high)))
    word = "better" if low > 0 else "worse"
    return (
        f"{word} by {amount(mean)}{where} ({format(near, form)} to {amount(far)}; each end holds with 95 % confidence)"
    )


def _answers(evaluation: SelfEvaluation) -> list[str]:
    lines = []
    if samples := evaluation.sample_answers:
        equal = "equals its" if len(samples) == 1 else "equal their"
        lines.append(f"{evaluation.exact_answers} of {counted(len(samples), 'sample answer')} {equal} reference")
    if general := evaluation.known_answers:
        kept = sum(answer.kept is True for answer in general)
        lines.append(f"general answers kept: {kept} of {len(general)}")
        if kept < LEAST_KEPT * len(general):
            lines.append(FORGETTING_REMEDY)
    elif unknown := evaluation.general_answers:
        lines.append(f"general answers kept: not known, because the base answers none of the {len(unknown)} questions")
    return lines
