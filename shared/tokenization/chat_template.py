"""Chat templates: render the turns of a chat to a string, exactly as transformers' ``apply_chat_template`` does.

A template is a program from the internet. It runs in jinja2's immutable sandbox, which forbids private attributes,
mutation and long ranges; here the output, the time and the size of repeated values are bounded as well. Jinja cannot
interrupt a loop that neither writes nor calls anything, a value that doubles in a loop, or a filter or format that pads
to a huge width; only the memory and time limits of the process stop these.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from types import MappingProxyType
from typing import Any

from jinja2 import TemplateError, meta, nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment

from shared.errors import Code, InvalidRequest

MAX_TEXT = 16_000_000
"""Characters that a template may write for one chat; a row of a data file has at most a sixteenth of that."""
# A template is code of the base's author, and may not end.
MAX_SECONDS = 5.0

RESERVED_ARGUMENTS = frozenset(
    ("messages", "tools", "documents", "add_generation_prompt", "continue_final_message", "chat_template", "tokenize")
)
"""Names of values that come with each chat, or that vLLM reserves for itself."""

Turn = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Rendered:
    """A rendered chat.

    Attributes:
        text: the text to tokenise, special tokens included.
        assistant_spans: (start, end) in characters of the parts in ``{% generation %}``, in order; None when the
            template has no marks, or has them where their position in the text is unknown (inside a macro).
    """

    text: str
    assistant_spans: list[tuple[int, int]] | None


class ChatTemplate:
    """A compiled chat template.

    Args:
        text: the jinja source.
        special_tokens: tokens that the template may write by name, e.g. ``{"bos_token": "<s>"}``.
        arguments: arguments that every chat is rendered with, e.g. ``{"enable_thinking": False}``.

    Raises:
        InvalidRequest: ``TEMPLATE_UNSUPPORTED``: the source is not a template.
    """

    def __init__(
        self, text: str, special_tokens: Mapping[str, str], arguments: Mapping[str, Any] = MappingProxyType({})
    ) -> None:
        self.text = text
        self.special_tokens = dict(special_tokens)
        self.arguments = dict(arguments)
        environment = _environment()
        try:
            self._template = environment.from_string(text)
        except (TemplateError, RecursionError) as error:
            raise _refusal(error) from error
        # A plain dict, because jinja's own is a ChainMap, which is copied at every rendering.
        self._template.globals = dict(self._template.globals)
        self.has_marks: bool = environment.has_marks

    @property
    def digest(self) -> str:
        """SHA-256 (64 hex digits) of the source."""
        return hashlib.sha256(self.text.encode()).hexdigest()

    @cached_property
    def argument_names(self) -> frozenset[str]:
        """Names of the arguments that the template knows: those that it reads and does not set, or for which it sets a
        default.

        vLLM passes on what jinja calls undeclared, which are these and local variables that one branch alone sets.
        """
        environment = _environment()
        source = environment.parse(self.text)
        others = environment.globals.keys() | self.special_tokens.keys() | RESERVED_ARGUMENTS | _local_names(source)
        read = meta.find_undeclared_variables(source) - others
        return frozenset(name for name in read if not name.endswith("_token"))

    def with_arguments(self, arguments: Mapping[str, Any]) -> ChatTemplate:
        """Return the same template with other arguments."""
        return ChatTemplate(self.text, self.special_tokens, arguments)

    def render(
        self, messages: Sequence[Turn], tools: Sequence[Turn] | None = None, add_generation_prompt: bool = False
    ) -> Rendered:
        """Render a chat.

        Raises:
            InvalidRequest: ``TEMPLATE_UNSUPPORTED`` with the template's own message: it does not accept this chat.
        """
        of_chat = {"messages": messages, "tools": tools, "documents": None}
        values = {**self.special_tokens, **self.arguments, **of_chat, "add_generation_prompt": add_generation_prompt}
        output = _Output(deadline=time.monotonic() + MAX_SECONDS)
        token = _current.set(output)
        try:
            output.write(self._template.generate(values))
        except Exception as error:
            # A mistake in a template can raise any exception.
            raise _refusal(error) from error
        finally:
            _current.reset(token)
        text = "".join(output.pieces)
        return Rendered(text, output.spans_in(text) if self.has_marks else None)


def _local_names(source: nodes.Template) -> frozenset[str]:
    """Return the names that a template sets, except arguments that it sets only after testing whether they are defined."""
    defaulted: set[str] = set()
    for assignment in source.find_all(nodes.Assign):
        defaulted |= _stored(assignment) & _tested(assignment.node)
    for branch in source.find_all(nodes.If):
        defaulted |= _stored(branch) & _tested(branch.test)
    return _stored(source) - defaulted


def _stored(node: nodes.Node) -> frozenset[str]:
    return frozenset(name.name for name in node.find_all(nodes.Name) if name.ctx != "load")


def _tested(expression: nodes.Node) -> frozenset[str]:
    """Return the names that an expression tests for being defined, or gives a default."""
    candidates = [expression, *expression.find_all((nodes.Test, nodes.Filter))]
    tests = ("defined", "undefined", "default", "d")
    names = [part.node for part in candidates if isinstance(part, nodes.Test | nodes.Filter) and part.name in tests]
    return frozenset(name.name for name in names if isinstance(name, nodes.Name))


@dataclass(slots=True)
class _Output:
    """The output of one rendering so far, within its limits."""

    deadline: float
    pieces: list[str] = field(default_factory=list)
    length: int = 0
    marked: list[tuple[int, str]] = field(default_factory=list)

    def write(self, pieces: Iterator[str]) -> None:
        """Collect the template's output."""
        # Checked here, because a call of `check` per piece would cost a fifth of the time.
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
            raise SecurityError(f"the template takes longer than {MAX_SECONDS:g} s for one chat")

    def spans_in(self, text: str) -> list[tuple[int, int]] | None:
        # Inside a macro, output is not written at the place where it was marked.
        are_in_place = all(text.startswith(piece, start) for start, piece in self.marked)
        return [(start, start + len(piece)) for start, piece in self.marked] if are_in_place else None


_current: ContextVar[_Output | None] = ContextVar("_current", default=None)


class _GenerationMarks(Extension):
    """``{% generation %} … {% endgeneration %}``: writes its body, and records its position."""

    tags = {"generation"}

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        self.environment.has_marks = True  # type: ignore[attr-defined]
        return nodes.CallBlock(self.call_method("_record"), [], [], body).set_lineno(line)

    def _record(self, caller: Callable[[], str]) -> str:
        text = caller()
        if (output := _current.get()) is not None:
            output.marked.append((output.length, text))
        return text


class _Sandbox(ImmutableSandboxedEnvironment):
    """Jinja's sandbox, with a time limit that is checked at every call, and a limit on the size of repeated values."""

    intercepted_binops = frozenset(("*", "**"))
    has_marks = False

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N805, PYI063 (jinja's)
        if (output := _current.get()) is not None:
            output.check()
        # For example "x".ljust(10**9).
        sizes = (value for value in (*args, *kwargs.values()) if isinstance(value, int))
        if isinstance(getattr(__obj, "__self__", None), str) and any(size > MAX_TEXT for size in sizes):
            raise SecurityError("a string method would produce a string that is too long")
        return super().call(__context, __obj, *args, **kwargs)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        # Bits of a product or power, characters or items of a repeated value.
        size = 0
        sequence, times = (right, left) if isinstance(left, int) else (left, right)
        if isinstance(left, int) and isinstance(right, int):
            size = left.bit_length() * (abs(right) if operator == "**" else 1) + right.bit_length()
        elif isinstance(sequence, (str, list, tuple)) and isinstance(times, int):
            size = len(sequence) * times
        if size > MAX_TEXT:
            raise SecurityError(f"the result of {operator!r} would be too large")
        return super().call_binop(context, operator, left, right)


def _environment() -> _Sandbox:
    """Return the sandbox with the filters, functions and options that transformers gives its templates."""

    def to_json(
        value: Any,
        ensure_ascii: bool = False,
        indent: int | None = None,
        separators: tuple[str, str] | None = None,
        sort_keys: bool = False,
    ) -> str:
        # Unlike jinja's own filter, this one does not escape HTML.
        return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    def raise_exception(message: str) -> None:
        raise TemplateError(message)

    def strftime_now(form: str) -> str:
        return datetime.now().strftime(form)  # noqa: DTZ005 (the machine's local day, as in transformers)

    environment = _Sandbox(
        trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationMarks, "jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = to_json
    environment.globals |= {"raise_exception": raise_exception, "strftime_now": strftime_now}
    return environment


def _refusal(error: Exception) -> InvalidRequest:
    reason = str(error) or type(error).__name__
    return InvalidRequest(
        Code.TEMPLATE_UNSUPPORTED,
        f"The base's chat template refuses this chat: {reason[:500]}.",
        remedy="Write chats in the way that the template requires, or give the base another chat_template.jinja.",
        param="model.hf_repo",
    )
