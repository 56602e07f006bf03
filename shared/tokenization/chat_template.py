"""Chat templates: from the turns of a chat to text, exactly as transformers' ``apply_chat_template`` writes it.

A template is a program from the internet. It runs in jinja2's immutable sandbox, which takes away attributes, mutation
and long ranges; on top of it the text, the time and the size of repeated values are bounded here. What jinja cannot
interrupt stays open: a loop that neither writes nor calls anything, a value that doubles in a loop, a filter or format
that pads to a great width. The memory and time limits of the process are the last fence.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from jinja2 import TemplateError, nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment

from shared.errors import Code, InvalidRequest

MAX_TEXT = 16_000_000
"""Characters that a template may write for one chat; a row of a data file has at most a sixteenth of it."""
MAX_SECONDS = 5.0

Turn = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Rendered:
    """A chat as text.

    Attributes:
        text: what is tokenised, special tokens included.
        assistant_spans: (start, end) in characters of what ``{% generation %}`` marks, in order; None when the template
            has no marks, or has them where their place in the text cannot be known (inside a macro).
    """

    text: str
    assistant_spans: list[tuple[int, int]] | None


class ChatTemplate:
    """A compiled chat template.

    Args:
        text: the jinja source.
        special_tokens: what the template may write by name, e.g. ``{"bos_token": "<s>"}``.

    Raises:
        InvalidRequest: ``TEMPLATE_UNSUPPORTED``: the source is not a template.
    """

    def __init__(self, text: str, special_tokens: Mapping[str, str]) -> None:
        self.text = text
        self.special_tokens = dict(special_tokens)
        environment = _environment()
        try:
            self._template = environment.from_string(text)
        except (TemplateError, RecursionError) as error:
            raise _refusal(error) from error
        self._template.globals = dict(self._template.globals)  # a ChainMap, copied at every rendering
        self.has_marks: bool = environment.has_marks

    @property
    def digest(self) -> str:
        """SHA-256 (64 hex digits) of the source."""
        return hashlib.sha256(self.text.encode()).hexdigest()

    def render(
        self, messages: Sequence[Turn], tools: Sequence[Turn] | None = None, add_generation_prompt: bool = False
    ) -> Rendered:
        """Write a chat.

        Raises:
            InvalidRequest: ``TEMPLATE_UNSUPPORTED`` with the template's own words: it does not take this chat.
        """
        given = {"messages": messages, "tools": tools, "documents": None}
        values = {**self.special_tokens, **given, "add_generation_prompt": add_generation_prompt}
        track = _Track(deadline=time.monotonic() + MAX_SECONDS)
        token = _current.set(track)
        try:
            track.write(self._template.generate(values))
        except Exception as error:  # a template's mistake is any exception at all
            raise _refusal(error) from error
        finally:
            _current.reset(token)
        text = "".join(track.pieces)
        return Rendered(text, track.spans_in(text) if self.has_marks else None)


@dataclass(slots=True)
class _Track:
    """What one rendering has written so far."""

    deadline: float
    pieces: list[str] = field(default_factory=list)
    length: int = 0
    marked: list[tuple[int, str]] = field(default_factory=list)

    def write(self, pieces: Iterator[str]) -> None:
        """Take what the template writes; a call per piece would cost a fifth of the time."""
        keep, clock, deadline = self.pieces.append, time.monotonic, self.deadline
        for piece in pieces:
            keep(piece)
            self.length += len(piece)
            if self.length > MAX_TEXT or clock() > deadline:
                self.check()

    def check(self) -> None:
        if self.length > MAX_TEXT:
            raise SecurityError(f"the chat would have over {MAX_TEXT} characters")
        if time.monotonic() > self.deadline:
            raise SecurityError(f"the template works longer than {MAX_SECONDS:g} s on one chat")

    def spans_in(self, text: str) -> list[tuple[int, int]] | None:
        known = all(text.startswith(piece, start) for start, piece in self.marked)
        return [(start, start + len(piece)) for start, piece in self.marked] if known else None


_current: ContextVar[_Track | None] = ContextVar("_current", default=None)


class _GenerationMarks(Extension):
    """``{% generation %} … {% endgeneration %}``: writes its body, and remembers where."""

    tags = {"generation"}

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        self.environment.has_marks = True  # type: ignore[attr-defined]
        return nodes.CallBlock(self.call_method("_record"), [], [], body).set_lineno(line)

    def _record(self, caller: Callable[[], str]) -> str:
        text = caller()
        if (track := _current.get()) is not None:
            track.marked.append((track.length, text))
        return text


class _Sandbox(ImmutableSandboxedEnvironment):
    """Jinja's sandbox, which also looks at the clock at every call and refuses to repeat values without end."""

    intercepted_binops = frozenset(("*", "**"))
    has_marks = False

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N805, PYI063 (jinja's)
        if (track := _current.get()) is not None:
            track.check()
        if isinstance(getattr(__obj, "__self__", None), str) and any(map(_is_huge, [*args, *kwargs.values()])):
            raise SecurityError("a text method would make a text that is too long")
        return super().call(__context, __obj, *args, **kwargs)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        if _result_size(operator, left, right) > MAX_TEXT:
            raise SecurityError(f"the result of {operator!r} would be too large")
        return super().call_binop(context, operator, left, right)


def _result_size(operator: str, left: Any, right: Any) -> int:
    """Characters, items or bits of a product or power; 0 where it is neither."""
    if isinstance(left, int) and isinstance(right, int):
        return left.bit_length() * (abs(right) if operator == "**" else 1) + right.bit_length()
    sequence, times = (right, left) if isinstance(left, int) else (left, right)
    return len(sequence) * times if isinstance(sequence, (str, list, tuple)) and isinstance(times, int) else 0


def _is_huge(value: Any) -> bool:
    return isinstance(value, int) and value > MAX_TEXT


def _environment() -> _Sandbox:
    """What transformers gives its templates, name by name."""
    environment = _Sandbox(
        trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationMarks, "jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    return environment


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Unlike jinja's own filter this escapes no HTML."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: str) -> None:
    raise TemplateError(message)


def _strftime_now(form: str) -> str:
    return datetime.now().strftime(form)  # noqa: DTZ005 (the machine's own day, as transformers has it)


def _refusal(error: Exception) -> InvalidRequest:
    words = str(error) or type(error).__name__
    return InvalidRequest(
        Code.TEMPLATE_UNSUPPORTED,
        f"The base's chat template does not take this chat: {words[:500]}.",
        remedy="Write chats the way the template wants them, or give the base another chat_template.jinja.",
        param="model.hf_repo",
    )
