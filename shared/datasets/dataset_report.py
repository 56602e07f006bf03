"""Result of a pass over a data file: counts, the first bad lines, unused keys; and the errors of a bad file."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import BinaryIO

import msgspec

from shared.counted_nouns import counted
from shared.datasets.filters import RowFilter
from shared.datasets.forms.advice import Advice
from shared.datasets.forms.recognition import RowForm
from shared.datasets.rows import RowCode, RowError
from shared.datasets.written_rows import Conversion
from shared.errors import Code, DatasetInvalid

MAX_REPORTED_ERRORS = 20
MAX_KEYS = 50
MAX_KEY_CHARACTERS = 100


@dataclass(frozen=True, slots=True)
class LineError:
    """The error of one line; ``field`` is empty when it is about the whole line."""

    line: int
    reason: str
    code: RowCode
    field: str = ""

    def as_dict(self) -> dict[str, str | int]:
        return {"line": self.line, "code": str(self.code), "field": self.field, "reason": self.reason}


@dataclass(slots=True)
class DatasetReport:
    """Counts and errors of a pass over a file. ``errors`` is capped at ``MAX_REPORTED_ERRORS``; the counts are not.

    Attributes:
        rows: valid rows.
        trainable_rows: valid rows that pass the filter.
        warnings: the first rows that can be trained on, but are probably mistakes; ``warnings_by_code`` counts all.
        unused_keys: number of rows for each unused key, at most ``max_keys`` keys; keys of a turn as
            ``messages[].key``.
        conversions: number of rows by the kind of translation (``written_rows.py``).
        forms: number of bad lines by the other program's form that they have.
        advice: advice on the whole file, if one sentence explains its bad lines.
    """

    rows: int = 0
    trainable_rows: int = 0
    error_count: int = 0
    errors: list[LineError] = field(default_factory=list)
    errors_by_code: Counter[str] = field(default_factory=Counter)
    warnings: list[LineError] = field(default_factory=list)
    warnings_by_code: Counter[RowCode] = field(default_factory=Counter)
    unused_keys: Counter[str] = field(default_factory=Counter)
    conversions: Counter[Conversion] = field(default_factory=Counter)
    forms: Counter[str] = field(default_factory=Counter)
    advice: Advice | None = None
    max_keys: int = MAX_KEYS

    def add_unused(self, keys: Iterable[str], rows: int = 1) -> None:
        """Count unused keys of rows: their names are untrusted, so their number and length are bounded."""
        for key in keys:
            name = key[:MAX_KEY_CHARACTERS]
            is_listed = name in self.unused_keys or len(self.unused_keys) < self.max_keys
            self.unused_keys[name if is_listed else "(other)"] += rows

    def add_error(self, line: int, error: RowError) -> None:
        self.error_count += 1
        self.errors_by_code[str(error.code)] += 1
        if error.form:
            self.forms[str(error.form)] += 1
        if len(self.errors) < MAX_REPORTED_ERRORS:
            self.errors.append(LineError(line, error.reason, error.code, error.field))

    def add_warning(self, line: int, warning: RowError | None) -> None:
        """Note the warning about a valid row, if it has one."""
        if warning is None:
            return
        self.warnings_by_code[warning.code] += 1
        if len(self.warnings) < MAX_REPORTED_ERRORS:
            self.warnings.append(LineError(line, warning.reason, warning.code, warning.field))

    def extend(self, later: DatasetReport) -> None:
        """Add the findings on later lines of the same file."""
        self.rows += later.rows
        self.trainable_rows += later.trainable_rows
        self.error_count += later.error_count
        self.errors += later.errors[: MAX_REPORTED_ERRORS - len(self.errors)]
        self.errors_by_code.update(later.errors_by_code)
        self.warnings += later.warnings[: MAX_REPORTED_ERRORS - len(self.warnings)]
        self.warnings_by_code.update(later.warnings_by_code)
        self.conversions.update(later.conversions)
        self.forms.update(later.forms)
        for key, rows in later.unused_keys.items():
            self.add_unused([key], rows)


class Quarantine:
    """A JSONL file of the skipped lines: {line, code, field, reason, text}."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file

    def add(self, line: int, error: RowError, content: bytes) -> None:
        entry = {"line": line, "code": str(error.code), "field": error.field, "reason": error.reason}
        text = content.rstrip(b"\r\n").decode(errors="replace")
        self._file.write(msgspec.json.encode(entry | {"text": text}) + b"\n")


def line_errors(report: DatasetReport, param: str = "data.train_file") -> DatasetInvalid:
    """Return the error of a file with bad lines."""
    if other := _of_other_method(report, param):
        return other
    first, advice = report.errors[0], report.advice
    message = f"has {counted(report.error_count, 'bad line')}; the first is line {first.line}: {first.reason}"
    if advice:
        message = f"{advice.finding}. It {message}"
    return DatasetInvalid(
        Code.DATASET_LINE_INVALID,
        f"The {_kind(param)} file {message}.",
        remedy=advice.remedy
        if advice
        else "Fix them and upload the file again; `mens data check FILE --quarantine BAD` writes all of them, with reasons, into BAD.",
        param=param,
        details={
            "error_count": report.error_count,
            "errors_by_code": dict(report.errors_by_code),
            "errors": [error.as_dict() for error in report.errors],
        },
    )


def _of_other_method(report: DatasetReport, param: str) -> DatasetInvalid | None:
    """Return the error for a file whose lines are all rows for another training method; None for other files."""
    mismatches = report.errors_by_code.get(RowCode.ROW_METHOD_MISMATCH) == report.error_count
    if report.rows or not report.errors:
        return None
    # The reader of rated answers names the field that it looked for; that of pairs cannot name one.
    method = "supervised" if not mismatches else "kto" if report.errors[0].field else "dpo"
    if report.forms.get(RowForm.PREFERENCE) == report.error_count:
        rows, right = [f"{noun} of a preferred and a rejected answer" for noun in ("pair", "pairs")], "dpo"
    elif not mismatches or (report.advice and RowForm.KTO not in report.forms):
        return None
    elif report.forms.get(RowForm.KTO) == report.error_count:
        rows, right = ["row that rates one answer", "rows that rate one answer"], "kto"
    else:
        rows = ["row that does not rate its answer", "rows that do not rate their answer"]
        if method == "dpo":
            rows = ["row without a second answer", "rows without a second answer"]
        right = "supervised"
    option, outcome = ("--as-supervised", "takes the preferred answers alone")
    if method == "kto":
        option, outcome = "--as-rated", "makes a good and a bad answer of each pair"
    convert = f"; `mens data convert FILE -o rows.jsonl {option}` {outcome}"
    return DatasetInvalid(
        Code.ROWS_OF_OTHER_METHOD,
        f"The {_kind(param)} file has {counted(report.error_count, *rows)}, and the job's method.type is {method}.",
        remedy=f"Set method.type to {right} (`--method {right}`){convert if right == 'dpo' else ''}.",
        param=param,
        details={
            "error_count": report.error_count,
            "errors_by_code": dict(report.errors_by_code),
            "errors": [error.as_dict() for error in report.errors],
        },
    )


def nothing_to_train_on(report: DatasetReport, filters: RowFilter, param: str = "data.train_file") -> DatasetInvalid:
    """Return the error of a file without any row to train on: it is empty, or every row is bad or left out."""
    message = f"The {_kind(param)} file has no row that can be trained on (valid rows: {report.rows})."
    remedy = f"Add rows, or lower data.min_rating (now {filters.min_rating}) and widen data.context_filter."
    if not report.rows:
        finding = (
            f"has no row that is valid, and {counted(report.error_count, 'bad line')}"
            if report.error_count
            else "is empty"
        )
        message, remedy = f"The {_kind(param)} file {finding}.", "Give a file with one row per line."
        if report.advice:
            message, remedy = f"The {_kind(param)} file {report.advice.finding}. It {finding}.", report.advice.remedy
    return DatasetInvalid(
        Code.DATASET_EMPTY,
        message,
        remedy=remedy,
        param=param,
        details={"rows": report.rows, "error_count": report.error_count},
    )


def _kind(param: str) -> str:
    """Return the kind of a file's field, ``training`` for ``data.train_file``: a job has up to three files."""
    kind = param.removeprefix("data.").removesuffix("_file")
    return "training" if kind == "train" else kind
