"""Recognises the form of a whole file by its first bytes, so that one sentence explains it instead of an error per
line.
"""

from __future__ import annotations

import json
import re
from enum import StrEnum
from pathlib import Path
from typing import Any

from shared.datasets.forms.recognition import TURN_LISTS, has_pair

HEAD_BYTES = 1 << 20
"""Bytes that are read to recognise a form; if a value is longer than this, the first lines decide."""
WRAPPERS = ("data", "rows", "train", "examples", "items", "records", "samples", "instances", "dataset", "results")
"""Keys under which programs put the list of all rows."""
DELIMITERS = ("\t", ",", ";", "|")
BYTE_ORDER_MARK = "\ufeff"
_MAGIC: tuple[tuple[bytes, str], ...] = (
    (b"\x1f\x8b", "gzip"),
    (b"BZh", "bzip2"),
    (b"\xfd7zXZ", "xz"),
    (b"\x28\xb5\x2f\xfd", "zstd"),
    (b"PK\x03\x04", "zip (a spreadsheet, perhaps)"),
)
_WRAPPED = re.compile(r'^\s*\{\s*"(\w+)"\s*:\s*\[\s*\{')
_TABLE_NAMES = frozenset((*TURN_LISTS, "text", "system", "chosen", "rejected"))


class FileForm(StrEnum):
    """The forms that files are written in."""

    JSON_LINES = "JSONL"
    JSON_ARRAY = "JSON array"
    JSON_DOCUMENTS = "pretty-printed JSON"
    JSON_WRAPPED = "JSON object of rows"
    TABLE = "table"
    PARQUET = "Parquet"
    ARROW = "Arrow"
    COMPRESSED = "compressed"
    UTF16 = "UTF-16"


_FORMS = (
    (b"PAR1", FileForm.PARQUET),
    (b"ARROW1", FileForm.ARROW),
    (b"\xff\xff\xff\xff", FileForm.ARROW),  # a stream: its continuation mark
    (b"\xff\xfe", FileForm.UTF16),
    (b"\xfe\xff", FileForm.UTF16),
)
HINTS: dict[FileForm, str] = {
    FileForm.JSON_ARRAY: "is one JSON array, not one object per line",
    FileForm.JSON_DOCUMENTS: "is pretty-printed JSON: objects are spread over several lines",
    FileForm.JSON_WRAPPED: "is a single JSON object, not one object per line",
    FileForm.TABLE: "is a table (CSV or TSV) and not JSON",
    FileForm.PARQUET: "is a Parquet file and not JSON",
    FileForm.ARROW: "is an Arrow file and not JSON",
    FileForm.COMPRESSED: "is compressed",
    FileForm.UTF16: "is encoded in UTF-16, not UTF-8",
}
REMEDIES: dict[FileForm, str] = {
    FileForm.COMPRESSED: "Unpack it first.",
    FileForm.UTF16: "Save it as UTF-8, or run `iconv -f UTF-16 -t UTF-8 FILE > NEW`.",
}
"""Remedies for forms that ``mens data convert`` does not read either."""


def recognise_file(path: Path) -> FileForm:
    """Return the form of a file; JSONL if it is unknown."""
    with path.open("rb") as file:
        return recognise_head(file.read(HEAD_BYTES))


def recognise_head(head: bytes) -> FileForm:
    """Return the form of a file that begins with these bytes."""
    if compression(head):
        return FileForm.COMPRESSED
    if form := next((form for magic, form in _FORMS if head.startswith(magic)), None):
        return form
    text = head.decode(errors="replace").removeprefix(BYTE_ORDER_MARK)
    start = text.lstrip()
    if start.startswith("{"):
        return _form_of_objects(start)
    if start.startswith("["):
        return FileForm.JSON_ARRAY if start[1:].lstrip().startswith("{") else FileForm.JSON_LINES
    return FileForm.TABLE if delimiter_of(text) else FileForm.JSON_LINES


def wrapper_in(path: Path) -> str:
    """Return the key under which a file that is one JSON object has its rows; empty if it has none."""
    with path.open("rb") as file:
        text = file.read(HEAD_BYTES).decode(errors="replace").removeprefix(BYTE_ORDER_MARK).lstrip()
    try:
        return wrapper_of(json.JSONDecoder().raw_decode(text)[0]) or ""
    except (ValueError, RecursionError):
        wrapped = _WRAPPED.match(text)
        return wrapped[1] if wrapped else ""


def compression(head: bytes) -> str:
    """Return the program that a file was compressed with; empty if unknown."""
    return next((name for magic, name in _MAGIC if head.startswith(magic)), "")


def wrapper_of(value: Any) -> str | None:
    """Return the key of a JSON object that holds all rows; None if it has none."""
    if not isinstance(value, dict):
        return None
    for key in WRAPPERS:
        rows = value.get(key)
        if isinstance(rows, list) and rows and isinstance(rows[0], dict):
            return key
    return None


def delimiter_of(text: str) -> str:
    """Return the delimiter of a table's columns; empty when the first line does not name columns of rows."""
    header = text.removeprefix(BYTE_ORDER_MARK).partition("\n")[0].strip("\r")
    for delimiter in DELIMITERS:
        names = {name.strip().strip('"').lower() for name in header.split(delimiter)}
        if len(names) > 1 and (has_pair(names) or not _TABLE_NAMES.isdisjoint(names)):
            return delimiter
    return ""


def _form_of_objects(text: str) -> FileForm:
    try:
        value, end = json.JSONDecoder().raw_decode(text)
    except (ValueError, RecursionError):
        wrapped = _WRAPPED.match(text)
        if wrapped and wrapped[1] in WRAPPERS:
            return FileForm.JSON_WRAPPED
        return FileForm.JSON_DOCUMENTS if _is_spread(text) else FileForm.JSON_LINES
    if wrapper_of(value):
        return FileForm.JSON_WRAPPED
    return FileForm.JSON_DOCUMENTS if "\n" in text[:end] else FileForm.JSON_LINES


def _is_spread(text: str) -> bool:
    """Return whether the first lines are parts of one object, if the first value is broken or longer than the head."""
    first, _, rest = text.partition("\n")
    return first.strip() == "{" and rest.lstrip().startswith('"')
