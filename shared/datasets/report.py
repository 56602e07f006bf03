"""The data report on a training file and its validation file, for the API, the worker and the command line.

One pass over each file with bounded memory: counts, the first errors, and the indexes of ``duplicates.py``.
"""

from __future__ import annotations

import itertools
import os
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from shared.contract.epochs import DEFAULT_DIFFICULTY
from shared.contract.sections import DataMode
from shared.datasets.dataset_report import DatasetReport, LineError, Quarantine, line_errors, nothing_to_train_on
from shared.datasets.duplicates import (
    MAX_NEAR_ROWS,
    ExactIndex,
    NearIndex,
    PairReport,
    digest64,
    normalised,
    sketch,
)
from shared.datasets.filters import RowFilter
from shared.datasets.reader import EVERYTHING, Hasher, open_data, read_records
from shared.datasets.report_types import DataReport, FileReport, Lengths, LinePair, LineProblem, Repeats
from shared.datasets.rows import Record
from shared.datasets.written_rows import Conversion
from shared.errors import DatasetInvalid

__all__ = ["DataReport", "FileReport", "RowFilter", "inspect_file", "refusal"]

MAX_LABELS = 50
"""Distinct categories, lanes or task families that are counted; the others count as ``(other)``."""
LENGTHS = (128, 512, 2_048, 8_192, 32_768, 131_072)
"""Upper bounds of the length classes, in characters; one more class is above the last."""
TYPICAL_ROW_BYTES = 200
SHOWN_KEYS = 20
CONVERTED: dict[Conversion, str] = {
    "text parts": "have content in parts, which are joined by line breaks",
    "functions": "have functions in OpenAI's older form, which are read as tools and their calls",
    "refusal": "have a refusal, which is learnt as the answer",
}
ROWS_PER_PROGRESS = 2_000
Progress = Callable[[int], None]
Observer = Callable[[Record, int], None]
"""Receives the valid rows of a file with their line numbers."""


@dataclass(slots=True)
class _FileCounts:
    """Counts and indexes of one file."""

    report: DatasetReport = field(default_factory=DatasetReport)
    turns: Counter[str] = field(default_factory=Counter)
    ratings: Counter[int | None] = field(default_factory=Counter)
    difficulties: Counter[int | None] = field(default_factory=Counter)
    trainable: Counter[int] = field(default_factory=Counter)
    categories: Counter[str] = field(default_factory=Counter)
    lanes: Counter[str] = field(default_factory=Counter)
    task_families: Counter[str] = field(default_factory=Counter)
    lengths: list[int] = field(default_factory=lambda: [0] * (len(LENGTHS) + 1))
    total: int = 0
    longest: tuple[int, int] = (0, 0)
    exact: ExactIndex = field(default_factory=ExactIndex)
    near: NearIndex | None = None
    near_repeats: PairReport = field(default_factory=PairReport)
    near_leaks: PairReport = field(default_factory=PairReport)

    def count(self, record: Record, line: int) -> None:
        messages = record.conversation()
        size = sum(len(message.content or "") for message in messages)
        self.total += size
        # Of equally long rows the first.
        self.longest = max(self.longest, (size, -line))
        self.lengths[sum(size > bound for bound in LENGTHS)] += 1
        self.turns.update([message.role for message in messages])
        self.ratings[record.rating] += 1
        self.difficulties[record.difficulty] += 1
        _tally(self.categories, record.category)
        _tally(self.lanes, record.lane)
        _tally(self.task_families, record.task_family)

    def compare(self, record: Record, line: int, training: NearIndex | None) -> None:
        text = normalised(record.conversation())
        digest = digest64(text)
        self.exact.add(digest, line)
        if self.near is None or (self.near.full and training is None):
            return
        drawn = sketch(text)
        if pair := self.near.find(drawn, digest, line):
            self.near_repeats.add(pair)
        if training and (pair := training.find(drawn, digest, line)):
            self.near_leaks.add(pair)
        self.near.add(drawn, digest, line)


def inspect_file(
    path: Path,
    *,
    validation: Path | None = None,
    filters: RowFilter = EVERYTHING,
    mode: DataMode = DataMode.STRICT,
    near: bool = True,
    quarantine: BinaryIO | None = None,
    progress: Progress | None = None,
    observer: Observer | None = None,
    validation_observer: Observer | None = None,
    hashers: tuple[Hasher | None, Hasher | None] = (None, None),
) -> DataReport:
    """Read a training file and its validation file, once each, and report all that is known about them.

    Args:
        path: the training file.
        validation: a file to validate on; it is compared with the training file.
        filters: which rows are trained on; it applies to both files.
        mode: whether a bad line makes the files unusable or is skipped.
        near: also look for near duplicates (about 0.1 ms a row).
        quarantine: receives the bad lines of the training file.
        progress: called from time to time with the number of bytes read since its last call.
        observer: sees the rows of the training file in the same pass, e.g. to tokenise them. In strict mode none after
            the first bad line, because the file is refused then.
        validation_observer: the same for the validation file.
        hashers: receive the bytes of the training file and of the validation file.
    """
    strict = mode is DataMode.STRICT
    training = _read(path, filters, near, None, quarantine, progress, observer, hashers[0], strict=strict)
    trained = _file_report(path, training)
    if validation is None:
        warnings = part_warnings(trained)
        return DataReport(mode=mode, training=trained, warnings=warnings, notes=[*warnings, *_notes(trained, mode)])
    held_out = _read(
        validation, filters, near, training.near, None, progress, validation_observer, hashers[1], strict=strict
    )
    validated = _file_report(validation, held_out)
    leakage = _repeats(held_out.exact.shared_with(training.exact), held_out.near_leaks)
    warnings = part_warnings(trained) + part_warnings(validated, "validation ")
    notes = [*warnings, *_notes(trained, mode)]
    if leaked := leakage.exact_rows + leakage.near_rows:
        share = f"{leaked} of {validated.rows} validation rows"
        notes.append(f"{share} are in the training file too: the validation loss is lower than on new rows.")
    return DataReport(
        mode=mode,
        training=trained,
        validation=validated,
        leakage=leakage,
        warnings=warnings,
        notes=notes,
    )


def refusal(
    report: DataReport, filters: RowFilter = EVERYTHING, training: str = "data.train_file"
) -> DatasetInvalid | None:
    """The error of a report whose files are not usable, with the field that names the file; None when they are.

    Args:
        training: the field that names the report's first file.
    """
    files = {training: report.training, "data.validation_file": report.validation}
    for param, file in files.items():
        if file is None:
            continue
        errors = [LineError(problem.line, problem.reason, problem.code, problem.field) for problem in file.errors]
        codes = Counter(file.errors_by_code)
        found = DatasetReport(file.rows, file.trainable_rows, file.error_count, errors, codes)
        if file.error_count and report.mode is DataMode.STRICT:
            return line_errors(found, param)
        if not file.trainable_rows:
            return nothing_to_train_on(found, filters, param)
    return None


def _read(
    path: Path,
    filters: RowFilter,
    near: bool,
    training: NearIndex | None,
    quarantine: BinaryIO | None,
    progress: Progress | None,
    observer: Observer | None,
    hasher: Hasher | None,
    *,
    strict: bool,
) -> _FileCounts:
    found = _FileCounts(near=NearIndex(path.stat().st_size // TYPICAL_ROW_BYTES) if near else None)
    report, reported = found.report, 0
    with open_data(path, hasher) as file:
        for line, record in read_records(file, report, Quarantine(quarantine) if quarantine else None):
            report.rows += 1
            if filters.admits(record):
                report.trainable_rows += 1
                found.trainable[record.difficulty or DEFAULT_DIFFICULTY] += 1
            found.count(record, line)
            found.compare(record, line, training)
            if observer and not (strict and report.error_count):
                observer(record, line)
            if progress and line % ROWS_PER_PROGRESS == 0:
                reported += _report_progress(progress, file, reported)
        if progress:
            _report_progress(progress, file, reported)
    return found


def _report_progress(progress: Progress, file: BinaryIO, reported: int) -> int:
    # The descriptor's position: the rows come from a buffer of their own, so the file object's is unknown.
    read = os.lseek(file.fileno(), 0, os.SEEK_CUR) - reported
    progress(read)
    return read


def _tally(counts: Counter[str], label: str | None) -> None:
    name = "(none)" if label is None else label[:100]
    counts[name if name in counts or len(counts) < MAX_LABELS else "(other)"] += 1


def _file_report(path: Path, found: _FileCounts) -> FileReport:
    report = found.report
    longest, longest_line = found.longest
    return FileReport(
        bytes=path.stat().st_size,
        rows=report.rows,
        trainable_rows=report.trainable_rows,
        error_count=report.error_count,
        errors_by_code=dict(report.errors_by_code.most_common()),
        errors=[LineProblem(line=e.line, code=e.code, field=e.field, reason=e.reason) for e in report.errors],
        unused_keys=dict(report.unused_keys.most_common()),
        conversions=dict(report.conversions.most_common()),
        turns=dict(found.turns.most_common()),
        lengths=Lengths(
            bounds=list(LENGTHS),
            counts=found.lengths,
            total=found.total,
            mean=round(found.total / max(1, report.rows), 1),
            longest=longest,
            longest_line=-longest_line,
        ),
        ratings=_numbered(found.ratings, "unrated"),
        difficulties=_numbered(found.difficulties, "(none)"),
        trainable_difficulties=dict(sorted(found.trainable.items())),
        categories=dict(found.categories.most_common()),
        lanes=dict(found.lanes.most_common()),
        task_families=dict(found.task_families.most_common()),
        duplicates=_repeats(found.exact.repeats(), found.near_repeats),
    )


def _numbered(counts: Counter[int | None], missing: str) -> dict[str, int]:
    return {missing if key is None else str(key): counts[key] for key in sorted(counts, key=lambda key: key or 0)}


def _repeats(exact: PairReport, near: PairReport) -> Repeats:
    return Repeats(
        exact_rows=exact.rows,
        exact_pairs=[LinePair(**pair.as_dict()) for pair in exact.pairs],
        near_rows=near.rows,
        near_pairs=[LinePair(**pair.as_dict()) for pair in near.pairs],
    )


def part_warnings(file: FileReport, kind: str = "") -> list[str]:
    """What rows say that is left out, and what is read in another form than it is written in.

    Args:
        kind: of the file, if it is not the training file: ``"validation "``.
    """
    found = []
    if file.unused_keys:
        keys = ", ".join(f"{key} ({rows})" for key, rows in itertools.islice(file.unused_keys.items(), SHOWN_KEYS))
        more = f" and {len(file.unused_keys) - SHOWN_KEYS} more" if len(file.unused_keys) > SHOWN_KEYS else ""
        found.append(f"Keys of {kind}rows that are not used: {keys}{more}.")
    found += [f"{rows} {kind}rows {CONVERTED[name]}." for name, rows in file.conversions.items()]
    return found


def _notes(file: FileReport, mode: DataMode) -> list[str]:
    repeats, left_out = file.duplicates, file.rows - file.trainable_rows
    facts = {
        f"{file.error_count} bad lines are skipped.": file.error_count and mode is DataMode.LENIENT,
        f"{left_out} of {file.rows} rows are left out by the filter.": left_out,
        f"{repeats.exact_rows} rows repeat an earlier row exactly: they count twice.": repeats.exact_rows,
        f"{repeats.near_rows} rows are nearly the same as an earlier one.": repeats.near_rows,
        f"Near duplicates were looked for among the first {MAX_NEAR_ROWS} rows only.": file.rows > MAX_NEAR_ROWS,
    }
    return [note for note, holds in facts.items() if holds]
