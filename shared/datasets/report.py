"""The data report on a training file and its validation file, for the API, the worker and the command line.

One pass over each file with bounded memory: counts, the first errors, and the indexes of ``duplicates.py``.
"""

from __future__ import annotations

import io
import itertools
import os
import sys
from collections import Counter
from collections.abc import Callable, Iterable
from concurrent.futures import Executor, Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from shared.contract.choices import DataMode, MethodType
from shared.counted_nouns import counted
from shared.datasets.dataset_report import DatasetReport, LineError, Quarantine, line_errors, nothing_to_train_on
from shared.datasets.duplicates import MAX_NEAR_ROWS, ExactIndex, NearIndex, PairReport
from shared.datasets.file_counts import LENGTHS, ROWS_AT_ONCE, Observer, RowCounts
from shared.datasets.file_parts import FilePart, ahead, split_file
from shared.datasets.filters import RowFilter
from shared.datasets.forms.advice import Advice, advise
from shared.datasets.plain_chats import PlainBlock, Records, read_blocks
from shared.datasets.preferences.findings import PreferenceFindings, RatedFindings, findings_of, warnings
from shared.datasets.preferences.rated import RatedRecord
from shared.datasets.preferences.reader import read_preferences
from shared.datasets.preferences.rows import PairRecord
from shared.datasets.reader import EVERYTHING, Hasher, open_data, read_records
from shared.datasets.report_types import DataReport, FileReport, FormAdvice, Lengths, LinePair, LineProblem, Repeats
from shared.datasets.rows import Record, RowCode
from shared.datasets.written_rows import Conversion
from shared.errors import DatasetInvalid

__all__ = ["DataReport", "FileReport", "Observer", "RowFilter", "inspect_file", "refusal"]

TYPICAL_ROW_BYTES = 200
SHOWN_KEYS = 20
CONVERTED: dict[Conversion, str] = {
    "text parts": "content in parts, which are joined by line breaks",
    "functions": "functions in OpenAI's older form, which are read as tools and their calls",
    "refusal": "a refusal, which is learnt as the answer",
    "answers not to learn": "answers marked as not to be learnt (e.g. train or loss is false, or masked is true), "
    "which get the weight 0",
    "flat tools": "tools of another program's form (flat, or with input_schema), which are read as functions",
    "tools as text": "tools as a string of JSON, which is parsed",
    "flat calls": "tool calls without `function`, which are read as calls of functions",
    "nulls of a merged schema": "nulls that a typed table put into tools or arguments, which are left out",
    "thoughts": "thoughts under another name, which are read as reasoning_content",
}
CALLS = {
    RowCode.ROW_TOOL_NOT_LISTED: (
        "row calls a tool that is not among the row's own tools",
        "rows call tools that are not among the row's own tools",
    ),
    RowCode.ROW_TOOLS_MISSING: (
        "row calls a tool but has no `tools`, which a request would send",
        "rows call tools but have no `tools`, which a request would send",
    ),
}
"""Warnings about the calls of rows, for one row and for several."""
Progress = Callable[[int], None]
PreferenceObserver = PreferenceFindings | RatedFindings


@dataclass(slots=True)
class _FileFindings:
    """Findings on one file.

    Attributes:
        report: the reader's report.
        counts: counts of the valid rows.
        near: the index of near duplicates, if they are looked for.
        preferences: findings on the pairs or rated answers of a file of preferences.
        method: decides their form.
    """

    report: DatasetReport = field(default_factory=DatasetReport)
    counts: RowCounts = field(default_factory=RowCounts)
    near: NearIndex | None = None
    near_repeats: PairReport = field(default_factory=PairReport)
    near_leaks: PairReport = field(default_factory=PairReport)
    preferences: PreferenceObserver | None = None
    method: MethodType = MethodType.SUPERVISED

    def wants_sketches(self, training: NearIndex | None) -> bool:
        """Return whether near duplicates of further rows can be found."""
        return self.near is not None and not (self.near.full and training is None)

    def add(self, later: RowCounts, training: NearIndex | None) -> None:
        """Add the counts of further rows, and compare the rows with earlier ones and with the rows of the training
        file.
        """
        self.counts.extend(later)
        if self.near is None:
            return
        if training:
            self.near_leaks.extend(training.find(later.sketched))
        if self.wants_sketches(training):
            self.near_repeats.extend(self.near.find_and_add(later.sketched))


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
    executor: Executor | None = None,
    index: ExactIndex | None = None,
    method: MethodType = MethodType.SUPERVISED,
    preferences: PreferenceObserver | None = None,
) -> DataReport:
    """Read a training file and its validation file, once each, and report on them.

    Args:
        path: the training file.
        validation: a file to validate on; it is compared with the training file.
        filters: which rows are trained on; it applies to both files.
        mode: whether a bad line makes the files unusable or is skipped.
        near: whether to look for near duplicates too (about 0.01 ms per row).
        quarantine: receives the bad lines of the training file.
        progress: called from time to time with the number of bytes read since its last call.
        observer: gets the rows of the training file in the same pass, e.g. to tokenise them. In strict mode, none after
            the first bad line, because the file is refused then.
        validation_observer: the same for the validation file.
        hashers: receive the bytes of the training file and of the validation file.
        executor: processes that read parts of a file at once (``reading_processes``), used where neither an observer
            nor a hasher needs the rows in order; the report is the same.
        index: receives the valid rows of the training file.
        method: decides the form of the rows: answers, pairs of them, or rated ones.
        preferences: receives the pairs or rated answers of the training file that pass the filter.
    """
    strict = mode is DataMode.STRICT
    training = _read(
        path,
        filters,
        near,
        None,
        quarantine,
        progress,
        observer,
        hashers[0],
        executor,
        index,
        strict=strict,
        method=method,
        preferences=preferences or findings_of(method),
    )
    trained = _file_report(path, training)
    if validation is None:
        warnings = part_warnings(trained)
        return DataReport(mode=mode, training=trained, warnings=warnings, notes=[*warnings, *_notes(trained, mode)])
    held_out = _read(
        validation,
        filters,
        near,
        training.near,
        None,
        progress,
        validation_observer,
        hashers[1],
        executor,
        strict=strict,
        method=method,
        preferences=findings_of(method),
    )
    validated = _file_report(validation, held_out)
    leakage = _repeats(held_out.counts.exact.shared_with(training.counts.exact), held_out.near_leaks)
    warnings = part_warnings(trained) + part_warnings(validated, "validation ")
    notes = [*warnings, *_notes(trained, mode)]
    if leaked := leakage.exact_rows + leakage.near_rows:
        share = f"{leaked} of {counted(validated.rows, 'validation row')}"
        notes.append(f"{share} are in the training file too: the validation loss is lower than on new rows.")
    return DataReport(
        mode=mode,
        training=trained,
        validation=validated,
        leakage=leakage,
        warnings=warnings,
        notes=notes,
    )


def in_mode(report: DataReport, mode: DataMode) -> DataReport:
    """Return a lenient report on one file as a job of another mode would make it: a strict one skips no bad line."""
    return report.model_copy(update={"mode": mode, "notes": [*report.warnings, *_notes(report.training, mode)]})


def refusal(
    report: DataReport, filters: RowFilter = EVERYTHING, training: str = "data.train_file"
) -> DatasetInvalid | None:
    """Return the error of a report whose files are not usable, with the field that names the file; None when they are.

    Args:
        training: the field that names the report's first file.
    """
    files = {training: report.training, "data.validation_file": report.validation}
    for param, file in files.items():
        if file is None:
            continue
        errors = [LineError(problem.line, problem.reason, problem.code, problem.field) for problem in file.errors]
        codes = Counter(file.errors_by_code)
        dataset = DatasetReport(file.rows, file.trainable_rows, file.error_count, errors, codes)
        dataset.forms.update(file.forms)
        dataset.advice = Advice(file.advice.finding, file.advice.remedy) if file.advice else None
        if file.error_count and report.mode is DataMode.STRICT:
            return line_errors(dataset, param)
        if not file.trainable_rows:
            return nothing_to_train_on(dataset, filters, param)
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
    executor: Executor | None,
    index: ExactIndex | None = None,
    *,
    strict: bool,
    method: MethodType,
    preferences: PreferenceObserver | None,
) -> _FileFindings:
    counts = RowCounts() if index is None else RowCounts(exact=index)
    findings = _FileFindings(
        counts=counts,
        near=NearIndex(path.stat().st_size // TYPICAL_ROW_BYTES) if near else None,
        preferences=preferences,
        method=method,
    )
    if executor and not (observer or hasher or preferences):
        _read_parts(executor, path, filters, training, quarantine, progress, findings)
    else:
        observed = observer and _until_refused(observer, findings.report) if strict else observer
        _read_whole(path, filters, training, quarantine, progress, observed, hasher, findings)
    findings.report.rows, findings.report.trainable_rows = findings.counts.rows, findings.counts.trainable.total()
    return findings


def _until_refused(observer: Observer, report: DatasetReport) -> Observer:
    def observe(record: Record, line: int) -> None:
        if not report.error_count:
            observer(record, line)

    return observe


def _read_whole(
    path: Path,
    filters: RowFilter,
    training: NearIndex | None,
    quarantine: BinaryIO | None,
    progress: Progress | None,
    observer: Observer | None,
    hasher: Hasher | None,
    findings: _FileFindings,
) -> None:
    reported = 0
    counts = RowCounts()
    with open_data(path, hasher) as file:
        bad_lines = Quarantine(quarantine) if quarantine else None
        if findings.preferences is not None:
            observer = _noting(findings.preferences, filters, observer)
        for block in _blocks(file, findings, bad_lines, observer):
            any_left = True
            while any_left:
                any_left = counts.read(block, filters, near=findings.wants_sketches(training), observer=observer)
                if counts.rows >= ROWS_AT_ONCE:
                    findings.add(counts, training)
                    counts = RowCounts()
                if progress:
                    # The descriptor's position: rows come from a buffer, so the file object's position differs.
                    read = os.lseek(file.fileno(), 0, os.SEEK_CUR)
                    progress(read - reported)
                    reported = read
    findings.add(counts, training)


def _blocks(
    file: BinaryIO, findings: _FileFindings, bad_lines: Quarantine | None, observer: Observer | None
) -> Iterable[PlainBlock | Records]:
    if findings.preferences is not None:
        return [read_preferences(findings.method, file, findings.report, bad_lines)]
    # An observer needs records, which a block of plain chats does not have.
    return (
        [read_records(file, findings.report, bad_lines)] if observer else read_blocks(file, findings.report, bad_lines)
    )


def _noting(preferences: PreferenceObserver, filters: RowFilter, observer: Observer | None) -> Observer:
    """Return an observer that adds only the rows that pass the filter, because rows that are left out neither teach nor
    contradict anything.
    """

    def observe(record: Record, line: int) -> None:
        if filters.admits(record):
            if isinstance(record, PairRecord) and isinstance(preferences, PreferenceFindings):
                preferences.add(record, line)
            if isinstance(record, RatedRecord) and isinstance(preferences, RatedFindings):
                preferences.add(record, line)
        if observer:
            observer(record, line)

    return observe


@dataclass(frozen=True, slots=True)
class _PartFindings:
    """Findings on a part of a file, and the quarantine's lines."""

    report: DatasetReport
    counts: RowCounts
    quarantined: bytes


def _read_parts(
    executor: Executor,
    path: Path,
    filters: RowFilter,
    training: NearIndex | None,
    quarantine: BinaryIO | None,
    progress: Progress | None,
    file_findings: _FileFindings,
) -> None:
    """Read a file with several processes; the result is the same."""

    def read(part: FilePart) -> Future[_PartFindings]:
        return executor.submit(
            _read_part, part, filters, near=file_findings.wants_sketches(training), quarantine=quarantine is not None
        )

    for part, future in ahead(split_file(path), read):
        findings = future.result()
        file_findings.report.extend(findings.report)
        file_findings.add(findings.counts, training)
        if quarantine:
            quarantine.write(findings.quarantined)
        if progress:
            progress(part.end - part.begin)


def _read_part(part: FilePart, filters: RowFilter, *, near: bool, quarantine: bool) -> _PartFindings:
    # A key or label that is rare in this part may be frequent in the file, so all are counted.
    report, counts, quarantined = DatasetReport(max_keys=sys.maxsize), RowCounts(), io.BytesIO()
    with part.open() as file:
        for block in read_blocks(file, report, Quarantine(quarantined) if quarantine else None, part.first_line):
            while counts.read(block, filters, near=near):
                pass
    return _PartFindings(report, counts, quarantined.getvalue())


def _file_report(path: Path, findings: _FileFindings) -> FileReport:
    report, counts, preferences = findings.report, findings.counts, findings.preferences
    longest, longest_line = counts.longest
    advice = advise(path, report.error_count, report.forms)
    return FileReport(
        bytes=path.stat().st_size,
        rows=report.rows,
        trainable_rows=report.trainable_rows,
        error_count=report.error_count,
        errors_by_code=dict(report.errors_by_code.most_common()),
        errors=[LineProblem(line=e.line, code=e.code, field=e.field, reason=e.reason) for e in report.errors],
        warnings_by_code=dict(report.warnings_by_code),
        warnings=[LineProblem(line=e.line, code=e.code, field=e.field, reason=e.reason) for e in report.warnings],
        unused_keys=dict(report.unused_keys.most_common()),
        conversions=dict(report.conversions.most_common()),
        forms=dict(report.forms.most_common()),
        advice=FormAdvice(finding=advice.finding, remedy=advice.remedy) if advice else None,
        turns=dict(counts.turns.most_common()),
        lengths=Lengths(
            bounds=list(LENGTHS),
            counts=[counts.lengths[index] for index in range(len(LENGTHS) + 1)],
            total=counts.total,
            mean=round(counts.total / max(1, report.rows), 1),
            longest=longest,
            longest_line=-longest_line,
        ),
        ratings=_numbered(counts.ratings, "unrated"),
        difficulties=_numbered(counts.difficulties, "(none)"),
        trainable_difficulties=dict(sorted(counts.trainable.items())),
        categories=dict(counts.categories.most_common()),
        lanes=dict(counts.lanes.most_common()),
        task_families=dict(counts.task_families.most_common()),
        duplicates=_repeats(counts.exact.repeats(), findings.near_repeats),
        preferences=preferences.report() if isinstance(preferences, PreferenceFindings) else None,
        rated=preferences.report() if isinstance(preferences, RatedFindings) else None,
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
    """Warn about row contents that are left out or read in a different form.

    Args:
        kind: the file's kind, if it is not the training file: ``"validation "``.
    """
    notes = []
    if file.unused_keys:
        keys = ", ".join(f"{key} ({rows})" for key, rows in itertools.islice(file.unused_keys.items(), SHOWN_KEYS))
        more = f" and {len(file.unused_keys) - SHOWN_KEYS} more" if len(file.unused_keys) > SHOWN_KEYS else ""
        notes.append(f"Keys of {kind}rows that are not used: {keys}{more}.")
    notes += [
        f"{counted(rows, f'{kind}row has', f'{kind}rows have')} {CONVERTED[name]}."
        for name, rows in file.conversions.items()
    ]
    for code, (one_row, rows) in CALLS.items():
        if number := file.warnings_by_code.get(code):
            first = next(warning for warning in file.warnings if warning.code is code)
            calls = counted(number, f"{kind}{one_row}", f"{kind}{rows}")
            notes.append(f"{calls} ({code}): in line {first.line}, {first.reason}.")
    notes += warnings(file.preferences, kind) if file.preferences else []
    return notes


def _notes(file: FileReport, mode: DataMode) -> list[str]:
    repeats, left_out = file.duplicates, file.rows - file.trainable_rows
    facts = {
        f"{counted(file.error_count, 'bad line is', 'bad lines are')} skipped.": file.error_count
        and mode is DataMode.LENIENT,
        f"{left_out} of {counted(file.rows, 'row is', 'rows are')} left out by data.min_rating or data.context_filter.": left_out,
        f"Rows that repeat an earlier row exactly, and count twice: {repeats.exact_rows}.": repeats.exact_rows,
        f"Rows that are nearly the same as an earlier one: {repeats.near_rows}.": repeats.near_rows,
        f"Near duplicates were looked for among the first {MAX_NEAR_ROWS} rows only.": file.rows > MAX_NEAR_ROWS,
    }
    return [note for note, holds in facts.items() if holds]
