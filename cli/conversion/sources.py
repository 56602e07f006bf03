"""The rows of a file in any supported form, read as a stream: JSONL, JSON, a table, Parquet, Arrow, a saved folder of
datasets.

The form is recognised by the content. A row has the number of the line where it begins; in forms without lines
(Parquet, Arrow, a JSON array, which is often one line, a list inside a JSON object), rows are numbered from 1.
"""

from __future__ import annotations

import codecs
import csv
import io
import json
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import msgspec

from shared.datasets.forms.advice import TABLE_DELIMITERS
from shared.datasets.forms.files import (
    BYTE_ORDER_MARK,
    HEAD_BYTES,
    HINTS,
    REMEDIES,
    FileForm,
    delimiter_of,
    recognise_head,
)
from shared.datasets.row_validation import explain
from shared.datasets.rows import RowCode
from shared.errors import Code, InvalidRequest

LONGEST_VALUE_BYTES = 64 << 20
"""A line or JSON object that is longer is not decoded."""
LIST_COLUMNS = frozenset(
    [
        "messages",
        "conversations",
        "conversation",
        "turns",
        "dialog",
        "dialogue",
        "chat",
        "contents",
        "history",
        "tools",
        "functions",
        "chosen",
        "rejected",
    ]
)
"""Columns of a table whose cells may be lists in JSON: turns, or tools."""
MAX_WRAPPED_BYTES = 1 << 30
"""Largest JSON object that contains all rows, which is read at once."""
_READ_CHARACTERS = 1 << 20
_MARK = codecs.BOM_UTF8
FORMS_WITH_LINES = frozenset({FileForm.JSON_LINES, FileForm.JSON_DOCUMENTS, FileForm.TABLE})
"""Forms whose rows are numbered by their lines; in other forms rows are counted."""


class SourceRow(NamedTuple):
    """A row of a file.

    Attributes:
        line: line where it begins, or its number in a form without lines; from 1.
        value: the row; None if it could not be read.
        fault: why it could not be read; a code of Mens' reader, or a reason of the conversion's own.
        raw: the line itself, if the file has one object per line.
        had_mark: whether the line began with a byte order mark, e.g. after one file was appended to another.
    """

    line: int
    value: dict[str, Any] | None
    fault: str = ""
    raw: bytes | None = None
    had_mark: bool = False


class SourceFile(NamedTuple):
    """A file to read.

    Attributes:
        form: form of the file.
        split: the part of a folder of datasets, or the key of a JSON object, if there are several.
        delimiter: delimiter of a table; empty to detect it.
    """

    path: Path
    form: FileForm
    split: str = ""
    delimiter: str = ""

    @property
    def has_json_rows(self) -> bool:
        """Return true if the rows are JSON in their original form, not filled up by a table."""
        return self.form in (FileForm.JSON_LINES, FileForm.JSON_ARRAY, FileForm.JSON_DOCUMENTS, FileForm.JSON_WRAPPED)


def open_source(path: Path, split: str = "", *, is_table: bool = False) -> SourceFile:
    """Recognise the form of a file or folder.

    Args:
        is_table: the caller names columns, so a file that is not JSON is a table, as one is whose name says so.

    Raises:
        InvalidRequest: ``REQUEST_INVALID``: a form that cannot be read.
    """
    if path.is_dir():
        return SourceFile(path, FileForm.ARROW, split)
    with path.open("rb") as file:
        head = file.read(HEAD_BYTES)
    form, text = recognise_head(head), head.decode(errors="replace")
    if form in REMEDIES:
        raise InvalidRequest(Code.REQUEST_INVALID, f"{path} {HINTS[form]}.", remedy=REMEDIES[form], param="input")
    is_table = is_table or path.suffix.lower() in TABLE_DELIMITERS
    if is_table and form is FileForm.JSON_LINES and not text.lstrip(f"{BYTE_ORDER_MARK} \r\n\t").startswith("{"):
        form = FileForm.TABLE
    delimiter = (delimiter_of(text) or _likely_delimiter(text)) if form is FileForm.TABLE else ""
    return SourceFile(path, form, split, delimiter)


def read_rows(source: SourceFile) -> Iterator[SourceRow]:
    """Yield the rows of a file, in order."""
    match source.form:
        case FileForm.JSON_LINES:
            with source.path.open("rb") as file:
                yield from _json_lines(file)
        case FileForm.JSON_ARRAY | FileForm.JSON_DOCUMENTS:
            with source.path.open(encoding="utf-8-sig", errors="surrogateescape", newline="") as text:
                yield from _json_values(text, source.path, is_array=source.form is FileForm.JSON_ARRAY)
        case FileForm.JSON_WRAPPED:
            yield from _wrapped_rows(source)
        case FileForm.TABLE:
            with source.path.open(encoding="utf-8-sig", errors="surrogateescape", newline="") as text:
                yield from _table_rows(text, source)
        case _:
            from cli.conversion.arrow_files import arrow_rows  # pyarrow is an extra, and slow to import

            for number, row in enumerate(arrow_rows(source.path, source.split), start=1):
                yield SourceRow(number, row)


def _json_lines(file: BinaryIO) -> Iterator[SourceRow]:
    number = 0
    while line := file.readline(LONGEST_VALUE_BYTES + 1):
        number += 1
        if len(line) > LONGEST_VALUE_BYTES and not line.endswith(b"\n"):
            while (piece := file.readline(LONGEST_VALUE_BYTES)) and not piece.endswith(b"\n"):
                pass
            yield SourceRow(number, None, RowCode.ROW_TOO_LONG)
            continue
        has_mark = line.startswith(_MARK)
        content = line.removeprefix(_MARK).rstrip(b"\r\n")
        if has_mark and not content:
            continue  # a byte order mark alone is not a line
        try:
            value = msgspec.json.decode(content)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            yield SourceRow(number, None, explain(content, error).code)
            continue
        if isinstance(value, dict):
            yield SourceRow(number, value, raw=content, had_mark=has_mark and number > 1)
        else:
            yield SourceRow(number, None, RowCode.ROW_NOT_OBJECT)


def _json_values(file: io.TextIOBase, path: Path, *, is_array: bool) -> Iterator[SourceRow]:
    """Yield the items of a JSON array, or consecutive objects, without holding the whole string in memory.

    Raises:
        InvalidRequest: the rest is not JSON, so that further rows cannot be found.
    """
    decoder = json.JSONDecoder(parse_constant=_no_number)
    text, place, line, number, size, is_all = "", 0, 1, 0, _READ_CHARACTERS, False
    while True:
        start = _skip(text, place)
        line += text.count("\n", place, start)
        place, end = start, -1
        error: Exception | None = None
        if place < len(text):
            try:
                value, end = decoder.raw_decode(text, place)
            except (ValueError, RecursionError) as failure:
                error = failure
        if end >= 0 and (end < len(text) or is_all):  # a number may continue after the end of the part read so far
            is_row = isinstance(value, dict)
            number = number + 1 if is_array else line
            yield SourceRow(number, value if is_row else None, "" if is_row else RowCode.ROW_NOT_OBJECT)
            line += text.count("\n", place, end)
            place, size = end, _READ_CHARACTERS
        elif is_all and place == len(text):
            return
        elif is_all or isinstance(error, RecursionError) or len(text) - place > LONGEST_VALUE_BYTES:
            raise _broken(path, line, error)
        else:
            more = file.read(size)
            text, place, size, is_all = text[place:] + more, 0, 2 * size, not more


def _skip(text: str, place: int) -> int:
    """Return the position of the next value, after white space and the characters that open, divide and close an array."""
    while place < len(text) and text[place] in " \t\r\n,[]":
        place += 1
    return place


def _no_number(_: str) -> None:
    """Return None for ``NaN`` and the infinities, which JSON does not have."""
    return


def _broken(path: Path, line: int, error: object) -> InvalidRequest:
    return InvalidRequest(
        Code.REQUEST_INVALID,
        f"{path} is not valid JSON from line {line} on: {str(error)[:200] if isinstance(error, Exception) else 'it is too long'}.",
        remedy="Correct the file at that line; nothing was written.",
        param="input",
    )


def _wrapped_rows(source: SourceFile) -> Iterator[SourceRow]:
    """Yield the rows in the list of a JSON object."""
    if source.path.stat().st_size > MAX_WRAPPED_BYTES:
        raise InvalidRequest(
            Code.REQUEST_INVALID,
            f"{source.path} is one JSON object of more than {MAX_WRAPPED_BYTES >> 20} MiB.",
            remedy=f"Extract the list: `jq -c '.data[]' {shlex.quote(str(source.path))} > rows.jsonl`.",
            param="input",
        )
    try:
        whole = msgspec.json.decode(source.path.read_bytes().removeprefix(_MARK))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise _broken(source.path, 1, error) from None
    lists = {key: value for key, value in whole.items() if isinstance(value, list) and value}
    lists = {key: value for key, value in lists.items() if any(isinstance(row, dict) for row in value)}
    for number, row in enumerate(lists[choose_split(sorted(lists), source.split, source.path)], start=1):
        is_row = isinstance(row, dict)
        yield SourceRow(number, row if is_row else None, "" if is_row else RowCode.ROW_NOT_OBJECT)


def choose_split(names: list[str], requested: str, path: Path) -> str:
    """Return a part of a source: the requested one, or the only one.

    Raises:
        InvalidRequest: ``REQUEST_INVALID``.
    """
    if requested in names or (not requested and len(names) == 1):
        return requested or names[0]
    what = f"{path} has the parts {', '.join(names[:20]) or '(none)'}"
    problem = f"{what}, and not {requested!r}." if requested else f"{what}."
    raise InvalidRequest(Code.REQUEST_INVALID, problem, remedy="Choose one: --split NAME.", param="split")


def _table_rows(file: io.TextIOBase, source: SourceFile) -> Iterator[SourceRow]:
    csv.field_size_limit(LONGEST_VALUE_BYTES)
    lines = csv.reader(file, delimiter=source.delimiter, strict=True)
    header = [name.strip() for name in next(lines, [])]
    if len(set(header)) < len(header):
        repeated = next(name for name in header if header.count(name) > 1)
        message = f"{source.path} has two columns with the name {repeated!r}."
        raise InvalidRequest(Code.REQUEST_INVALID, message, remedy="Give each column its own name.", param="input")
    while True:
        line = lines.line_num + 1
        try:
            cells = next(lines, None)
        except csv.Error as error:
            raise _broken_table(source.path, line, error) from None
        if cells is None:
            return
        if not cells:
            yield SourceRow(line, None, RowCode.ROW_BLANK)
        elif len(cells) != len(header):
            yield SourceRow(line, None, "columns_differ")
        elif not all(map(_is_utf8, cells)):
            yield SourceRow(line, None, RowCode.ROW_NOT_UTF8)
        else:
            yield SourceRow(line, {name: _cell(name, cell) for name, cell in zip(header, cells, strict=True)})


def _cell(column: str, text: str) -> Any:
    """Return the value of a cell: an empty one is None, and in the columns of turns and tools a list in JSON is parsed.

    In any other column JSON is text: an answer may be meant to be JSON.
    """
    if column.lower() in LIST_COLUMNS and text.lstrip()[:1] == "[":
        try:
            value = msgspec.json.decode(text)
        except (msgspec.DecodeError, RecursionError):
            return text
        return value if all(isinstance(item, dict | list) for item in value) else text
    return text or None


def _is_utf8(text: str) -> bool:
    return text.isascii() or not any("\ud800" <= character <= "\udfff" for character in text)


def _likely_delimiter(text: str) -> str:
    header = text.partition("\n")[0]
    return max("\t,;|", key=header.count)


def _broken_table(path: Path, line: int, error: Exception) -> InvalidRequest:
    return InvalidRequest(
        Code.REQUEST_INVALID,
        f"{path} is not a table from line {line} on: {error}.",
        remedy="Correct the quotes at that line; nothing was written.",
        param="input",
    )
