"""The pass over a training file: it checks every row and reports every bad line, in memory that does not depend on the
file's size.

Strict is the default: one bad line refuses the file (``DATASET_LINE_INVALID``). Lenient skips bad lines, counts them
and can write them to a quarantine file. The row and the error codes of a line are in ``rows.py``.
"""

from __future__ import annotations

import io
import itertools
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, Protocol

import msgspec

from shared.datasets.dataset_report import (
    DatasetReport,
    LineError,
    Quarantine,
    line_errors,
    nothing_to_train_on,
)
from shared.datasets.field_conflicts import unused_fields
from shared.datasets.filters import RowFilter, is_trainable
from shared.datasets.forms.advice import advise
from shared.datasets.forms.tools import refuse_foreign_tools, unlisted_call
from shared.datasets.key_decoder import KeyDecoder
from shared.datasets.row_validation import (
    BYTE_ORDER_MARK,
    FAILURES,
    MAX_LINE_BYTES,
    ROLES,
    check_record,
    decode,
    explain,
    parse_row,
)
from shared.datasets.rows import Message, Record, RowError, TrainingRow, as_row

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

READ_BYTES = MAX_LINE_BYTES + 3
"""Bytes to read for a line: the longest one with CR and LF, and one byte more to detect a longer line."""
BUFFER_BYTES = 1 << 18
COUNT_BYTES = 1 << 20
EVERYTHING = RowFilter()


class Hasher(Protocol):
    """A hash of :mod:`hashlib`."""

    def update(self, data: Any, /) -> None: ...
    def hexdigest(self) -> str: ...


class HashingFile(io.RawIOBase):
    """A file that hashes its bytes while they are read, so that content is verified without a second read."""

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
    """Count the lines of a file, also a last one without a newline; ``hasher`` gets the file's bytes."""
    count, last = 0, b"\n"
    while chunk := file.read(COUNT_BYTES):
        count, last = count + chunk.count(b"\n"), chunk[-1:]
        if hasher:
            hasher.update(chunk)
    return count + (last != b"\n")


def read_records(
    lines: Iterable[bytes],
    report: DatasetReport,
    quarantine: Quarantine | None = None,
    first_line: int = 1,
    keys: KeyDecoder | None = None,
) -> Iterator[tuple[int, Record]]:
    """Yield (line number, record) of the valid lines; the others are counted in ``report``.

    Args:
        first_line: number of the first line, if the lines are a later part of a file.
        keys: decoder that learns the unused keys, if other lines of the file come before or after these.
    """
    stream, keys = line_stream(lines, is_start=first_line == 1), keys or KeyDecoder()
    for number, line in enumerate(stream, start=first_line):
        try:
            record = decode(line)
            # A plain chat is accepted in this loop, because a call per row would cost a fifth of the speed. Other lines
            # are left to `check_record`, so the two never disagree about a line.
            messages = record.messages
            if messages and record.has_messages_only and len(line) <= MAX_LINE_BYTES:
                for message in messages:
                    content = message.content
                    called = message.tool_calls is not None or message.tool_call_id is not None
                    if not content or content.isspace() or called or message.weight is not None:
                        break
                else:
                    if message.role == "assistant":
                        yield number, record
                        continue
            refuse_foreign_tools(record)
            check_record(record, line)
            report.add_unused(unused_fields(record))
            report.add_warning(number, unlisted_call(record))
        except FAILURES as failure:
            if record_in_other_form := _look_closely(number, line, failure, keys, report, quarantine):
                yield number, record_in_other_form
                continue
            # For a line over the limit, skip the remaining pieces.
            if len(line) == READ_BYTES and not line.endswith(b"\n") and isinstance(lines, io.IOBase):
                next((piece for piece in stream if piece.endswith(b"\n")), None)
        else:
            yield number, record


def _look_closely(
    number: int,
    line: bytes,
    failure: Exception,
    keys: KeyDecoder,
    report: DatasetReport,
    quarantine: Quarantine | None,
) -> Record | None:
    """Return the record of a line in another form; if it has a fault, report that and return None."""
    try:
        if not isinstance(failure, msgspec.ValidationError):
            raise failure
        translated = keys.translate(line)
        check_record(translated.record, line)
    except FAILURES as reason:
        error = explain(line, reason)
        report.add_error(number, error)
        if quarantine:
            quarantine.add(number, error, line)
        return None
    report.add_unused([*sorted(translated.unused_keys), *unused_fields(translated.record)])
    report.conversions.update(translated.conversions)
    report.add_warning(number, unlisted_call(translated.record))
    return translated.record


def read_rows(
    lines: Iterable[bytes], report: DatasetReport | None = None, quarantine: Quarantine | None = None
) -> Iterator[TrainingRow]:
    """Yield the valid rows of a JSONL stream; the others are counted in ``report``, with their line numbers.

    Without a report the first bad line raises.

    Raises:
        DatasetInvalid: ``DATASET_LINE_INVALID``, only when no report is given.
    """
    collector = _RaisingReport() if report is None else report
    for number, record in read_records(lines, collector, quarantine):
        yield as_row(record, number)


class _RaisingReport(DatasetReport):
    """A report that raises the first error that is added to it."""

    __slots__ = ()

    def add_error(self, line: int, error: RowError) -> None:
        DatasetReport.add_error(self, line, error)
        raise line_errors(self) from error


def line_stream(source: Iterable[bytes], *, is_start: bool = True) -> Iterator[bytes]:
    """Iterate over the lines of a file or a stream, without a leading byte order mark.

    A file's line over the limit comes in pieces of ``READ_BYTES``, so that memory stays bounded.
    """
    mark = BYTE_ORDER_MARK if is_start else b""
    if not isinstance(source, io.IOBase):
        lines = iter(source)
        first = [line.removeprefix(mark) for line in itertools.islice(lines, 1)]
        return itertools.chain(first, lines)
    # A larger buffer than `open`'s: its 8 KB cost a fifth of the speed.
    file = _BorrowedFile(source, BUFFER_BYTES) if isinstance(source, io.BufferedReader) else source
    start = file.readline(len(mark)).removeprefix(mark)
    if not start.endswith(b"\n"):
        start += file.readline(READ_BYTES - len(start))
    return itertools.chain([start] if start else [], iter(partial(file.readline, READ_BYTES), b""))


class _BorrowedFile(io.BufferedReader):
    """A buffer over the caller's file, which is not closed with the buffer."""

    def close(self) -> None:
        pass


Reader = Callable[[Iterable[bytes], DatasetReport, Quarantine | None], Iterable[tuple[int, Record]]]
"""Reads the valid rows of a file, and reports on its other lines."""


def check_dataset(
    lines: Iterable[bytes],
    *,
    min_rating: int = 0,
    filters: RowFilter | None = None,
    strict: bool = True,
    quarantine: Quarantine | None = None,
    param: str = "data.train_file",
    path: Path | None = None,
    read: Reader = read_records,
) -> DatasetReport:
    """Read a whole file and count; memory does not grow with the file.

    Args:
        lines: an open binary file, or lines.
        min_rating: rows rated lower are not counted as trainable.
        filters: instead of ``min_rating``, a contract's whole filter.
        strict: refuse the file when a line is bad; else skip bad lines.
        quarantine: receives skipped lines.
        param: the field that names the file, for the error.
        path: the file's path, if it has one: its form may explain the bad lines.
        read: reads the rows of the job's training method.

    Raises:
        DatasetInvalid: ``DATASET_LINE_INVALID`` with the first bad lines (strict only), or ``DATASET_EMPTY`` when no
            row can be trained on.
    """
    report = DatasetReport()
    row_filter = filters or RowFilter(min_rating=min_rating)
    admits, keeps_all = row_filter.admits, row_filter == EVERYTHING
    rows = trainable = 0
    for _, record in read(lines, report, quarantine):
        rows += 1
        trainable += keeps_all or admits(record)
    report.rows, report.trainable_rows = rows, trainable
    report.advice = advise(path, report.error_count, report.forms) if path else None
    if strict and report.error_count:
        raise line_errors(report, param)
    if not trainable:
        raise nothing_to_train_on(report, row_filter, param)
    return report
