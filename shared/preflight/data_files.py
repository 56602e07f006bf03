"""A job's data files, read once each: their rows, and the tokens in them that the base would be trained on.

Every file goes through the same checks: validation and replay rows are rendered with the same template as training
rows, and would make the trainer fail in the same way.
"""

from __future__ import annotations

from array import array
from collections.abc import Collection
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import Literal

import numpy as np

from shared.contract.choices import DataMode
from shared.contract.contracts import FineTuneContract
from shared.contract.plan import validation_split, with_rated_weights
from shared.contract.sections import DataSection
from shared.datasets.duplicates import ExactIndex, Lines
from shared.datasets.filters import RowFilter
from shared.datasets.preferences.findings import (
    RatedFindings,
    findings_of,
    rated_warnings,
    refuse_contradictions,
    refuse_one_label,
)
from shared.datasets.reader import Hasher, count_lines
from shared.datasets.report import Observer, in_mode, inspect_file, part_warnings, refusal
from shared.datasets.report_types import DataReport, FileReport, RatedReport
from shared.datasets.row_weights import row_weight, stored_weight
from shared.datasets.rows import Record, as_row
from shared.errors import ArtifactInvalid, Code, ContractRejected, MensError
from shared.preflight.held_out import count_copies, split_validation
from shared.preflight.types import InputFile, Machine
from shared.tokenization.preference_supervision import PreferenceSupervisionPass
from shared.tokenization.supervision import SupervisionPass, sample_lines
from shared.tokenization.supervision_report import SupervisionReport
from shared.tokenization.tokenizer import Tokenizer

SAMPLED_ROWS = 20_000
SMALLEST_ROW_BYTES = 27
"""Size of ``{"prompt":"a","output":"b"}``: a file too small for more such rows than the sample need not be counted."""
NEAR_DUPLICATE_BYTES = 64 << 20
"""Above this size a control plane looks for exact duplicates only."""

Kind = Literal["train", "validation", "replay"]


@dataclass(frozen=True, slots=True)
class JobFiles:
    """The files of a job; ``train`` is always present."""

    train: InputFile
    validation: InputFile | None = None
    replay: InputFile | None = None


@dataclass(frozen=True, slots=True)
class Findings:
    """Findings on the files of a job.

    Attributes:
        data: report on the training file and the validation file.
        replay: report on the replay file, if any.
        supervision: supervision report by file; the training file's is always present.
        index: index of the training file's rows, or of the prompts of its preferences.
        lines: lines of the rows or prompts that the trainer will use, as :meth:`trained_on` counts them.
        rated: counts of the answers that are not held out, in a training file of rated answers.
        held_out: number of lines that are held out.
    """

    data: DataReport
    replay: FileReport | None
    supervision: dict[Kind, SupervisionReport]
    index: ExactIndex
    lines: Lines
    rated: RatedReport | None = None
    held_out: int = 0

    @property
    def longest_row(self) -> int:
        """Tokens of the longest row of all files, before truncation."""
        return max(report.longest_row for report in self.supervision.values())

    def trained_on(self, kind: Kind) -> dict[int, int]:
        """Count the rows of an existing file that the trainer will use, by difficulty, without those that it must skip.

        For a sampled file, only the skipped rows of the sample are known.
        """
        reports = {"train": self.data.training, "validation": self.data.validation, "replay": self.replay}
        report = reports[kind]
        assert report is not None
        lost = self.supervision[kind].lost_difficulties
        return {level: rows - lost.get(level, 0) for level, rows in report.trainable_difficulties.items()}

    def leaks(self, held_out: int, seed: int) -> list[str]:
        """Return a note on held-out rows that are trained on too, if any.

        Args:
            held_out: rows of the training file that are held out.
            seed: seed of the split, which chooses them.
        """
        training = self.data.training
        kind = "pairs" if training.preferences else "rated answers" if training.rated else ""
        # Without a repeated row no copies can exist, and most files have none.
        repeats = held_out and (kind or training.duplicates.exact_rows)
        copies = count_copies(self.index, self.lines, held_out, seed) if repeats else 0
        if not copies:
            return []
        if kind:
            finding = f"{copies} of the {held_out} held-out {kind} have a prompt that is also trained on"
            return [f"{finding}: the validation loss may be lower than on new prompts."]
        finding = f"{copies} of the {held_out} held-out rows are also trained on"
        return [f"{finding}: the validation loss is lower than on new rows."]

    def refuse(self) -> None:
        """Refuse the job if rows cannot be trained, validated on or replayed."""
        refuse_contradictions(self.data.training.preferences, "data.train_file")
        refuse_one_label(self.data.training.rated, "data.train_file")
        for kind, report in self.supervision.items():
            report.refuse(f"data.{kind}_file", lenient=self.data.mode is DataMode.LENIENT)
        refuse_one_label(self.rated, "data.train_file", self.held_out)

    def with_weights(self, contract: FineTuneContract) -> FineTuneContract:
        """Return the contract with the weights of rated answers decided; the same object without such answers."""
        rated = self.rated
        return with_rated_weights(contract, rated.good, rated.bad) if rated and rated.good else contract

    def warnings(self, contract: FineTuneContract) -> list[str]:
        """Warn of row contents that the training will not reproduce as written, and of rated answers that hardly count."""
        seq_len = contract.exec.seq_len
        sentences = [*self.data.warnings, *(part_warnings(self.replay, "replay ") if self.replay else [])]
        if self.rated:
            sentences += rated_warnings(self.rated, contract.preference)
        for kind, report in self.supervision.items():
            sentences += report.warnings(seq_len, "" if kind == "train" else f"{kind} ")
        return sentences


def read_files(
    contract: FineTuneContract, seq_len: int, tokenizer: Tokenizer, files: JobFiles, machine: Machine
) -> Findings:
    """Read each file once: content, rows, duplicates, and supervised tokens.

    Args:
        seq_len: length at which rows are truncated.

    Raises:
        ArtifactInvalid: ``STORAGE_OBJECT_MISSING``: a file differs from the uploaded one.
        ContractRejected: ``NOTHING_SUPERVISED``: every row that is trained on has the weight 0.
    """
    filters, train, validation = RowFilter.of(contract.data), files.train, files.validation
    passes = _Passes(contract, seq_len, tokenizer, machine)
    hashers, index = (_hasher(train), _hasher(validation)), ExactIndex()
    preferences = findings_of(contract.method.type)
    report = inspect_file(
        train.path,
        validation=validation.path if validation else None,
        filters=filters,
        mode=contract.data.mode,
        near=machine.thorough or train.path.stat().st_size <= NEAR_DUPLICATE_BYTES,
        observer=passes.observe("train", train, filters),
        validation_observer=passes.observe("validation", validation, filters) if validation else None,
        hashers=hashers,
        index=index,
        method=contract.method.type,
        preferences=preferences,
    )
    # Changed bytes explain bad lines best, so they are refused first.
    _verify(train, hashers[0])
    _verify(validation, hashers[1])
    if error := refusal(report, filters):
        raise error
    if passes.heaviest_row == 0:
        raise ContractRejected(
            Code.NOTHING_SUPERVISED,
            "The boosts of the trajectory section give every row the weight 0, so training would have no effect.",
            remedy="Raise the boost that is 0 or nearly 0, or set trajectory.enabled to false.",
            param="trajectory",
        )
    replayed = _read_replay(files.replay, contract.data, passes) if files.replay else None
    counted = {"train": report.training, "validation": report.validation, "replay": replayed}
    supervision = {kind: passes.report(kind, counted[kind]) for kind in passes.started}
    row_index = index if preferences is None else preferences.prompts
    findings = Findings(report, replayed, supervision, row_index, passes.trained_lines())
    return _with_ratings(findings, preferences, contract) if isinstance(preferences, RatedFindings) else findings


def report_on_file(
    file: InputFile, contract: FineTuneContract, seq_len: int, tokenizer: Tokenizer | None
) -> tuple[DataReport, SupervisionReport | None, MensError | None]:
    """Read a training file outside a job: its report, its tokens for a base, and the error that would refuse a job.

    Args:
        contract: decides the form of the rows, which of them are trained on, and whether bad lines refuse the job. They
            are skipped here.
        seq_len: length at which rows are truncated.
        tokenizer: the base's tokenizer; None: tokens are not counted.
    """
    filters = RowFilter.of(contract.data)
    passes = _Passes(contract, seq_len, tokenizer, Machine()) if tokenizer else None
    report = inspect_file(
        file.path,
        filters=filters,
        mode=DataMode.LENIENT,
        near=file.path.stat().st_size <= NEAR_DUPLICATE_BYTES,
        observer=passes.observe("train", file, filters) if passes else None,
        method=contract.method.type,
    )
    supervision = passes.report("train", report.training) if passes else None
    report = in_mode(report, contract.data.mode)
    error: MensError | None = refusal(report, filters)
    try:
        refuse_contradictions(report.training.preferences, "data.train_file")
        refuse_one_label(report.training.rated, "data.train_file")
        if supervision:
            supervision.refuse(lenient=contract.data.mode is DataMode.LENIENT)
    except MensError as found:
        error = error or found
    return report, supervision, error


def _with_ratings(findings: Findings, ratings: RatedFindings, contract: FineTuneContract) -> Findings:
    """Return the findings with the ratings of the answers that are trained on, as the trainer splits them."""
    data, rows = contract.data, len(findings.lines)
    held_out = 0 if findings.data.validation else validation_split(rows, data.validation_split_ratio)
    training, _ = split_validation(rows, held_out, contract.exec.seed)
    return replace(findings, rated=ratings.report_on(findings.lines[training]), held_out=held_out)


def _read_replay(replay: InputFile, section: DataSection, passes: _Passes) -> FileReport:
    filters, hasher = RowFilter.of_replay(section), _hasher(replay)
    observer = passes.observe("replay", replay, filters)
    report = inspect_file(
        replay.path, filters=filters, mode=section.mode, near=False, observer=observer, hashers=(hasher, None)
    )
    _verify(replay, hasher)
    if error := refusal(report, filters, "data.replay_file"):
        raise error
    return report.training


class _Passes:
    """Supervision passes over the files of a job.

    Attributes:
        heaviest_row: first nonzero stored weight of a row of the training file, 0 when all are zero; None before the
            first row.
    """

    def __init__(self, contract: FineTuneContract, seq_len: int, tokenizer: Tokenizer, machine: Machine) -> None:
        self._contract, self._seq_len, self._tokenizer = contract, seq_len, tokenizer
        self._thorough = machine.thorough
        self.started: dict[Kind, tuple[SupervisionPass | PreferenceSupervisionPass, bool]] = {}
        self.heaviest_row: float | None = None
        self._admitted = array("I")

    def observe(self, kind: Kind, file: InputFile, filters: RowFilter) -> Observer:
        """Return an observer for the rows of a file; for a large file, it samples unless the machine is thorough."""
        chosen = None
        if not self._thorough and file.path.stat().st_size > SAMPLED_ROWS * SMALLEST_ROW_BYTES:
            chosen = sample_lines(_lines(file), SAMPLED_ROWS)
        if self._contract.has_preferences:
            return self._observe_preferences(kind, chosen, filters)
        supervision_pass = SupervisionPass(
            self._tokenizer, seq_len=self._seq_len, last_k=self._contract.exec.qlora_ce_last_k, filters=filters
        )
        self.started[kind] = supervision_pass, chosen is not None

        def observe(record: Record, line: int) -> None:
            row, take = (
                as_row(record, line),
                supervision_pass.add if chosen is None or line in chosen else supervision_pass.measure,
            )
            take(row)
            if kind == "train" and filters.admits(row):
                self._admitted.append(line)
                self.heaviest_row = self.heaviest_row or stored_weight(row_weight(row, self._contract.trajectory)[0])

        return observe

    def _observe_preferences(self, kind: Kind, chosen: Collection[int] | None, filters: RowFilter) -> Observer:
        supervision_pass = PreferenceSupervisionPass(self._tokenizer, seq_len=self._seq_len, filters=filters)
        self.started[kind] = supervision_pass, chosen is not None

        def observe(record: Record, line: int) -> None:
            take = supervision_pass.add if chosen is None or line in chosen else supervision_pass.measure
            take(record, line)
            if kind == "train" and filters.admits(record):
                self._admitted.append(line)

        return observe

    def trained_lines(self) -> Lines:
        """Return the lines of the training file whose rows the trainer will use; call it after the file's report."""
        lost = np.array(self.started["train"][0].lost_lines, np.uint32)
        return np.setdiff1d(np.frombuffer(self._admitted, np.uint32), lost, assume_unique=True)

    def report(self, kind: Kind, counted: FileReport | None) -> SupervisionReport:
        supervision_pass, sampled = self.started[kind]
        return supervision_pass.report(counted.rows + counted.error_count if counted else 0, sampled=sampled)


def _lines(file: InputFile) -> int:
    if file.lines is not None:
        return file.lines
    with file.path.open("rb") as content:
        return count_lines(content)


def _hasher(file: InputFile | None) -> Hasher | None:
    return sha256() if file and file.verify else None


def _verify(file: InputFile | None, hasher: Hasher | None) -> None:
    if file and hasher and hasher.hexdigest() != file.sha256:
        raise ArtifactInvalid(
            Code.STORAGE_OBJECT_MISSING,
            f"The stored file {file.sha256} differs from the uploaded one.",
            remedy="Upload the file again, or restore the storage from a backup.",
        )
