"""The training row: what one line of a training file may be, and its one internal form.

A line is a JSON object with ``messages`` (or ``turns``), or with ``prompt`` (``instruction``) and ``response``
(``output``, ``completion``); messages win when both are there, and the first name of each list wins over its aliases.
Unknown keys are carried by nobody, refused by nobody, and never reach a tokenizer. A key that is there twice counts
as its last value, as everywhere in Python.

Two tiers: msgspec checks types, ranges and roles in C, and a plain chat needs a short loop more; only a row that fails,
or carries tools, weights or spans, is looked at with care (``shared/row_checks.py``).
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec

Role = Literal["system", "developer", "user", "assistant", "tool"]
Rating = Annotated[int, msgspec.Meta(ge=1, le=5)]
Difficulty = Annotated[int, msgspec.Meta(ge=1, le=10)]
Offset = Annotated[int, msgspec.Meta(ge=0)]
SpanWeight = Annotated[float, msgspec.Meta(ge=0)]


class Message(msgspec.Struct, frozen=True, gc=False):
    """One turn of a chat. ``content`` may be null when the turn calls tools; ``weight`` 0 means: do not learn this."""

    role: Role
    content: str | None = None
    name: str | None = None
    tool_calls: list[dict[str, Any]] | None = None
    tool_call_id: str | None = None
    weight: Literal[0, 1] | None = None


class SyntaxSpan(msgspec.Struct, frozen=True, gc=False):
    """A stretch of the answer, in characters, whose tokens count more or less in the loss."""

    start: Offset
    end: Offset
    weight: SpanWeight
    kind: str | None = None


class Record(msgspec.Struct, frozen=True, gc=False):
    """A line as written: every name and alias it may use."""

    messages: list[Message] | None = None
    turns: list[Message] | None = None
    prompt: str | None = None
    instruction: str | None = None
    response: str | None = None
    output: str | None = None
    completion: str | None = None
    tools: list[dict[str, Any]] | None = None
    rating: Rating | None = None
    category: str | None = None
    difficulty: Difficulty | None = None
    lane: str | None = None
    response_mode: Literal["code_only", "prose_only"] | None = None
    task_family: str | None = None
    syntax_spans: list[SyntaxSpan] | None = None
    interruption_decision: Any = None
    agent_trust_score: float | None = None

    def conversation(self) -> list[Message]:
        """The turns, whichever way they were written; empty when neither way is complete."""
        if turns := self.messages or self.turns:
            return turns
        prompt, answer = self.pair()
        if prompt is None or answer is None:
            return []
        return [Message("user", prompt), Message("assistant", answer)]

    def pair(self) -> tuple[str | None, str | None]:
        """Prompt and response, under the first of their names that has a value."""
        prompt = self.prompt if self.prompt is not None else self.instruction
        if self.response is not None:
            return prompt, self.response
        return prompt, self.output if self.output is not None else self.completion


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
    interruption_decision: Any = None
    agent_trust_score: float | None = None


def as_row(record: Record, number: int) -> TrainingRow:
    """A checked record in its internal form."""
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
        record.interruption_decision,
        record.agent_trust_score,
    )
