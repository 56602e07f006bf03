"""The pass over a training file: every row checked, every bad line reported, memory bounded whatever the file's size.

Strict is the default: one bad line refuses the file (``DATASET_LINE_INVALID``). Lenient skips bad lines, counts them and
can write them to a quarantine file. The row and the error codes of a line are in ``rows.py``.
"""

from __future__ import annotations

import io
import itertools
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, Protocol

import msgspec

from shared.datasets.filters import RowFilter, is_trainable
from shared.datasets.row_validation import FAILURES, MAX_LINE_BYTES, ROLES, check_record, decode, explain, parse_row
from shared.datasets.rows import Message, Record, RowCode, RowError, TrainingRow, as_row
from shared.errors import Code, DatasetInvalid

__all__ = [
    "MAX_LINE_BYTES",
    "ROLES",
    "DatasetReport",
    "LineError",
    "Message",
    "TrainingRow",
    "check_dataset",
    "count_lines",
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
COUNT_BYTES = 1 << 20
EVERYTHING = RowFilter()


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
    """A JSONL file of the skipped lines: {line, code, field, reason, text}."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file

    def add(self, line: int, error: RowError, content: bytes) -> None:
        entry = {"line": line, "code": str(error.code), "field": error.field, "reason": error.reason}
        text = content.rstrip(b"\r\n").decode(errors="replace")
        self._file.write(msgspec.json.encode(entry | {"text": text}) + b"\n")


class Hasher(Protocol):
    """A hash of :mod:`hashlib`."""

    def update(self, data: Any, /) -> None: ...
    def hexdigest(self) -> str: ...


class HashingFile(io.RawIOBase):
    """A file that hashes its bytes while they are read, so that content is checked without a second read."""

    def __init__(self, path: Path, hasher: Hasher) -> None:
        self._file = path.open("rb", buffering=0)
        self._hasher = hasher

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any, /) -> int:
        count = self._file.readinto(buffer) or 0
        self._hasher.update(memoryview(buffer)[:count])
        return count

    def fileno(self) -> int:
        return self._file.fileno()

    def close(self) -> None:
        self._file.close()
        super().close()


def open_data(path: Path, hasher: Hasher | None = None) -> BinaryIO:
    """Open a data file; ``hasher`` gets every byte that is read."""
    return io.BufferedReader(HashingFile(path, hasher), BUFFER_BYTES) if hasher else path.open("rb")


def count_lines(file: BinaryIO, hasher: Hasher | None = None) -> int:
    """Newlines of a file, and a last line without one; ``hasher`` gets the file's bytes."""
    count, last = 0, b"\n"
    while chunk := file.read(COUNT_BYTES):
        count, last = count + chunk.count(b"\n"), chunk[-1:]
        if hasher:
            hasher.update(chunk)
    return count + (last != b"\n")


def read_records(
    lines: Iterable[bytes], report: DatasetReport, quarantine: Quarantine | None = None
) -> Iterator[tuple[int, Record]]:
    """Yield (line number, record) of the valid lines; the others are counted in ``report``."""
    stream = line_stream(lines)
    for number, line in enumerate(stream, start=1):
        try:
            record = decode(line)
            # A plain chat is accepted in this loop, because a call per row would cost a fifth of the speed. What it does
            # not accept is left to `check_record`, so the two never disagree about a line.
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
            # Of a line over the limit, the pieces that are still to come are skipped.
            if len(line) == READ_BYTES and not line.endswith(b"\n") and isinstance(lines, io.IOBase):
                next((piece for piece in stream if piece.endswith(b"\n")), None)
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
    found = _RaisingReport() if report is None else report
    for number, record in read_records(lines, found, quarantine):
        yield as_row(record, number)


class _RaisingReport(DatasetReport):
    """A report that raises the first error that is added to it."""

    __slots__ = ()

    def add_error(self, line: int, error: RowError) -> None:
        DatasetReport.add_error(self, line, error)
        raise line_errors(self) from error


def line_stream(source: Iterable[bytes]) -> Iterator[bytes]:
    """The lines of a file or a stream, without a byte order mark.

    Of a file, a line over the limit comes in pieces of ``READ_BYTES``, so that memory stays bounded.
    """
    if not isinstance(source, io.IOBase):
        lines = iter(source)
        first = [line.removeprefix(BYTE_ORDER_MARK) for line in itertools.islice(lines, 1)]
        return itertools.chain(first, lines)
    # A larger buffer than `open`'s: its 8 KB cost a fifth of the speed.
    file = _BorrowedFile(source, BUFFER_BYTES) if isinstance(source, io.BufferedReader) else source
    start = file.readline(len(BYTE_ORDER_MARK)).removeprefix(BYTE_ORDER_MARK)
    if not start.endswith(b"\n"):
        start += file.readline(READ_BYTES - len(start))
    return itertools.chain([start] if start else [], iter(partial(file.readline, READ_BYTES), b""))


class _BorrowedFile(io.BufferedReader):
    """A buffer over the caller's file, which is not closed with the buffer."""

    def close(self) -> None:
        pass


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
        filters: instead of ``min_rating``, a contract's whole filter.
        strict: refuse the file when a line is bad; else skip bad lines.
        quarantine: where skipped lines are written.
        param: the field that names the file, for the error.

    Raises:
        DatasetInvalid: ``DATASET_LINE_INVALID`` with the first bad lines (strict only), or ``DATASET_EMPTY`` when no
            row can be trained on.
    """
    report = DatasetReport()
    row_filter = filters or RowFilter(min_rating=min_rating)
    admits, keeps_all = row_filter.admits, row_filter == EVERYTHING
    rows = trainable = 0
    for _, record in read_records(lines, report, quarantine):
        rows += 1
        trainable += keeps_all or admits(record)
    report.rows, report.trainable_rows = rows, trainable
    if strict and report.error_count:
        raise line_errors(report, param)
    if not trainable:
        raise nothing_to_train_on(report, row_filter, param)
    return report


def line_errors(report: DatasetReport, param: str = "data.train_file") -> DatasetInvalid:
    """The error of a file with bad lines."""
    first = report.errors[0]
    return DatasetInvalid(
        Code.DATASET_LINE_INVALID,
        f"The {_kind(param)} file has {report.error_count} bad line(s); the first is line {first.line}: {first.reason}.",
        remedy="Fix them and upload the file again; `mens data check FILE --quarantine BAD` writes all of them, with reasons, into BAD.",
        param=param,
        details={
            "error_count": report.error_count,
            "errors_by_code": dict(report.errors_by_code),
            "errors": [error.as_dict() for error in report.errors],
        },
    )


def nothing_to_train_on(report: DatasetReport, filters: RowFilter, param: str = "data.train_file") -> DatasetInvalid:
    """The error of a file of which no row is left to train on."""
    return DatasetInvalid(
        Code.DATASET_EMPTY,
        f"None of the {report.rows} rows of the {_kind(param)} file can be trained on.",
        remedy=f"Add rows, or lower data.min_rating (now {filters.min_rating}) and widen data.context_filter.",
        param=param,
        details={"rows": report.rows, "error_count": report.error_count},
    )


def _kind(param: str) -> str:
    """``training`` of ``data.train_file``, ``replay`` of ``data.replay_file``: a job has up to three files."""
    kind = param.removeprefix("data.").removesuffix("_file")
    return "training" if kind == "train" else kind
