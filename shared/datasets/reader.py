"""The pass over a training file: every row checked, every bad line named, memory bounded whatever the file's size.

Strict is the rule: one bad line refuses the file (``DATASET_LINE_INVALID``). Lenient skips bad lines, counts them and
can write them to a quarantine file. What a row may be stands in ``shared/training_row.py``, what can be wrong with one
in ``shared/row_errors.py``.
"""

from __future__ import annotations

import io
import itertools
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import BinaryIO

import msgspec

from shared.errors import Code, DatasetInvalid
from shared.row_checks import FAILURES, MAX_LINE_BYTES, ROLES, check_record, decode, explain, parse_row
from shared.row_errors import RowCode, RowError
from shared.row_filters import RowFilter, is_trainable
from shared.training_row import Message, Record, TrainingRow, as_row

__all__ = [
    "MAX_LINE_BYTES",
    "ROLES",
    "DatasetReport",
    "LineError",
    "Message",
    "TrainingRow",
    "check_dataset",
    "is_trainable",
    "parse_row",
    "read_records",
    "read_rows",
]

MAX_REPORTED_ERRORS = 20
BYTE_ORDER_MARK = b"\xef\xbb\xbf"
READ_BYTES = MAX_LINE_BYTES + 3
"""The longest line with CR and LF, and one byte more to see that a line is longer."""
BUFFER_BYTES = 1 << 18
EVERYTHING = RowFilter()


@dataclass(frozen=True, slots=True)
class LineError:
    """What is wrong with one line; ``field`` is empty when it is the whole line."""

    line: int
    reason: str
    code: RowCode
    field: str = ""

    def as_dict(self) -> dict[str, str | int]:
        return {"line": self.line, "code": str(self.code), "field": self.field, "reason": self.reason}


@dataclass(slots=True)
class DatasetReport:
    """What a pass over a file found. ``errors`` is capped at ``MAX_REPORTED_ERRORS``; the counts are not.

    Attributes:
        rows: valid rows.
        trainable_rows: valid rows that pass the filter.
    """

    rows: int = 0
    trainable_rows: int = 0
    error_count: int = 0
    errors: list[LineError] = field(default_factory=list)
    errors_by_code: Counter[str] = field(default_factory=Counter)

    def add_error(self, line: int, error: RowError) -> None:
        self.error_count += 1
        self.errors_by_code[str(error.code)] += 1
        if len(self.errors) < MAX_REPORTED_ERRORS:
            self.errors.append(LineError(line, error.reason, error.code, error.field))


class Quarantine:
    """A JSONL file of the lines that were skipped: {line, code, field, reason, text}."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file

    def add(self, line: int, error: RowError, content: bytes) -> None:
        entry = {"line": line, "code": str(error.code), "field": error.field, "reason": error.reason}
        text = content.rstrip(b"\r\n").decode(errors="replace")
        self._file.write(msgspec.json.encode(entry | {"text": text}) + b"\n")


def read_records(
    lines: Iterable[bytes], report: DatasetReport, quarantine: Quarantine | None = None
) -> Iterator[tuple[int, Record]]:
    """Yield (line number, record) of the valid lines; the others are counted in ``report``.

    A plain chat is decided in this loop: a call per row would cost a fifth of the speed. What the loop does not let
    pass is for :func:`check_record` to decide, so both come to the same verdict on every line.
    """
    stream = line_stream(lines)
    for number, line in enumerate(stream, start=1):
        try:
            record = decode(line)
            messages = record.messages
            if messages and record.tools is None and record.syntax_spans is None and len(line) <= MAX_LINE_BYTES:
                for message in messages:
                    content = message.content
                    if not content or content.isspace() or message.weight is not None or message.tool_calls is not None:
                        break
                else:
                    if message.role == "assistant":
                        yield number, record
                        continue
            check_record(record, line)
        except FAILURES as failure:
            error = explain(line, failure)
            report.add_error(number, error)
            if quarantine:
                quarantine.add(number, error, line)
            _skip_rest(line, stream, lines)
        else:
            yield number, record


def read_rows(
    lines: Iterable[bytes], report: DatasetReport | None = None, quarantine: Quarantine | None = None
) -> Iterator[TrainingRow]:
    """Yield the valid rows of a JSONL stream; the others are counted in ``report``, with their line numbers.

    Without a report the first bad line raises.

    Raises:
        DatasetInvalid: ``DATASET_LINE_INVALID``, only when no report is given.
    """
    found = _FirstErrorRaises() if report is None else report
    for number, record in read_records(lines, found, quarantine):
        yield as_row(record, number)


class _FirstErrorRaises(DatasetReport):
    __slots__ = ()

    def add_error(self, line: int, error: RowError) -> None:
        DatasetReport.add_error(self, line, error)
        raise line_errors(self) from error


def line_stream(source: Iterable[bytes]) -> Iterator[bytes]:
    """The lines of a file or a stream, without a byte order mark.

    Of a file, a line over the limit comes in pieces of ``READ_BYTES``, so that memory stays bounded.
    """
    if isinstance(source, io.IOBase):
        file = _buffered(source)
        return itertools.chain(_first_line(file), iter(partial(file.readline, READ_BYTES), b""))
    lines = iter(source)
    first = [line.removeprefix(BYTE_ORDER_MARK) for line in itertools.islice(lines, 1)]
    return itertools.chain(first, lines)


def _first_line(file: io.IOBase) -> list[bytes]:
    start = file.readline(len(BYTE_ORDER_MARK)).removeprefix(BYTE_ORDER_MARK)
    if not start.endswith(b"\n"):
        start += file.readline(READ_BYTES - len(start))
    return [start] if start else []


def _buffered(file: io.IOBase) -> io.IOBase:
    """The same file behind a larger buffer: `open`'s 8 KB cost a fifth of the speed."""
    return _Borrowing(file, BUFFER_BYTES) if isinstance(file, io.BufferedReader) else file


class _Borrowing(io.BufferedReader):
    """A buffer over a file that belongs to somebody else: it is not closed with the buffer."""

    def close(self) -> None:
        pass


def _skip_rest(line: bytes, stream: Iterator[bytes], source: Iterable[bytes]) -> None:
    """Of a line over the limit, read past the pieces that are still to come."""
    if isinstance(source, io.IOBase) and len(line) == READ_BYTES and not line.endswith(b"\n"):
        for piece in stream:
            if piece.endswith(b"\n"):
                break


def check_dataset(
    lines: Iterable[bytes],
    *,
    min_rating: int = 0,
    filters: RowFilter | None = None,
    strict: bool = True,
    quarantine: Quarantine | None = None,
    param: str = "data.train_file",
) -> DatasetReport:
    """Read a whole file and count; memory does not grow with the file.

    Args:
        lines: an open binary file, or lines.
        min_rating: rows rated lower are not counted as trainable.
        filters: instead of ``min_rating``, all that a contract can ask for.
        strict: refuse the file when a line is bad; else skip bad lines.
        quarantine: where skipped lines are written.
        param: the field that names the file, for the error.

    Raises:
        DatasetInvalid: ``DATASET_LINE_INVALID`` with the first bad lines (strict only), or ``DATASET_EMPTY`` when no
            row can be trained on.
    """
    report = DatasetReport()
    wanted = filters or RowFilter(min_rating=min_rating)
    admits, keeps_all = wanted.admits, wanted == EVERYTHING
    rows = trainable = 0
    for _, record in read_records(lines, report, quarantine):
        rows += 1
        trainable += keeps_all or admits(record)
    report.rows, report.trainable_rows = rows, trainable
    if strict and report.error_count:
        raise line_errors(report, param)
    if not trainable:
        raise nothing_to_train_on(report, wanted, param)
    return report


def line_errors(report: DatasetReport, param: str = "data.train_file") -> DatasetInvalid:
    """The refusal of a file with bad lines."""
    first = report.errors[0]
    return DatasetInvalid(
        Code.DATASET_LINE_INVALID,
        f"The {_kind(param)} file has {report.error_count} broken line(s); the first is line {first.line}: {first.reason}.",
        remedy="Mend them and upload the file again; `mens data check FILE` lists them all.",
        param=param,
        details={
            "error_count": report.error_count,
            "errors_by_code": dict(report.errors_by_code),
            "errors": [error.as_dict() for error in report.errors],
        },
    )


def nothing_to_train_on(report: DatasetReport, wanted: RowFilter, param: str = "data.train_file") -> DatasetInvalid:
    """The refusal of a file of which no row is left."""
    return DatasetInvalid(
        Code.DATASET_EMPTY,
        f"None of the {report.rows} rows of the {_kind(param)} file can be trained on.",
        remedy=f"Add rows, or lower data.min_rating (now {wanted.min_rating}) and widen data.context_filter.",
        param=param,
        details={"rows": report.rows, "error_count": report.error_count},
    )


def _kind(param: str) -> str:
    """``training`` of ``data.train_file``, ``replay`` of ``data.replay_file``: a job has up to three files."""
    kind = param.removeprefix("data.").removesuffix("_file")
    return "training" if kind == "train" else kind
