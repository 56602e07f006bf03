"""Converts the lines of a file independently. Decisions that depend on other lines are made in ``files.py``."""

from __future__ import annotations

import re
from array import array
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import BinaryIO, NamedTuple

import msgspec

from cli.conversion.outcomes import ConvertedMethod, DropReason, Note, Row, RowChange, RowOptions, RowOutcome
from cli.conversion.rows import convert_row
from corpus.filters.rules import RedactionRules
from openai_migration.conversion.markers import SAMPLED_ROWS
from openai_migration.prompts import to_request
from shared.datasets.conversation_text import written
from shared.datasets.file_parts import FilePart
from shared.datasets.row_validation import FAILURES, check_record, decode, explain
from shared.datasets.rows import RowCode
from shared.hashing import digest_json

LONGEST_LINE_BYTES = 64 << 20
"""OpenAI accepts ten images of 10 MB in a row; a longer line is not decoded."""
BATCH_BYTES = 1 << 18
BYTE_ORDER_MARK = b"\xef\xbb\xbf"
# Rows with one of these are examined; any other that Mens' reader accepts is kept, byte for byte.
_SPECIAL = re.compile(
    rb'"(?:weight|functions?|function_call|refusal|audio|tools|name|input|parallel_tool_calls|developer|response_format)"'
)
_KEPT, _KEPT_ANSWERS = RowOutcome(rows=[{}]), RowOutcome(rows=[{}], notes=[Note.SEVERAL_ANSWERS])
"""Outcomes of most lines; these objects are never modified."""


@dataclass(frozen=True, slots=True)
class LineRules:
    """Rules for each line.

    Attributes:
        redaction: rules applied to each row first.
        wants_prompts: whether the ids of the rows' prompts are needed.
    """

    method: ConvertedMethod
    options: RowOptions
    redaction: RedactionRules | None = None
    wants_prompts: bool = False


@dataclass(slots=True)
class ConvertedPart:
    """The converted lines of a part of a file: a few numbers per line, and the rows of changed lines.

    Attributes:
        outcomes: the distinct outcomes; of their rows, only the number is used.
        kinds: for each line, the index of its outcome.
        ends: for each line, the position of its end in the file.
        digests: digests by which rows are compared.
        rewritten: rows that differ from their line in the file, by line number from 0.
        prompts: id of the prompt of each line's row, if needed.
    """

    part: FilePart
    outcomes: list[RowOutcome] = field(default_factory=list)
    kinds: array[int] = field(default_factory=lambda: array("I"))
    ends: array[int] = field(default_factory=lambda: array("Q"))
    digests: array[int] = field(default_factory=lambda: array("Q"))
    rewritten: dict[int, bytes] = field(default_factory=dict)
    prompts: dict[int, str] = field(default_factory=dict)


def convert_part(part: FilePart, rules: LineRules) -> ConvertedPart:
    """Convert each line of a part."""
    from shared.datasets.fingerprints import fingerprints  # numpy is slow to import

    converted, kinds, texts = ConvertedPart(part), _Kinds(), list[str]()
    size, end = 0, part.begin
    with part.open() as file:
        for number, (line, read, is_plain) in enumerate(_lines(file, is_start=part.first_line == 1)):
            outcome, rows, text = _convert_plain(line, rules) or _convert_special(line, rules)
            end += read
            converted.ends.append(end)
            converted.kinds.append(kinds.of(outcome))
            texts.append(text)
            if not outcome.reason:
                if rows is not None:
                    converted.rewritten[number] = rows
                elif not is_plain:  # another line end, none, or a byte order mark
                    converted.rewritten[number] = line + b"\n"
                if rules.wants_prompts and (prompt := _prompt_id(line)):
                    converted.prompts[number] = prompt
            size += len(text)
            if size >= BATCH_BYTES:
                converted.digests.extend(fingerprints(texts, near=False)[0])
                texts, size = [], 0
    converted.digests.extend(fingerprints(texts, near=False)[0])
    converted.outcomes = kinds.outcomes
    return converted


class _Kinds:
    """The distinct outcomes of lines, by index."""

    def __init__(self) -> None:
        self.outcomes: list[RowOutcome] = []
        self._numbers: dict[int | bytes, int] = {}

    def of(self, outcome: RowOutcome) -> int:
        if outcome is _KEPT or outcome is _KEPT_ANSWERS:
            key: int | bytes = id(outcome)
        else:
            outcome.rows = [{}] * len(outcome.rows)
            key = msgspec.json.encode(outcome)
        number = self._numbers.setdefault(key, len(self.outcomes))
        if number == len(self.outcomes):
            self.outcomes.append(outcome)
        return number


def _convert_plain(line: bytes, rules: LineRules) -> tuple[RowOutcome, None, str] | None:
    """Fast path: keep a plain row that Mens' reader accepts byte for byte; return None for other rows."""
    if (
        rules.method is not ConvertedMethod.SUPERVISED
        or rules.options.strip
        or rules.redaction
        or _SPECIAL.search(line)
    ):
        return None
    try:
        record = decode(line)
        check_record(record, line)
    except FAILURES:
        return None
    messages = record.conversation()
    several = sum([message.role == "assistant" for message in messages]) > 1
    if several and rules.options.split_answers:
        return None
    return _KEPT_ANSWERS if several else _KEPT, None, written(messages)


def _convert_special(line: bytes, rules: LineRules) -> tuple[RowOutcome, bytes | None, str]:
    """Return a line's outcome, its rows unless it stays unchanged, and the string by which they are compared."""
    if len(line) > LONGEST_LINE_BYTES:
        return RowOutcome(reason=DropReason.IMAGE if b'"image_url"' in line else RowCode.ROW_TOO_LONG), None, ""
    try:
        row = msgspec.json.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        return RowOutcome(reason=explain(line, error).code), None, ""
    if not isinstance(row, dict):
        return RowOutcome(reason=RowCode.ROW_NOT_OBJECT), None, ""
    redacted = rules.redaction.apply(row) if rules.redaction else row
    is_redacted = redacted != row
    outcome = convert_row(redacted, rules.method, rules.options)
    if outcome.reason:
        return outcome, None, ""
    if is_redacted:
        outcome.change(RowChange.REDACTED)
    if not outcome.changes:
        return outcome, None, _text(line)  # a row that no rule changed stays as its author wrote it
    lines = [msgspec.json.encode(converted) for converted in outcome.rows]
    return outcome, b"".join(converted + b"\n" for converted in lines), _text(lines[0])


def _text(line: bytes) -> str:
    """Return the string by which rows are compared: the conversation of a chat, otherwise the whole row."""
    try:
        return written(decode(line).conversation()) or line.decode()
    except FAILURES:
        return line.decode()


def _prompt_id(line: bytes) -> str:
    request = to_request(msgspec.json.decode(line))
    return digest_json(request) if request else ""


class _Line(NamedTuple):
    """A line without its line end; if it is far too long, only its beginning.

    Attributes:
        size: bytes in the file.
        is_plain: whether the line in the file is exactly these bytes and a line feed.
    """

    content: bytes
    size: int
    is_plain: bool


def _lines(file: BinaryIO, *, is_start: bool) -> Iterator[_Line]:
    mark = BYTE_ORDER_MARK if is_start else b""
    while line := file.readline(LONGEST_LINE_BYTES + 1):
        piece, size = line, len(line)
        while len(piece) > LONGEST_LINE_BYTES and not piece.endswith(b"\n"):
            piece = file.readline(LONGEST_LINE_BYTES + 1)
            size += len(piece)
        content = line.removeprefix(mark).rstrip(b"\r\n")
        yield _Line(content, size, line.endswith(b"\n") and size == len(content) + 1)
        mark = b""


def sampled_rows(path: Path) -> Iterator[Row]:
    """Yield the first rows of a file."""
    with path.open("rb") as file:
        for line in islice(_lines(file, is_start=True), SAMPLED_ROWS):
            with suppress(msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                if isinstance(row := msgspec.json.decode(line.content), dict):
                    yield row
