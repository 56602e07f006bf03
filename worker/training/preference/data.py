"""The pairs or rated answers that a run trains and validates on, from the plan's files."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import numpy as np
from transformers import PreTrainedTokenizerBase

from shared.contract.plan import DataFile, TrainingRun, validation_split
from shared.preflight.held_out import split_validation
from shared.tokenization.template_arguments import ChatOptions
from shared.tokenization.tokenizer import Tokenizer
from worker.training.data.batches import Numbers
from worker.training.data.dataset import Data, refuse_other_tokens
from worker.training.data.prepare import prepare
from worker.training.data.prepared import PreparationReport, PreparedRows
from worker.training.method import Example
from worker.training.preference.prepare_rows import write_preferences
from worker.training.preference.scored_rows import ScoredRows, WantedAnswers

RowT = TypeVar("RowT", bound=Example)
OpenRows = Callable[[PreparedRows, int, Sequence[Numbers]], ScoredRows[RowT]]
"""A function that opens a prepared file: (its rows, number of its first row among the rows of all files, row numbers of
its separately used splits).
"""


def read_preferences(
    run: TrainingRun, tokenizer: PreTrainedTokenizerBase, vocab: int, cache: Path, open_rows: OpenRows[RowT]
) -> Data[RowT]:
    """Encode the plan's files, or find them encoded in the cache.

    Raises:
        DatasetInvalid: ``NOTHING_SUPERVISED``, ``EMBEDDING_ROW_MISSING``, ``SKIP_RATE_EXCEEDED``.
    """
    plan, inputs, contract = run.plan, run.inputs, run.plan.contract
    labeller, sides = Tokenizer.load(Path(inputs.base), ChatOptions.of(contract.data)), contract.sequences_per_row

    def encode(path: str, file: DataFile) -> PreparedRows:
        return prepare(Path(path), file.sha256, labeller, contract, cache, vocab, write_preferences)

    encoded = encode(inputs.train, plan.train)
    refuse_other_tokens(labeller, tokenizer, encoded)
    apart = encode(inputs.validation, plan.validation) if inputs.validation and plan.validation else None
    count = len(encoded) // sides
    held_out = 0 if apart else validation_split(count, contract.data.validation_split_ratio)
    training, kept_apart = split_validation(count, held_out, contract.exec.seed)
    rows = open_rows(encoded, 0, [training, kept_apart])
    validation = open_rows(apart, count, [np.arange(len(apart) // sides)]) if apart else None
    held = validation or [rows[int(number)] for number in kept_apart]
    return Data(
        rows=rows,
        training=training,
        difficulties=rows.difficulties[training],
        validation=held,
        replay=[],
        probe_rows=WantedAnswers(held) or WantedAnswers(rows),
        report=_by_row(encoded.report, sides),
        validation_report=_by_row(apart.report, sides) if apart else None,
        key=encoded.key,
    )


def _by_row(report: PreparationReport, sides: int) -> PreparationReport:
    """Return a report that counts rows, not their chats."""
    refused = "template_refused"  # already counted once per row
    skipped = {reason: count if reason == refused else count // sides for reason, count in report.skipped.items()}
    lines = list(dict.fromkeys(report.skipped_lines))
    return replace(
        report,
        rows=report.rows // sides,
        truncated_rows=report.truncated_rows // sides,
        skipped=skipped,
        skipped_lines=lines,
    )
