"""The pairs that a run trains and validates on, from the plan's files."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from transformers import PreTrainedTokenizerBase

from shared.contract.plan import DataFile, TrainingRun, validation_split
from shared.preflight.held_out import split_validation
from shared.tokenization.template_arguments import ChatOptions
from shared.tokenization.tokenizer import Tokenizer
from worker.training.data.dataset import Data, refuse_other_tokens
from worker.training.data.prepare import prepare
from worker.training.data.prepared import PreparationReport, PreparedRows
from worker.training.preference.pairs import Pair, PreferredAnswers, PreparedPairs
from worker.training.preference.prepare_pairs import write_pairs


def read_pairs(run: TrainingRun, tokenizer: PreTrainedTokenizerBase, vocab: int, cache: Path) -> Data[Pair]:
    """Encode the plan's files, or find them encoded in the cache.

    Raises:
        DatasetInvalid: ``NOTHING_SUPERVISED``, ``EMBEDDING_ROW_MISSING``, ``SKIP_RATE_EXCEEDED``. JobFailed:
            ``TOKENIZER_MISMATCH``.
    """
    plan, inputs, contract = run.plan, run.inputs, run.plan.contract
    labeller = Tokenizer.load(Path(inputs.base), ChatOptions.of(contract.data))

    def encode(path: str, file: DataFile) -> PreparedRows:
        return prepare(Path(path), file.sha256, labeller, contract, cache, vocab, write_pairs)

    rows = encode(inputs.train, plan.train)
    pairs = PreparedPairs(rows)
    refuse_other_tokens(labeller, tokenizer, rows)
    validation = (
        PreparedPairs(encode(inputs.validation, plan.validation), len(pairs))
        if inputs.validation and plan.validation
        else None
    )
    held_out = 0 if validation else validation_split(len(pairs), contract.data.validation_split_ratio)
    training, kept_apart = split_validation(len(pairs), held_out, contract.exec.seed)
    held = validation or [pairs[int(number)] for number in kept_apart]
    return Data(
        rows=pairs,
        training=training,
        difficulties=pairs.difficulties[training],
        validation=held,
        replay=[],
        probe_rows=PreferredAnswers(held or pairs),
        report=_by_pair(rows.report),
        validation_report=_by_pair(validation.rows.report) if validation else None,
        key=rows.key,
    )


def _by_pair(report: PreparationReport) -> PreparationReport:
    """Return a report that counts pairs, not their chats."""
    refused = "template_refused"  # counted once a pair already
    skipped = {reason: count if reason == refused else count // 2 for reason, count in report.skipped.items()}
    lines = list(dict.fromkeys(report.skipped_lines))
    return replace(
        report, rows=report.rows // 2, truncated_rows=report.truncated_rows // 2, skipped=skipped, skipped_lines=lines
    )
