"""The rows that a run trains and validates on, from the plan's files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

import numpy as np
import numpy.typing as npt
from transformers import PreTrainedTokenizerBase

from shared.contract.contracts import FineTuneContract
from shared.contract.plan import DataFile, TrainingRun, validation_split
from shared.errors import Code, DatasetInvalid, JobFailed
from shared.preflight.held_out import split_validation
from shared.tokenization.agreement import ONE_TOKENIZER, first_difference
from shared.tokenization.template_arguments import ChatOptions
from shared.tokenization.tokenizer import Tokenizer
from worker.training.data.batches import Numbers
from worker.training.data.prepare import prepare
from worker.training.data.prepared import PreparationReport, PreparedRows, Row
from worker.training.data.row_order import Difficulties, replay_contract

COMPARED_ROWS = 8


RowT = TypeVar("RowT")


@dataclass(frozen=True)
class Data(Generic[RowT]):
    """Encoded rows of the kind that the training method reads.

    Attributes:
        rows: rows of the training file.
        training: numbers of the rows that are trained on.
        difficulties: difficulties of those rows.
        validation: validation rows: a file of its own, or rows held out of the training file.
        replay: rows that are mixed into each epoch; may be empty.
        probe_rows: sequences with supervised tokens; the first of them become probes (`worker/training/probes.py`).
        report: outcome of preparing the training file.
        validation_report: the same for the validation file, if one is given.
        key: digest of everything that decides the rows' content.
        copies: places in ``validation`` of held-out rows whose tokens equal those of a training row.
    """

    rows: Sequence[RowT]
    training: Numbers
    difficulties: Difficulties
    validation: Sequence[RowT]
    replay: Sequence[RowT]
    probe_rows: Sequence[Row]
    report: PreparationReport
    validation_report: PreparationReport | None
    key: str
    copies: frozenset[int] = frozenset()

    def row(self, number: int) -> RowT:
        """Return a row by its number in the order of steps: training rows first, then replayed ones."""
        if number < len(self.training):
            return self.rows[int(self.training[number])]
        return self.replay[number - len(self.training)]


def read_data(run: TrainingRun, tokenizer: PreTrainedTokenizerBase, vocab: int, cache: Path) -> Data[Row]:
    """Encode the plan's files, or find them encoded in the cache.

    Raises:
        JobFailed: ``TOKENIZER_MISMATCH``.
    """
    plan, inputs, contract = run.plan, run.inputs, run.plan.contract
    labeller = Tokenizer.load(Path(inputs.base), ChatOptions.of(contract.data))

    def encode(path: str | None, file: DataFile | None, rules: FineTuneContract = contract) -> PreparedRows | None:
        return prepare(Path(path), file.sha256, labeller, rules, cache, vocab) if path and file else None

    rows, validation = encode(inputs.train, plan.train), encode(inputs.validation, plan.validation)
    replay = encode(inputs.replay, plan.replay, replay_contract(contract))
    assert rows is not None
    refuse_other_tokens(labeller, tokenizer, rows)
    held_out = 0 if validation else validation_split(len(rows), contract.data.validation_split_ratio)
    training, kept_apart = split_validation(len(rows), held_out, contract.exec.seed)
    refuse_weightless(rows.row_weights[training], replay.row_weights if replay else ())
    held_out_rows = validation or [rows[int(number)] for number in kept_apart]
    return Data(
        rows=rows,
        training=training,
        difficulties=rows.difficulties[training],
        validation=held_out_rows,
        replay=replay or [],
        probe_rows=held_out_rows or rows,
        report=rows.report,
        validation_report=validation.report if validation else None,
        key=rows.key,
        copies=find_copies(rows, training, kept_apart),
    )


def find_copies(rows: PreparedRows, training: Numbers, held_out: Numbers) -> frozenset[int]:
    """Return the places of held-out rows whose tokens equal those of a training row."""
    if not len(held_out):
        return frozenset()
    # The marks of different rows hardly ever agree, so few rows are read completely.
    candidates = training[np.isin(rows.marks(training), rows.marks(held_out))]
    trained = {rows[int(number)].ids.tobytes() for number in candidates}
    return frozenset(place for place, number in enumerate(held_out) if rows[int(number)].ids.tobytes() in trained)


def refuse_weightless(*weights: Sequence[float] | npt.NDArray[np.float32]) -> None:
    """Refuse a run whose training rows all have the weight 0. The preflight checks all rows of a file; here the
    held-out and skipped rows are known too.

    Args:
        weights: weights of the training rows, file by file.

    Raises:
        DatasetInvalid: ``NOTHING_SUPERVISED``.
    """
    if not any(np.any(row_weights) for row_weights in weights):
        raise DatasetInvalid(
            Code.NOTHING_SUPERVISED,
            "Every training row has the weight 0, so training would have no effect; the other rows are held out for "
            "validation or skipped.",
            remedy="Raise the boosts in the trajectory section that are 0, or set data.validation_split_ratio to 0.",
            param="trajectory",
        )


def refuse_other_tokens(labeller: Tokenizer, tokenizer: PreTrainedTokenizerBase, rows: Sequence[Row]) -> None:
    """Refuse a base whose tokenizer gives different tokens in transformers: the serving tier uses transformers and must
    see the tokens of training.

    Raises:
        JobFailed: ``TOKENIZER_MISMATCH``.
    """
    texts = [labeller.decode(rows[index].ids.tolist()) for index in range(min(COMPARED_ROWS, len(rows)))]
    if (
        first_difference(labeller, lambda text: tokenizer(text, add_special_tokens=False)["input_ids"], texts)
        is not None
    ):
        raise JobFailed(
            Code.TOKENIZER_MISMATCH,
            "transformers and the base's tokenizer.json encode a string differently.",
            remedy=ONE_TOKENIZER,
            param="model.hf_repo",
        )
