"""Assistant spans: positions of the assistant's answers in a rendered chat, each with the token that ends its turn.

A template with ``{% generation %}`` marks shows them itself. Without marks each answer is found by offsets: the chat up
to the turn, with a generation prompt, is a prefix of the chat with the turn, and that is a prefix of the whole chat. If
a template rewrites its history (for example, drops the reasoning of earlier turns), only the last turn is written as
the model will have to write it, and only it is supervised. Thoughts of an answer (``reasoning_content``) are a part of
it, unless they are context only; then its span begins after them. If the answers cannot be found by offsets either, the
row is refused, because it could only be supervised completely or not at all.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from shared.contract.choices import ThoughtsRule
from shared.datasets.rows import Message, TrainingRow
from shared.errors import Code, InvalidRequest
from shared.tokenization.chat_template import Rendered
from shared.tokenization.completeness import THOUGHTS, LeftOut, check_complete
from shared.tokenization.served_form import plain_messages, served_roles, served_tools, trained_turns
from shared.tokenization.tokenizer import Tokenizer

Span = tuple[int, int]
Method = Literal["marks", "offsets"]

_STAND_INS = ("7q7", "zJz")
"""Answers that begin and end differently, to find where a template writes an answer."""


@dataclass(frozen=True, slots=True)
class Chat:
    """A row as rendered text, with the characters to supervise.

    Attributes:
        line: the row's line number in its file.
        text: the text to tokenise.
        spans: (start, end) in characters of each supervised answer.
        method: how they were found.
        last_turn_only: whether only the last answer is supervised because the template rewrites the earlier turns.
        prompt_differs: whether the generation prompt differs from the beginning of the answer's turn in the chat, as
            with a template that adds ``<think>`` only to prompts. Prompts at serving time then differ a little from
            those in training.
        developer_as_system: whether the developer's turn is written as the system's, as vLLM does, because the template
            does not know the role developer.
        left_out: parts of the row that the template does not write, and for which the row is not refused.
    """

    line: int
    text: str
    spans: list[Span]
    method: Method
    last_turn_only: bool = False
    prompt_differs: bool = False
    developer_as_system: bool = False
    left_out: frozenset[LeftOut] = frozenset()


def find_assistant_spans(tokenizer: Tokenizer, row: TrainingRow, *, compare_prompt: bool = True) -> Chat:
    """Render a row with the base's template and find its supervised spans.

    Args:
        tokenizer: the base's.
        row: a valid row.
        compare_prompt: False: if marks show the answers, skip the second rendering that determines ``prompt_differs``,
            which is then False.

    Raises:
        InvalidRequest: ``TEMPLATE_UNSUPPORTED``, with the line number.
    """
    try:
        chat = _WrittenRow.write(tokenizer, row)
        left_out = chat.left_out | check_complete(tokenizer, chat.messages, chat.tools, chat.whole.text)
        chat_with_spans = chat.by_marks(compare_prompt) or chat.by_offsets()
    except InvalidRequest as error:
        raise InvalidRequest(
            error.code,
            f"In line {row.line}: {error.message}",
            remedy=error.remedy,
            param=error.param,
            details={"line": row.line},
        ) from error
    if not (left_out or chat.developer_as_system):
        return chat_with_spans
    return replace(chat_with_spans, developer_as_system=chat.developer_as_system, left_out=left_out)


@dataclass(frozen=True, slots=True)
class _Answer:
    start: int
    end: int
    prompt_differs: bool


@dataclass
class _WrittenRow:
    """A row written with the template, whole and in parts. Turns are named by their index.

    Attributes:
        supervised: the turns to supervise.
        whole: the whole chat.
        left_out: parts that are lost by joining system turns.
        written: rendered parts of the chat, by number of turns and whether a generation prompt follows.
    """

    tokenizer: Tokenizer
    line: int
    messages: list[dict[str, Any]]
    tools: list[Any] | None
    supervised: list[int]
    whole: Rendered
    developer_as_system: bool
    left_out: frozenset[LeftOut]
    written: dict[tuple[int, bool], str] = field(default_factory=dict)

    @classmethod
    def write(cls, tokenizer: Tokenizer, row: TrainingRow) -> _WrittenRow:
        tools = served_tools(row.tools)
        written = trained_turns(row.messages, tokenizer.options.thoughts)
        turns = served_roles(written, tokenizer.template_for(tools).text)
        converted = any(turn.role == "developer" for turn in written) and turns != written
        loses_names = _names(turns) != _names(written)
        left_out: frozenset[LeftOut] = frozenset({"names"} if loses_names else ())
        messages = plain_messages(turns)
        supervised = [i for i, turn in enumerate(turns) if turn.role == "assistant" and turn.weight != 0]
        whole = tokenizer.render(messages, tools)
        return cls(tokenizer, row.line, messages, tools, supervised, whole, converted, left_out)

    @property
    def answers(self) -> list[int]:
        return [index for index, message in enumerate(self.messages) if message["role"] == "assistant"]

    # -- marks

    def by_marks(self, compare_prompt: bool) -> Chat | None:
        """Return the chat with the spans that the template marks; None if it has no marks in this chat."""
        spans = self.whole.assistant_spans
        if not spans:
            return None
        if self.supervised != self.answers or any(map(self._has_context, self.answers)):
            turns = self._turns_of_marks(spans)
            spans = [
                (self._behind_thoughts(turn, start, self.whole.text) if self._has_context(turn) else start, end)
                for (start, end), turn in zip(spans, turns, strict=True)
                if turn in self.supervised
            ]
        prompt_differs = False
        if compare_prompt:
            with suppress(InvalidRequest):
                prompt_differs = not self.whole.text.startswith(self._text(self.answers[-1], prompt=True))
        return Chat(self.line, self.whole.text, spans, "marks", prompt_differs=prompt_differs)

    def _turns_of_marks(self, spans: list[Span]) -> list[int]:
        """Return the turn of every mark: the one with which it first appears when the chat is rendered turn by turn."""
        turns: list[int] = []
        for turn in self.answers:
            marks = self.tokenizer.render(self.messages[: turn + 1], self.tools).assistant_spans or []
            if len(marks) <= len(turns) or marks != spans[: len(marks)]:
                break
            turns += [turn] * (len(marks) - len(turns))
        if len(turns) != len(spans) or turns[-1] != self.answers[-1]:
            raise _unsupported("a turn has weight 0, and the marks do not show which of them are that turn's.")
        return turns

    # -- offsets

    def by_offsets(self) -> Chat:
        """Return the chat with every answer that follows its generation prompt, or with the last one alone."""
        if not self.supervised:
            return Chat(self.line, self.whole.text, [], "offsets")
        answers = [self._find(self.supervised[-1])]
        with suppress(InvalidRequest):
            answers = [*(self._find(turn) for turn in self.supervised[:-1]), *answers]
        return Chat(
            self.line,
            self.whole.text,
            [(answer.start, answer.end) for answer in answers],
            "offsets",
            last_turn_only=len(answers) < len(self.supervised),
            prompt_differs=any(answer.prompt_differs for answer in answers),
        )

    def _find(self, turn: int) -> _Answer:
        text = self._text(turn + 1)
        start, differs = self._start(turn, text)
        if self._has_context(turn):
            start = self._behind_thoughts(turn, start, text)
        # Up to the end of the token that ends the turn, or else of the last visible character.
        token = self.tokenizer.end_token or ""
        position = text.rfind(token, start) if token else -1
        end = position + len(token) if position >= 0 else max(start, len(text.rstrip()))
        if not self.whole.text.startswith(text[:end]):
            raise _unsupported("it rewrites a turn when other turns follow.")
        return _Answer(start, end, differs)

    def _start(self, turn: int, text: str) -> tuple[int, bool]:
        """Return where the answer begins, and whether that differs from the end of its generation prompt."""
        try:
            prompt = self._text(turn, prompt=True)
            if self._follows(prompt, turn, text):
                return len(prompt), False
            history = self._text(turn)
        except InvalidRequest:
            if any(message["role"] not in ("system", "developer") for message in self.messages[:turn]):
                raise
            # The chat begins with the answer, without a prompt to compare it with.
            return self._content_start(turn, text), False
        if text.startswith(prompt) and prompt != history:
            return len(prompt), False
        if text.startswith(prompt):
            # The prompt adds nothing to the history, so the answer may have a header of its own.
            start = self._content_start(turn, text)
            return (start, True) if text[len(prompt) : start].strip() else (len(prompt), False)
        if text.startswith(history):
            return self._content_start(turn, text), True
        raise _unsupported("its prompt is not the beginning of the whole chat.")

    def _follows(self, prompt: str, turn: int, text: str) -> bool:
        """Return whether the turn's content directly follows its prompt, so that nothing else need be rendered."""
        content = self.messages[turn]["content"]
        # A second occurrence may be the content; the first would then be the beginning of a header.
        return bool(
            content
            and text.startswith(prompt)
            and text.startswith(content, len(prompt))
            and text.find(content, len(prompt) + 1) < 0
        )

    def _content_start(self, turn: int, text: str, **more: Any) -> int:
        """Return where the chat begins to depend on the answer, or only on its content if ``more`` has the rest of the
        turn.
        """
        others = [[*self.messages[:turn], {"role": "assistant", "content": word, **more}] for word in _STAND_INS]
        texts = [self.tokenizer.render(other, self.tools).text for other in others]
        return min(_common_prefix_length(text, other) for other in texts)

    def _has_context(self, turn: int) -> bool:
        """Return whether a turn's thoughts are written and not supervised."""
        return self.tokenizer.options.thoughts is ThoughtsRule.CONTEXT and THOUGHTS in self.messages[turn]

    def _behind_thoughts(self, turn: int, start: int, text: str) -> int:
        """Return the position after the thoughts of an answer that begins at ``start``."""
        more = {key: value for key, value in self.messages[turn].items() if key not in ("role", "content")}
        return max(start, self._content_start(turn, text, **more))

    def _text(self, turns: int, prompt: bool = False) -> str:
        """Render the row's first turns."""
        if turns == len(self.messages) and not prompt:
            return self.whole.text
        key = (turns, prompt)
        if key not in self.written:
            self.written[key] = self.tokenizer.render(self.messages[:turns], self.tools, prompt).text
        return self.written[key]


def _common_prefix_length(text: str, other: str) -> int:
    pairs = enumerate(zip(text, other, strict=False))
    return next((index for index, (a, b) in pairs if a != b), min(len(text), len(other)))


def _names(turns: Sequence[Message]) -> list[str]:
    return [turn.name for turn in turns if turn.name]


def _unsupported(reason: str) -> InvalidRequest:
    return InvalidRequest(
        Code.TEMPLATE_UNSUPPORTED,
        f"The base's chat template does not show where the answers are: {reason}",
        remedy="Give the base a chat_template.jinja with {% generation %} marks.",
        param="model.hf_repo",
    )
