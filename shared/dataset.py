"""Training rows: what a line of a training file may be, and what is wrong with the lines that are not.

A line is a JSON object with ``messages`` (alias ``turns``), or with ``prompt`` (``instruction``) and ``response``
(``output``, ``completion``). Unknown keys are carried by nobody and refused by nobody. The file is read as a stream, so
memory does not grow with it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Annotated, Any

import msgspec

from shared.errors import Code, DatasetInvalid

MAX_LINE_BYTES = 1_000_000
MAX_REPORTED_ERRORS = 20
ROLES = ("system", "developer", "user", "assistant", "tool")


class Message(msgspec.Struct, frozen=True):
    """One turn of a chat. ``content`` may be null when the turn only calls tools."""

    role: str
    content: str | None = None
    name: str | None = None
    tool_calls: list[Any] | None = None
    tool_call_id: str | None = None
    weight: float | None = None


class _Line(msgspec.Struct, frozen=True):
    messages: list[Message] | None = None
    turns: list[Message] | None = None
    prompt: str | None = None
    instruction: str | None = None
    response: str | None = None
    output: str | None = None
    completion: str | None = None
    rating: Annotated[int, msgspec.Meta(ge=1, le=5)] | None = None
    category: str | None = None
    difficulty: Annotated[int, msgspec.Meta(ge=1, le=10)] | None = None
    lane: str | None = None
    task_family: str | None = None


@dataclass(frozen=True, slots=True)
class TrainingRow:
    """One valid row, in its one internal form.

    Attributes:
        line: 1-based line number in the file.
        messages: the turns, of which at least one is the assistant's and has content.
    """

    line: int
    messages: list[Message]
    rating: int | None = None
    category: str | None = None
    difficulty: int | None = None


@dataclass(frozen=True, slots=True)
class LineError:
    """What is wrong with one line."""

    line: int
    reason: str


@dataclass(slots=True)
class DatasetReport:
    """What a pass over a file found. ``errors`` is capped at ``MAX_REPORTED_ERRORS``; ``error_count`` is not."""

    rows: int = 0
    trainable_rows: int = 0
    error_count: int = 0
    errors: list[LineError] = field(default_factory=list)

    def add_error(self, line: int, reason: str) -> None:
        self.error_count += 1
        if len(self.errors) < MAX_REPORTED_ERRORS:
            self.errors.append(LineError(line, reason))


_decoder = msgspec.json.Decoder(_Line)


def read_rows(lines: Iterable[bytes], report: DatasetReport | None = None) -> Iterator[TrainingRow]:
    """Yield the valid rows of a JSONL stream; the others are counted in ``report``, with their line numbers.

    Without a report the first bad line raises.

    Raises:
        DatasetInvalid: ``DATASET_LINE_INVALID``, only when no report is given.
    """
    for number, line in enumerate(lines, start=1):
        try:
            yield parse_row(line, number)
        except ValueError as error:
            if report is None:
                raise _invalid([LineError(number, str(error))], 1) from error
            report.add_error(number, str(error))


def parse_row(line: bytes, number: int) -> TrainingRow:
    """Decode and check one line.

    Raises:
        ValueError: the reason, in words for the person who wrote the file.
    """
    if len(line) > MAX_LINE_BYTES:
        raise ValueError(f"the line has {len(line)} bytes; the limit is {MAX_LINE_BYTES}")
    if not line.strip():
        raise ValueError("the line is blank")
    try:
        decoded = _decoder.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(f"not a training row: {error}") from None
    messages = _messages(decoded)
    _check_turns(messages)
    return TrainingRow(number, messages, decoded.rating, decoded.category, decoded.difficulty)


def _messages(line: _Line) -> list[Message]:
    if (turns := line.messages or line.turns) is not None:
        return turns
    prompt = line.prompt if line.prompt is not None else line.instruction
    answers = (line.response, line.output, line.completion)
    answer = next((text for text in answers if text is not None), None)
    if prompt is None or answer is None:
        raise ValueError("neither `messages` nor `prompt` with `response` is there")
    return [Message("user", prompt), Message("assistant", answer)]


def _check_turns(messages: list[Message]) -> None:
    for index, message in enumerate(messages):
        if message.role not in ROLES:
            raise ValueError(f"messages[{index}].role is {message.role!r}; it must be one of {', '.join(ROLES)}")
        if not message.content and not message.tool_calls and message.role != "assistant":
            raise ValueError(f"messages[{index}].content is empty")
    if not messages or messages[-1].role != "assistant":
        raise ValueError("the last turn is not the assistant's, so there is nothing to learn")
    if not (messages[-1].content or "").strip() and not messages[-1].tool_calls:
        raise ValueError("the assistant's last turn is empty, so there is nothing to learn")


def is_trainable(row: TrainingRow, min_rating: int) -> bool:
    """Whether the row passes the rating filter: unrated rows do, 0 keeps all."""
    return row.rating is None or row.rating >= min_rating


def check_dataset(lines: Iterable[bytes], *, min_rating: int = 0, param: str = "data.train_file") -> DatasetReport:
    """Read a whole file and count; memory does not grow with the file.

    Raises:
        DatasetInvalid: ``DATASET_LINE_INVALID`` with the first bad lines, or ``DATASET_EMPTY`` when no row can be
            trained on.
    """
    report = DatasetReport()
    for row in read_rows(lines, report):
        report.rows += 1
        report.trainable_rows += is_trainable(row, min_rating)
    if report.error_count:
        raise _invalid(report.errors, report.error_count, param)
    if not report.trainable_rows:
        raise DatasetInvalid(
            Code.DATASET_EMPTY,
            f"None of the file's {report.rows} rows can be trained on.",
            remedy=f"Add rows, or lower data.min_rating (now {min_rating}).",
            param=param,
        )
    return report


def _invalid(errors: list[LineError], count: int, param: str = "data.train_file") -> DatasetInvalid:
    first = errors[0]
    return DatasetInvalid(
        Code.DATASET_LINE_INVALID,
        f"{count} of the file's lines are broken; the first is line {first.line}: {first.reason}.",
        remedy="Mend the lines named in details.errors and upload the file again.",
        param=param,
        details={"error_count": count, "errors": [{"line": e.line, "reason": e.reason} for e in errors]},
    )
