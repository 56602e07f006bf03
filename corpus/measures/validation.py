"""Validation of a training file: the data check of every row, and whether code in answers compiles."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO, cast

import msgspec

from corpus.claims import claimed
from corpus.measures.answer_code import checked_codes, codes_of
from corpus.shards import PartialFile, read_lines, rows_with_sources, sources_path
from corpus.verdicts import VerdictCode
from shared.checkers.anti_stub import measure_substance
from shared.checkers.contained import ContainedCheckers
from shared.checkers.languages import require_language
from shared.contract.choices import MethodType
from shared.datasets.dataset_report import DatasetReport, Quarantine
from shared.datasets.forms.recognition import method_of_file
from shared.datasets.preferences.reader import read_preferences
from shared.datasets.reader import read_records
from shared.datasets.row_validation import BYTE_ORDER_MARK
from shared.datasets.rows import Record

VALIDATED_NAME, QUARANTINE_NAME = "validated.jsonl", "quarantine.jsonl"


class ValidationReport(msgspec.Struct):
    """Outcome of a validation.

    Attributes:
        rows: number of valid rows.
        checked: number of answers with code in one of the languages.
        difficulties: number of rows without a difficulty that were given one.
        quarantined: number of invalid rows, by code.
    """

    rows: int = 0
    checked: int = 0
    difficulties: int = 0
    quarantined: dict[str, int] = {}


def validate(path: Path, out: Path, languages: Sequence[str]) -> ValidationReport:
    """Write the valid rows of a file with their provenance, and the invalid rows with code and reason."""
    for language in languages:
        require_language(language)
    report, dropped = ValidationReport(), Counter[str]()
    has_origins = sources_path(path).is_file()
    with ExitStack() as stack:
        stack.enter_context(claimed(out, is_folder=True))
        rows, origins = stack.enter_context(rows_with_sources(out / VALIDATED_NAME, has_sources=has_origins))
        bad = stack.enter_context(PartialFile(out / QUARANTINE_NAME))
        checkers = stack.enter_context(ContainedCheckers())
        quarantine = Quarantine(cast(BinaryIO, bad))
        for number, line, origin, record in valid_rows(path, quarantine, dropped):
            verdict, reason = _judge(record, languages, checkers, report)
            if verdict:
                dropped[verdict] += 1
                entry = {"line": number, "code": verdict, "field": "", "reason": reason}
                bad.write(msgspec.json.encode(entry | {"text": line.rstrip(b"\r\n").decode(errors="replace")}) + b"\n")
                continue
            report.rows += 1
            rows.write(_with_difficulty(line, record, languages, checkers, report))
            if origins and origin:
                origins.write(origin)
    report.quarantined = dict(sorted(dropped.items()))
    return report


def valid_rows(
    path: Path, quarantine: Quarantine | None, dropped: Counter[str]
) -> Iterator[tuple[int, bytes, bytes | None, Record]]:
    """Yield the number, line, provenance and record of each valid row; invalid rows are counted and quarantined."""
    lines, first = read_lines([path]), 1
    if (method := method_of_file(path)) is not MethodType.SUPERVISED:
        yield from _preferences(method, lines, quarantine, dropped)
        return
    while batch := list(islice(lines, 1_000)):
        texts = [line for line, _ in batch]
        if first == 1:
            texts[0] = texts[0].removeprefix(BYTE_ORDER_MARK)
        report = DatasetReport()
        for number, record in read_records(texts, report, quarantine, first_line=first):
            line, origin = texts[number - first], batch[number - first][1]
            yield number, line, origin, record
        dropped.update({str(code): count for code, count in report.errors_by_code.items()})
        first += len(batch)


def _preferences(
    method: MethodType,
    lines: Iterator[tuple[bytes, bytes | None]],
    quarantine: Quarantine | None,
    dropped: Counter[str],
) -> Iterator[tuple[int, bytes, bytes | None, Record]]:
    """Yield the valid rows of a file of pairs or of rated answers; invalid rows are counted and quarantined."""
    report = DatasetReport()
    held: tuple[bytes, bytes | None] = (b"", None)

    def read() -> Iterator[bytes]:
        nonlocal held
        for held in lines:
            yield held[0]

    for number, record in read_preferences(method, read(), report, quarantine):
        yield number, held[0].removeprefix(BYTE_ORDER_MARK) if number == 1 else held[0], held[1], record
    dropped.update({str(code): count for code, count in report.errors_by_code.items()})


def _judge(
    record: Record, languages: Sequence[str], checkers: ContainedCheckers, report: ValidationReport
) -> tuple[str, str]:
    """Return why a row's code is rejected, and the checker's message; both empty if it is accepted."""
    for answer in checked_codes(record, languages, checkers):
        report.checked += 1
        if answer.faults:
            return str(VerdictCode.NOT_COMPILING), str(answer.faults[0])
        if measure_substance(answer.code, answer.check).markers:
            return str(VerdictCode.STUB), "it has a placeholder, such as TODO"
    return "", ""


def _with_difficulty(
    line: bytes, record: Record, languages: Sequence[str], checkers: ContainedCheckers, report: ValidationReport
) -> bytes:
    """Return the line, with a difficulty derived from its code if it does not have one."""
    if record.difficulty is not None:
        return line
    difficulties = [
        unit.difficulty
        for language, code, _ in codes_of(record, languages)
        for unit in checkers.units(language, code).units
    ]
    if not difficulties:
        return line
    report.difficulties += 1
    keys: dict[str, Any] = msgspec.json.decode(line, type=dict[str, msgspec.Raw])
    return msgspec.json.encode(keys | {"difficulty": max(difficulties)}) + b"\n"
