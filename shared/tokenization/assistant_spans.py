"""Where in the text of a chat the assistant's answers are, each with the token that ends its turn.

A template with ``{% generation %}`` marks says it itself. For one without marks each answer is found by offsets: the
chat up to the turn, with a generation prompt, is how the chat with the turn begins; and that is how the whole chat
begins. Where a template rewrites its history (drops the reasoning of earlier turns, say) only the last turn stands as
the model will have to write it, and only it is learnt. Where not even that holds, the row is refused: never is a row
learnt whole, or not at all, because nobody knew where its answers are.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Literal

import msgspec

from shared.chat_template import Rendered
from shared.dataset import Message, TrainingRow
from shared.errors import Code, InvalidRequest
from shared.tokenizer import Tokenizer

Span = tuple[int, int]
Method = Literal["marks", "offsets"]

_STAND_INS = ("7q7", "zJz")
"""Answers that begin and end unlike each other, to see where a template puts an answer."""


@dataclass(frozen=True, slots=True)
class Chat:
    """A row as text, and which characters of it are learnt.

    Attributes:
        line: the row's line number in its file.
        text: what is tokenised.
        spans: (start, end) in characters of each answer to learn.
        method: how they were found.
        last_turn_only: earlier turns should be learnt too, but the template rewrites them.
        prompt_differs: the generation prompt is not how the answer's turn begins in the chat (a template that adds
            ``<think>`` to prompts only, say): the tuned model is asked a little otherwise than it was taught.
    """

    line: int
    text: str
    spans: list[Span]
    method: Method
    last_turn_only: bool = False
    prompt_differs: bool = False


def find_answers(tokenizer: Tokenizer, row: TrainingRow, *, compare_prompt: bool = True) -> Chat:
    """Write a row with the base's template and find what is learnt.

    Args:
        tokenizer: the base's.
        row: a valid row.
        compare_prompt: False: where marks show the answers, do not write the chat a second time only to know
            ``prompt_differs``, which is then False.

    Raises:
        InvalidRequest: ``TEMPLATE_UNSUPPORTED``, with the line number.
    """
    try:
        chat = _RowInTemplate.write(tokenizer, row)
        chat.refuse_dropped_tools()
        return chat.by_marks(compare_prompt) or chat.by_offsets()
    except InvalidRequest as error:
        raise InvalidRequest(
            error.code,
            f"In line {row.line}: {error.message}",
            remedy=error.remedy,
            param=error.param,
            details={"line": row.line},
        ) from error


def plain_messages(messages: Iterable[Message]) -> list[dict[str, Any]]:
    """Turns as the serving tier gives them to a template: content is text, tool arguments are objects."""
    return [_plain(message) for message in messages]


def _plain(message: Message) -> dict[str, Any]:
    if message.tool_calls is None and message.name is None and message.tool_call_id is None:
        return {"role": message.role, "content": message.content or ""}
    fields: dict[str, Any] = msgspec.to_builtins(message)
    given = {key: value for key, value in fields.items() if key != "weight" and value is not None and value != []}
    if calls := given.get("tool_calls"):
        given["tool_calls"] = [_with_object_arguments(call) for call in calls]
    return {"role": message.role, "content": "", **given}


def _with_object_arguments(call: Any) -> Any:
    function = call.get("function") if isinstance(call, dict) else None
    arguments = function.get("arguments") if isinstance(function, dict) else None
    if isinstance(arguments, str):
        with suppress(ValueError):
            arguments = json.loads(arguments or "{}")
    if not isinstance(function, dict) or not isinstance(arguments, dict):
        return call
    function = _ordered(function | {"arguments": arguments}, "arguments", "name")
    return _ordered(call | {"function": function}, "id", "function", "type")


def served_tools(tools: list[Any] | None) -> list[Any] | None:
    """Tool definitions as the serving tier gives them to a template: its keys, its order, null for what is not said."""
    return [_served_tool(tool) for tool in tools] if tools else None


def _served_tool(tool: Any) -> Any:
    function = tool.get("function") if isinstance(tool, dict) else None
    if not isinstance(function, dict) or "name" not in function:
        return tool  # no client could send it
    strict = {"strict": function["strict"]} if function.get("strict") is not None else {}
    described = {key: function.get(key) for key in ("name", "description", "parameters")}
    return {"type": "function", "function": described | strict}


def _ordered(given: dict[str, Any], *first: str) -> dict[str, Any]:
    """The same keys, some of them first: a template may write a dict as it is, and order is part of what it writes."""
    return {key: given[key] for key in first if key in given} | given


def _function_name(call: Any) -> str:
    function = call.get("function") if isinstance(call, dict) else None
    return str(function.get("name", "")) if isinstance(function, dict) else ""


@dataclass(frozen=True, slots=True)
class _Answer:
    start: int
    end: int
    prompt_differs: bool


@dataclass
class _RowInTemplate:
    """A row on its way through the template. Turns are named by their index."""

    tokenizer: Tokenizer
    line: int
    messages: list[dict[str, Any]]
    tools: list[Any] | None
    wanted: list[int]
    whole: Rendered
    written: dict[tuple[int, bool], str] = field(default_factory=dict)

    @classmethod
    def write(cls, tokenizer: Tokenizer, row: TrainingRow) -> _RowInTemplate:
        messages, tools = plain_messages(row.messages), served_tools(row.tools)
        wanted = [i for i, message in enumerate(row.messages) if message.role == "assistant" and message.weight != 0]
        return cls(tokenizer, row.line, messages, tools, wanted, tokenizer.render(messages, tools))

    @property
    def answers(self) -> list[int]:
        return [index for index, message in enumerate(self.messages) if message["role"] == "assistant"]

    def refuse_dropped_tools(self) -> None:
        """Many templates know no tools and write nothing for a call or its result: an empty answer would be learnt."""
        for message in self.messages:
            if message["role"] != "tool" and "tool_calls" not in message:
                continue
            parts = [_function_name(call) for call in message.get("tool_calls", [])]
            parts += [message["content"].strip()] if message["role"] == "tool" else []
            if not all(part in self.whole.text or json.dumps(part)[1:-1] in self.whole.text for part in parts):
                raise _unsupported("it leaves out tool calls or their results.")

    # -- marks

    def by_marks(self, compare_prompt: bool) -> Chat | None:
        """What the template marks; None when it marks nothing of this chat."""
        spans = self.whole.assistant_spans
        if not spans:
            return None
        if self.wanted != self.answers:
            turns = self._turns_of_marks(spans)
            spans = [span for span, turn in zip(spans, turns, strict=True) if turn in self.wanted]
        return Chat(
            self.line, self.whole.text, spans, "marks", prompt_differs=compare_prompt and self._prompt_differs()
        )

    def _prompt_differs(self) -> bool:
        """Whether the last answer does not follow its generation prompt."""
        try:
            return not self.whole.text.startswith(self._text(self.answers[-1], prompt=True))
        except InvalidRequest:
            return False

    def _turns_of_marks(self, spans: list[Span]) -> list[int]:
        """For every mark its turn: the one with which it first appears when the chat is written turn by turn."""
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
        """Every answer after its generation prompt, or the last one alone."""
        if not self.wanted:
            return Chat(self.line, self.whole.text, [], "offsets")
        last = self._find(self.wanted[-1])
        earlier = [self._find_or_none(turn) for turn in self.wanted[:-1]]
        certain = [answer for answer in earlier if answer]
        answers = [*certain, last] if len(certain) == len(earlier) else [last]
        return Chat(
            self.line,
            self.whole.text,
            [(answer.start, answer.end) for answer in answers],
            "offsets",
            last_turn_only=len(answers) <= len(earlier),
            prompt_differs=any(answer.prompt_differs for answer in answers),
        )

    def _find_or_none(self, turn: int) -> _Answer | None:
        try:
            return self._find(turn)
        except InvalidRequest:
            return None

    def _find(self, turn: int) -> _Answer:
        text = self._text(turn + 1)
        start, differs = self._start(turn, text)
        end = self._end(text, start)
        if not self.whole.text.startswith(text[:end]):
            raise _unsupported("it rewrites the turn once other turns follow.")
        return _Answer(start, end, differs)

    def _start(self, turn: int, text: str) -> tuple[int, bool]:
        """Where the answer begins, and whether the generation prompt says otherwise."""
        try:
            prompt = self._text(turn, prompt=True)
            if self._follows(prompt, turn, text):
                return len(prompt), False
            history = self._text(turn)
        except InvalidRequest:
            if any(message["role"] not in ("system", "developer") for message in self.messages[:turn]):
                raise
            return self._content_start(turn, text), False  # nobody has asked yet, so no prompt is to be met
        if text.startswith(prompt):
            return self._after(prompt, turn, text) if prompt == history else (len(prompt), False)
        if text.startswith(history):
            return self._content_start(turn, text), True
        raise _unsupported("its prompt is not the beginning of the whole chat.")

    def _follows(self, prompt: str, turn: int, text: str) -> bool:
        """Whether the turn's content, and no header first, comes after its prompt: then nothing more need be written.

        Were there a header, the content would come a second time, after it.
        """
        content = self.messages[turn]["content"]
        return bool(
            content
            and text.startswith(prompt)
            and text.startswith(content, len(prompt))
            and text.find(content, len(prompt) + 1) < 0
        )

    def _after(self, prompt: str, turn: int, text: str) -> tuple[int, bool]:
        """After a prompt that adds nothing to the history comes the answer, or first a header of its turn."""
        start = self._content_start(turn, text)
        return (start, True) if text[len(prompt) : start].strip() else (len(prompt), False)

    def _content_start(self, turn: int, text: str) -> int:
        """Where the text begins to depend on what the answer is."""
        others = [[*self.messages[:turn], {"role": "assistant", "content": word}] for word in _STAND_INS]
        texts = [self.tokenizer.render(other, self.tools).text for other in others]
        return min(_common_beginning(text, other) for other in texts)

    def _end(self, text: str, start: int) -> int:
        """After the token that ends the turn; where there is none, after the last visible character."""
        token = self.tokenizer.end_token
        place = text.rfind(token, start) if token else -1
        return place + len(token or "") if place >= 0 else max(start, len(text.rstrip()))

    def _text(self, turns: int, prompt: bool = False) -> str:
        """The first turns of the row."""
        if turns == len(self.messages) and not prompt:
            return self.whole.text
        key = (turns, prompt)
        if key not in self.written:
            self.written[key] = self.tokenizer.render(self.messages[:turns], self.tools, prompt).text
        return self.written[key]


def _common_beginning(one: str, other: str) -> int:
    """How many characters two texts begin with alike."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((index for index, (a, b) in pairs if a != b), min(len(one), len(other)))


def _unsupported(reason: str) -> InvalidRequest:
    return InvalidRequest(
        Code.TEMPLATE_UNSUPPORTED,
        f"The base's chat template does not show where the answers are: {reason}",
        remedy="Give the base a chat_template.jinja with {% generation %} marks.",
        param="model.hf_repo",
    )
