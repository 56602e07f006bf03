"""Converts a file of OpenAI's rows with bounded memory, and accounts for every line of it."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

from cli.migration.archive.folder import open_private
from cli.migration.conversion.markers import SAMPLED_ROWS, find_markers
from cli.migration.conversion.outcomes import Change, Markers, Method, Note, Outcome, Reason, Row, RowOptions
from cli.migration.conversion.redaction import Redaction
from cli.migration.conversion.rows import convert_row, is_preference
from cli.migration.prompts import to_request
from shared.datasets.conversation_text import written
from shared.datasets.row_validation import FAILURES, check_record, decode, explain
from shared.datasets.rows import RowCode
from shared.hashing import digest_json

MAX_LOSS = 0.05
"""Share of a file's lines that may be lost for their images before it is not written."""
LONGEST_LINE_BYTES = 64 << 20
"""OpenAI takes ten images of 10 MB in a row; what is longer is not decoded."""
BATCH_BYTES = 1 << 18
BUFFER_BYTES = 1 << 18
BYTE_ORDER_MARK = b"\xef\xbb\xbf"
# Rows with one of these are looked at closely; any other that Mens' reader accepts is kept, byte for byte.
_SPECIAL = re.compile(
    rb'"(?:weight|functions?|function_call|refusal|audio|tools|name|input|parallel_tool_calls|developer)"'
)


class FileReport(msgspec.Struct):
    """What became of a file's lines: ``lines`` is ``kept`` + ``changed`` + ``dropped``.

    Attributes:
        changes, drops, notes: lines by rule; a line may have several changes and notes, and has one reason to be dropped.
        examples: of each change, drop and note the first lines.
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
        self.changes.update(map(str, outcome.changes))
        self.notes.update(map(str, outcome.notes))
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


def convert_file(task: FileTask, progress: Callable[[int], None] = lambda _: None) -> tuple[FileReport, set[int]]:
    """Convert a file; returns its report and the digests of its rows. Of one that loses too many rows none is written."""
    markers = find_markers(_sampled(task.source))
    strips = task.strip and markers != Markers()
    if strips:
        task.options = replace(task.options, strip=markers)
    report = FileReport(str(task.source), task.method, separator=markers.separator, stop=markers.stop, stripped=strips)
    seen: set[int] = set()
    partial_rows = task.output.with_name(f".{task.output.name}.partial")
    with (
        task.source.open("rb", BUFFER_BYTES) as file,
        open_private(partial_rows) as rows,
        open_private(report_of(task.output)) as log,
    ):
        numbered = enumerate(_lines(file), start=1)
        while batch := _batch(numbered):
            for (number, line), found in zip(batch, _converted(task, [line for _, line in batch]), strict=True):
                outcome, converted = _compared(line, *found, task, seen)
                report.count(number, outcome)
                rows.write(converted)
                log.write(msgspec.json.encode(_account(number, outcome)) + b"\n")
            progress(file.tell())
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
    return {**what, "notes": outcome.notes} if outcome.notes else what


def _batch(lines: Iterator[tuple[int, bytes]]) -> list[tuple[int, bytes]]:
    """The next lines, as many as are quickly compared at once."""
    batch: list[tuple[int, bytes]] = []
    size = 0
    while size < BATCH_BYTES and (item := next(lines, None)):
        batch.append(item)
        size += len(item[1])
    return batch


def _converted(task: FileTask, lines: list[bytes]) -> Iterator[tuple[Outcome, bytes, int]]:
    """What the rules make of each line: the outcome, the lines that it becomes, and the digest that rows are compared by."""
    from shared.datasets.fingerprints import fingerprints  # numpy is slow to import

    found = [_convert_plain(line, task) or _convert_special(line, task) for line in lines]
    digests, _ = fingerprints([text for _, _, text in found], near=False)
    for (outcome, converted, _), digest in zip(found, digests, strict=True):
        yield outcome, converted, digest


def _compared(
    line: bytes, outcome: Outcome, converted: bytes, digest: int, task: FileTask, seen: set[int]
) -> tuple[Outcome, bytes]:
    """What becomes of a line beside the others."""
    if outcome.reason:
        return outcome, b""
    if digest in task.trained:
        return Outcome(reason=Reason.IN_TRAINING_FILE), b""
    if task.held_out and _prompt_id(line) in task.held_out:
        return Outcome(reason=Reason.ASKED_OF_THE_OLD_MODEL), b""
    if digest in seen:
        outcome.notes.append(Note.REPEATED)
    seen.add(digest)
    return outcome, converted


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
    several = sum(message.role == "assistant" for message in messages) > 1
    if several and task.options.split_answers:
        return None
    return (
        Outcome(rows=[{}], notes=[Note.SEVERAL_ANSWERS] if several else []),
        line + b"\n",
        written(messages),
    )


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


def _lines(file: BinaryIO) -> Iterator[bytes]:
    """The lines of a file without their ends; of one that is far too long the beginning."""
    first = True
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
