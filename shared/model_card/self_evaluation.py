"""The self-evaluation of a run: an adapter against its base on the same rows, and sample answers of both. Values only."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

SCHEMA: Literal["mens_self_evaluation_v1"] = "mens_self_evaluation_v1"
KEY = "self_evaluation"
"""Where a job's result and an adapter's metrics hold it."""


class EvaluationPart(BaseModel):
    """Part of a self-evaluation; closed and frozen."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class RowSource(StrEnum):
    """Which rows were taken."""

    VALIDATION_FILE = "validation_file"
    HELD_OUT = "held_out"
    TRAINING = "training"


class PairedMeasure(EvaluationPart):
    """One measure of base and adapter on the same rows."""

    base: float = Field(
        description="Of the base: the same model with the adapter switched off; mean per supervised token."
    )
    tuned: float = Field(description="Of the base with the adapter.")
    row_difference: float = Field(description="Mean over the rows of tuned minus base.")
    interval: tuple[float, float] | None = Field(
        description="Of row_difference; each end holds with 95 %. Null where the rows are too few."
    )


class SampleAnswer(EvaluationPart):
    """One row's answer by base and adapter, greedy, from the same token ids."""

    line: int = Field(description="Line of the row in its file, from 1.")
    role: str = Field(description="Of the last turn before the answer: user or tool.")
    prompt: str = Field(description="That turn's text, shortened.")
    turns: int = Field(description="Turns before the answer.")
    reference: str = Field(description="The row's own answer as the template writes it, shortened.")
    base: str
    tuned: str
    base_ended: bool = Field(description="Whether the base ended its answer; else the limit of tokens cut it.")
    tuned_ended: bool


class SelfEvaluation(EvaluationPart):
    """What a finished run measured of itself."""

    version: Literal["mens_self_evaluation_v1"] = SCHEMA
    source: RowSource
    rows: int = Field(description="Rows that were scored.")
    held_out_copies: int = Field(
        0, description="Of the scored rows that were held out, those that are trained on too: the file repeats them."
    )
    rows_available: int
    tokens: int = Field(description="Supervised tokens of these rows.")
    loss: PairedMeasure | None = Field(description="Nats per supervised token; lower is better.")
    token_accuracy: PairedMeasure | None = Field(description="Share of supervised tokens that the arg-max predicts.")
    sample_answers: tuple[SampleAnswer, ...] = ()
    notes: tuple[str, ...] = Field((), description="What was not measured, and why.")


def without_samples(values: Mapping[str, Any]) -> dict[str, Any]:
    """A job's result or an adapter's metrics as lists show them: without the sample answers."""
    found = values.get(KEY)
    if not isinstance(found, dict):
        return dict(values)
    return {**values, KEY: {name: value for name, value in found.items() if name != "sample_answers"}}


def summarize(evaluation: SelfEvaluation) -> list[str]:
    """The measures in a few lines of plain text; the same words everywhere."""
    rows = {
        RowSource.VALIDATION_FILE: "rows of the validation file",
        RowSource.HELD_OUT: "held-out rows",
        RowSource.TRAINING: "training rows, because none is held out: this shows what was learnt by heart",
    }[evaluation.source]
    copies = evaluation.held_out_copies
    leaked = f"; {copies} of them are trained on too, so new rows may do worse" if copies else ""
    lines = [
        f"{evaluation.rows} of {evaluation.rows_available} {rows}{leaked}; {evaluation.tokens:,} supervised tokens"
    ]
    if loss := evaluation.loss:
        lines.append(f"loss {loss.base:.4f} -> {loss.tuned:.4f} nats per token{_change(loss, '{:+.4f}')}")
    if accuracy := evaluation.token_accuracy:
        shown = PairedMeasure(
            base=100 * accuracy.base,
            tuned=100 * accuracy.tuned,
            row_difference=100 * accuracy.row_difference,
            interval=accuracy.interval and (100 * accuracy.interval[0], 100 * accuracy.interval[1]),
        )
        lines.append(f"token accuracy {shown.base:.1f} % -> {shown.tuned:.1f} %{_change(shown, '{:+.1f}')}")
    return [*lines, *evaluation.notes]


def _change(measure: PairedMeasure, form: str) -> str:
    mean = form.format(measure.row_difference)
    if measure.interval is None:
        return f"; {mean} a row, too few rows for an interval"
    low, high = (form.format(end) for end in measure.interval)
    return f"; {mean} a row, between {low} and {high}"
