"""The training row: the fields of one line of a training file, its one internal form, and the error codes of a line.

A line is a JSON object with ``messages`` (or ``turns``), or with ``prompt`` (``instruction``, Alpaca's ``input``,
Dolly's ``context``) and ``response`` (``output``, ``completion``). Contradictory fields are refused
(``row_validation.py``); keys that have no meaning here are counted, and never reach a tokenizer (``written_rows.py``).
If a key occurs twice, the last value wins, as everywhere in Python.

Rows are checked in two steps: msgspec checks types, ranges and roles in C, and a plain chat needs only a short loop
more; a row that fails, or has tools, weights or spans, takes the slow path.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any, Literal

import msgspec


class RowCode(StrEnum):
    """Stable codes of bad rows, in reports, in ``details.errors`` and in quarantine files."""

    ROW_BLANK = "ROW_BLANK"
    ROW_TOO_LONG = "ROW_TOO_LONG"
    ROW_NOT_UTF8 = "ROW_NOT_UTF8"
    ROW_NOT_JSON = "ROW_NOT_JSON"
    ROW_LONE_SURROGATE = "ROW_LONE_SURROGATE"
    ROW_TOO_DEEP = "ROW_TOO_DEEP"
    ROW_NOT_OBJECT = "ROW_NOT_OBJECT"
    ROW_FIELD_MISSING = "ROW_FIELD_MISSING"
    ROW_FIELD_TYPE = "ROW_FIELD_TYPE"
    ROW_NUMBER_RANGE = "ROW_NUMBER_RANGE"
    ROW_ROLE_UNKNOWN = "ROW_ROLE_UNKNOWN"
    ROW_FIELD_CONFLICT = "ROW_FIELD_CONFLICT"
    ROW_PART_UNSUPPORTED = "ROW_PART_UNSUPPORTED"
    ROW_CONTENT_EMPTY = "ROW_CONTENT_EMPTY"
    ROW_ANSWER_EMPTY = "ROW_ANSWER_EMPTY"
    ROW_LAST_TURN_NOT_ASSISTANT = "ROW_LAST_TURN_NOT_ASSISTANT"
    ROW_WEIGHT_INVALID = "ROW_WEIGHT_INVALID"
    ROW_NOTHING_TO_LEARN = "ROW_NOTHING_TO_LEARN"
    ROW_EXCLUDED = "ROW_EXCLUDED"
    ROW_TOOL_INVALID = "ROW_TOOL_INVALID"
    ROW_TOOL_CALL_INVALID = "ROW_TOOL_CALL_INVALID"
    ROW_RATING_RANGE = "ROW_RATING_RANGE"
    ROW_DIFFICULTY_RANGE = "ROW_DIFFICULTY_RANGE"
    ROW_RESPONSE_MODE_UNKNOWN = "ROW_RESPONSE_MODE_UNKNOWN"
    ROW_SPAN_OUT_OF_RANGE = "ROW_SPAN_OUT_OF_RANGE"
    ROW_ANSWER_COUNT = "ROW_ANSWER_COUNT"
    ROW_ANSWER_ROLE = "ROW_ANSWER_ROLE"
    ROW_PROMPT_ENDS_WITH_ANSWER = "ROW_PROMPT_ENDS_WITH_ANSWER"
    ROW_PROMPTS_DIFFER = "ROW_PROMPTS_DIFFER"
    ROW_ANSWERS_EQUAL = "ROW_ANSWERS_EQUAL"
    ROW_METHOD_MISMATCH = "ROW_METHOD_MISMATCH"
    ROW_LABEL_INVALID = "ROW_LABEL_INVALID"
    ROW_LABEL_CONTRADICTS = "ROW_LABEL_CONTRADICTS"
    # Warnings, not faults: OpenAI and TRL train such rows too.
    ROW_TOOL_NOT_LISTED = "ROW_TOOL_NOT_LISTED"
    ROW_TOOLS_MISSING = "ROW_TOOLS_MISSING"


class RowError(ValueError):
    """The error of a line that is not a training row.

    Args:
        code: the stable code.
        reason: what is wrong, for the author of the file.
        field: path of the field, e.g. ``messages[0].role``; empty for the whole line.
        form: name of another program's form that the row has; empty when the form is unknown.
    """

    def __init__(self, code: RowCode, reason: str, field: str = "", form: str = "") -> None:
        super().__init__(reason)
        self.code = code
        self.reason = reason
        self.field = field
        self.form = form


Role = Literal["system", "developer", "user", "assistant", "tool"]
Rating = Annotated[int, msgspec.Meta(ge=1, le=5)]
Difficulty = Annotated[int, msgspec.Meta(ge=1, le=10)]
Offset = Annotated[int, msgspec.Meta(ge=0)]
MAX_SPAN_WEIGHT = 100
"""Largest weight of a span, so that no token dominates its step, and no product overflows."""
END_OF_THOUGHTS = "</think>"
"""End of the thoughts in an answer's content."""
SpanWeight = Annotated[float, msgspec.Meta(ge=0, le=MAX_SPAN_WEIGHT)]


class Message(msgspec.Struct, frozen=True, gc=False, forbid_unknown_fields=True):
    """One turn of a chat. ``content`` may be null when the turn calls tools; a turn of ``weight`` 0 is not supervised.

    ``reasoning_content`` are an answer's thoughts, which a template writes before its content.
    """

    role: Role
    content: str | None = None
    name: str | None = None
    tool_calls: list[dict[str, Any]] | None = None
    tool_call_id: str | None = None
    weight: Literal[0, 1] | None = None
    reasoning_content: str | None = None


class SyntaxSpan(msgspec.Struct, frozen=True, gc=False, forbid_unknown_fields=True):
    """A range of characters of the answer whose tokens count more or less in the loss; its ``kind`` is for readers."""

    start: Offset
    end: Offset
    weight: SpanWeight
    kind: str | None = None


class Labels(msgspec.Struct, frozen=True, gc=False):
    """Metadata of a row, as in every form of row.

    ``id`` and ``origin`` have no effect; a corpus writes them (``corpus``), and in files of other programs they may
    hold anything.
    """

    rating: Rating | None = None
    category: str | None = None
    difficulty: Difficulty | None = None
    lane: str | None = None
    response_mode: Literal["code_only", "prose_only"] | None = None
    task_family: str | None = None
    syntax_spans: list[SyntaxSpan] | None = None
    id: Any = None
    origin: Any = None


class Record(Labels, frozen=True, gc=False, forbid_unknown_fields=True):
    """A line in Mens' own form, with every name and alias that a field may have.

    A line with unknown keys or an older form of a chat is first translated into it (``written_rows.py``).
    """

    messages: list[Message] | None = None
    turns: list[Message] | None = None
    system: str | None = None
    prompt: str | None = None
    instruction: str | None = None
    input: str | None = None
    context: str | None = None
    response: str | None = None
    output: str | None = None
    completion: str | None = None
    tools: list[dict[str, Any]] | None = None

    @property
    def has_messages_only(self) -> bool:
        """Return true if the row has only ``messages`` and used labels, so that no other check applies."""
        others = self.turns or self.system or self.prompt or self.instruction or self.input or self.context
        answers = self.response or self.output or self.completion
        return not (others or answers or self.tools or self.syntax_spans)

    def written_turns(self) -> list[Message]:
        """Return every turn that the row holds."""
        return self.conversation()

    def conversation(self) -> list[Message]:
        """Return the turns, from ``messages`` or from prompt and response; empty if neither is complete."""
        turns = self.messages or self.turns
        if not turns:
            prompt, answer = self.pair()
            if prompt is None or answer is None:
                return []
            turns = [Message("user", prompt), Message("assistant", answer)]
        if self.system and turns[0].role not in ("system", "developer"):
            return [Message("system", self.system), *turns]
        return turns

    def pair(self) -> tuple[str | None, str | None]:
        """Return prompt and response, each from the first of its names that has a value; None for a missing one.

        The subject of an instruction (``input``, ``context``) follows on a separate line, as in LLaMA-Factory.
        """
        if self.prompt and self.response and not (self.input or self.context):
            # The plainest row. It is read several times, and this takes a tenth of the time of the searches below.
            return self.prompt, self.response
        question = _first(self.prompt, self.instruction)
        texts = [text for text in (question, self.input, self.context) if text]
        prompt = "\n".join(texts) if texts else _first(question, self.input, self.context)
        return prompt, _first(self.response, self.output, self.completion)


def _first(*texts: str | None) -> str | None:
    """Return the first string with content; else the first that is not None."""
    there = [text for text in texts if text is not None]
    return next((text for text in there if text), there[0] if there else None)


class TrainingRow(msgspec.Struct, frozen=True, gc=False):
    """One valid row.

    Attributes:
        line: 1-based line number in the file.
        messages: the turns; the last is the assistant's and has content or calls tools.
        syntax_spans: character ranges of the last turn's content with their loss weights.
    """

    line: int
    messages: list[Message]
    rating: int | None = None
    category: str | None = None
    difficulty: int | None = None
    lane: str | None = None
    task_family: str | None = None
    response_mode: str | None = None
    tools: list[dict[str, Any]] | None = None
    syntax_spans: list[SyntaxSpan] | None = None


def as_row(record: Record, number: int) -> TrainingRow:
    """Convert a checked record to its internal form."""
    return TrainingRow(
        number,
        record.conversation(),
        record.rating,
        record.category,
        record.difficulty,
        record.lane,
        record.task_family,
        record.response_mode,
        record.tools,
        record.syntax_spans,
    )
