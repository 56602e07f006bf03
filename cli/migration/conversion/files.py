"""Converts a file of OpenAI's rows with bounded memory, and accounts for every line of it."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Executor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import msgspec

from cli.migration.archive.folder import open_private
from cli.migration.conversion.markers import SAMPLED_ROWS, find_markers
from cli.migration.conversion.outcomes import Change, Markers, Method, Note, Outcome, Reason, Row, RowOptions
from cli.migration.conversion.redaction import Redaction
from cli.migration.conversion.rows import convert_row, is_preference
from cli.migration.prompts import to_request
from shared.datasets.conversation_text import written
from shared.datasets.file_parts import FilePart, ahead, split_file
from shared.datasets.row_validation import FAILURES, check_record, decode, explain
from shared.datasets.rows import RowCode
from shared.hashing import digest_json

MAX_LOSS = 0.05
"""Share of a file's lines that may be lost for their images before it is not written."""
LONGEST_LINE_BYTES = 64 << 20
"""OpenAI takes ten images of 10 MB in a row; what is longer is not decoded."""
BATCH_BYTES = 1 << 18
_ENCODE = msgspec.json.Encoder().encode
PARTS_AHEAD = 2
"""Parts that wait, converted: so many of 8 MB each are in memory."""
BYTE_ORDER_MARK = b"\xef\xbb\xbf"
# Rows with one of these are looked at closely; any other that Mens' reader accepts is kept, byte for byte.
_SPECIAL = re.compile(
    rb'"(?:weight|functions?|function_call|refusal|audio|tools|name|input|parallel_tool_calls|developer|response_format)"'
)


_KEPT, _KEPT_ANSWERS = Outcome(rows=[{}]), Outcome(rows=[{}], notes=[Note.SEVERAL_ANSWERS])
"""What becomes of most lines; never changed."""


class FileReport(msgspec.Struct):
    """What became of a file's lines: ``lines`` is ``kept`` + ``changed`` + ``dropped``.

    Attributes:
        changes, drops, notes: lines by rule; a line may have several changes and notes, and has one reason to be dropped.
        examples: of each change, drop and note the first lines.
        schemas: those of rows that an installation would not take, and why.
        separator, stop: what the prompts and completions of a file from before chats end with; removed if ``stripped``.
        refused: why the converted file was not written; empty when it was.
    """

    source: str
    method: Method
    lines: int = 0
    kept: int = 0
    changed: int = 0
    dropped: int = 0
    rows: int = 0
    changes: Counter[str] = msgspec.field(default_factory=Counter)
    drops: Counter[str] = msgspec.field(default_factory=Counter)
    notes: Counter[str] = msgspec.field(default_factory=Counter)
    examples: dict[str, list[int]] = msgspec.field(default_factory=dict)
    schemas: dict[str, str] = msgspec.field(default_factory=dict)
    separator: str = ""
    stop: str = ""
    stripped: bool = False
    output: str = ""
    refused: str = ""

    def count(self, line: int, outcome: Outcome) -> None:
        """Account for one line."""
        self.lines += 1
        self.rows += len(outcome.rows)
        if outcome.reason:
            self.dropped += 1
            self.drops[outcome.reason] += 1
        elif outcome.changes:
            self.changed += 1
        else:
            self.kept += 1
            if not outcome.notes:
                return
        self.changes.update(map(str, outcome.changes))
        self.notes.update(map(str, outcome.notes))
        self.schemas = outcome.schemas | self.schemas if outcome.schemas else self.schemas
        for name in filter(None, [outcome.reason, *outcome.changes, *outcome.notes]):
            if len(known := self.examples.setdefault(str(name), [])) < 5:
                known.append(line)


@dataclass(slots=True)
class FileTask:
    """A file to convert.

    Attributes:
        output: where the rows go; beside it, with the suffix ``.report.jsonl``, what became of each line.
        trained: digests of the rows of the file that this one validates.
        redaction: applied to each row first.
        held_out: ids of prompts that the old model was asked, which must not be trained on.
    """

    source: Path
    output: Path
    method: Method = Method.SUPERVISED
    options: RowOptions = field(default_factory=RowOptions)
    strip: bool = False
    allow_image_loss: bool = False
    redaction: Redaction | None = None
    trained: frozenset[int] | set[int] = frozenset()
    held_out: frozenset[str] = frozenset()


def convert_file(
    task: FileTask, progress: Callable[[int], None] = lambda _: None, executor: Executor | None = None
) -> tuple[FileReport, set[int]]:
    """Convert a file; returns its report and the digests of its rows. Of one that loses too many rows none is written.

    Args:
        progress: is told how many bytes were read so far.
        executor: processes that convert parts of the file at once (``reading_processes``); what comes of it is the same.
    """
    markers = find_markers(_sampled(task.source))
    strips = task.strip and markers != Markers()
    if strips:
        task.options = replace(task.options, strip=markers)
    report = FileReport(str(task.source), task.method, separator=markers.separator, stop=markers.stop, stripped=strips)
    seen: set[int] = set()
    partial_rows = task.output.with_name(f".{task.output.name}.partial")
    with open_private(partial_rows) as rows, open_private(report_of(task.output)) as log:
        for first, read, lines in _parts(task, executor):
            written_rows, accounts = [], []
            for number, line in enumerate(lines, start=first):
                outcome, converted = _compared(line, task, seen)
                report.count(number, outcome)
                written_rows.append(converted)
                accounts.append(_ENCODE(_account(number, outcome)))
            rows.write(b"".join(written_rows))
            log.write(b"\n".join([*accounts, b""]))
            progress(read)
    if report.drops[Reason.IMAGE] > MAX_LOSS * report.lines and not task.allow_image_loss:
        partial_rows.unlink()
        report.refused = f"{report.drops[Reason.IMAGE] / report.lines:.0%} of the lines have images and would be lost"
    else:
        partial_rows.replace(task.output)
        report.output = str(task.output)
    return report, seen


def report_of(output: Path) -> Path:
    """Where each line of a converted file is accounted for."""
    return output.with_suffix(".report.jsonl")


def guess_method(path: Path) -> Method:
    """What a file without a job was for, by its first row."""
    return Method.DPO if is_preference(next(_sampled(path), {})) else Method.SUPERVISED


def _account(number: int, outcome: Outcome) -> dict[str, Any]:
    """The line of a report on one line of a file."""
    if outcome.reason:
        return {"line": number, "outcome": "dropped", "reason": outcome.reason}
    what: dict[str, Any] = {
        "line": number,
        "outcome": "changed" if outcome.changes else "kept",
        "rows": len(outcome.rows),
    }
    if outcome.changes:
        what["changes"] = outcome.changes
    if outcome.schemas:
        what["schemas"] = outcome.schemas
    return {**what, "notes": outcome.notes} if outcome.notes else what


class _Line(NamedTuple):
    """What the rules make of a line by itself.

    Attributes:
        rows: the lines that it becomes.
        digest: what rows are compared by.
        prompt_id: of a row's prompt, where it is needed.
    """

    outcome: Outcome
    rows: bytes
    digest: int
    prompt_id: str


def _parts(task: FileTask, executor: Executor | None) -> Iterator[tuple[int, int, list[_Line]]]:
    """The converted lines of the file, some at a time, with the number of the first and how many bytes are read by then."""
    wants_prompts = bool(task.held_out)
    # What lines are compared with stays here.
    alone = replace(task, trained=frozenset(), held_out=frozenset())
    if executor is None:
        number = 1
        with task.source.open("rb") as file:
            for lines in _batches(_lines(file)):
                yield number, file.tell(), _convert_lines(lines, alone, wants_prompts)
                number += len(lines)
        return
    parts = split_file(task.source)
    for part, future in ahead(
        parts, lambda part: executor.submit(_convert_part, part, alone, wants_prompts), PARTS_AHEAD
    ):
        yield part.first_line, part.end, future.result()


def _batches(lines: Iterator[bytes]) -> Iterator[list[bytes]]:
    """Lines, as many as are quickly compared at once."""
    batch: list[bytes] = []
    size = 0
    for line in lines:
        batch.append(line)
        size += len(line)
        if size >= BATCH_BYTES:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def _convert_part(part: FilePart, task: FileTask, wants_prompts: bool) -> list[_Line]:
    with part.open() as file:
        batches = _batches(_lines(file, is_start=part.first_line == 1))
        return [line for lines in batches for line in _convert_lines(lines, task, wants_prompts)]


def _convert_lines(lines: list[bytes], task: FileTask, wants_prompts: bool) -> list[_Line]:
    from shared.datasets.fingerprints import fingerprints  # numpy is slow to import

    found = [_convert_plain(line, task) or _convert_special(line, task) for line in lines]
    digests, _ = fingerprints([text for _, _, text in found], near=False)
    converted = []
    for line, (outcome, rows, _), digest in zip(lines, found, digests, strict=True):
        if outcome.changes:
            outcome.rows = [{}] * len(outcome.rows)  # only their number counts from here on
        converted.append(_Line(outcome, rows, digest, _prompt_id(line) if wants_prompts and rows else ""))
    return converted


def _compared(line: _Line, task: FileTask, seen: set[int]) -> tuple[Outcome, bytes]:
    """What becomes of a line beside the others."""
    if line.outcome.reason:
        return line.outcome, b""
    if line.digest in task.trained:
        return Outcome(reason=Reason.IN_TRAINING_FILE), b""
    if line.prompt_id and line.prompt_id in task.held_out:
        return Outcome(reason=Reason.ASKED_OF_THE_OLD_MODEL), b""
    outcome = line.outcome
    if line.digest in seen:
        outcome = replace(outcome, notes=[*outcome.notes, Note.REPEATED])
    seen.add(line.digest)
    return outcome, line.rows


def _convert_plain(line: bytes, task: FileTask) -> tuple[Outcome, bytes, str] | None:
    """The fast path: a row without anything special that Mens' reader takes is kept, byte for byte. None: not of this kind."""
    if task.method is not Method.SUPERVISED or task.options.strip or task.redaction or _SPECIAL.search(line):
        return None
    try:
        record = decode(line)
        check_record(record, line)
    except FAILURES:
        return None
    messages = record.conversation()
    several = sum([message.role == "assistant" for message in messages]) > 1
    if several and task.options.split_answers:
        return None
    return _KEPT_ANSWERS if several else _KEPT, line + b"\n", written(messages)


def _convert_special(line: bytes, task: FileTask) -> tuple[Outcome, bytes, str]:
    if len(line) > LONGEST_LINE_BYTES:
        return Outcome(reason=Reason.IMAGE if b'"image_url"' in line else RowCode.ROW_TOO_LONG), b"", ""
    try:
        row = msgspec.json.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        return Outcome(reason=explain(line, error).code), b"", ""
    if not isinstance(row, dict):
        return Outcome(reason=RowCode.ROW_NOT_OBJECT), b"", ""
    redacted = task.redaction.apply(row) if task.redaction else row
    is_redacted = redacted != row
    outcome = convert_row(redacted, task.method, task.options)
    if is_redacted and not outcome.reason:
        outcome.change(Change.REDACTED)
    # What no rule touched stays as its author wrote it.
    lines = [msgspec.json.encode(converted) for converted in outcome.rows] if outcome.changes else [line]
    if outcome.reason:
        return outcome, b"", ""
    return outcome, b"".join(converted + b"\n" for converted in lines), _text(lines[0])


def _text(line: bytes) -> str:
    """What rows are compared by: the conversation of a chat, else the whole row."""
    try:
        return written(decode(line).conversation()) or line.decode()
    except FAILURES:
        return line.decode()


def _prompt_id(line: bytes) -> str:
    request = to_request(msgspec.json.decode(line))
    return digest_json(request) if request else ""


def _lines(file: BinaryIO, *, is_start: bool = True) -> Iterator[bytes]:
    """The lines of a file without their ends; of one that is far too long the beginning."""
    first = is_start
    while line := file.readline(LONGEST_LINE_BYTES + 1):
        piece = line
        while len(piece) > LONGEST_LINE_BYTES and not piece.endswith(b"\n"):
            piece = file.readline(LONGEST_LINE_BYTES + 1)
        yield (line.removeprefix(BYTE_ORDER_MARK) if first else line).rstrip(b"\r\n")
        first = False


def _sampled(path: Path) -> Iterator[Row]:
    with path.open("rb") as file:
        for line in islice(_lines(file), SAMPLED_ROWS):
            with suppress(msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                if isinstance(row := msgspec.json.decode(line), dict):
                    yield row
