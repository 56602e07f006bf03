"""Forms in which chat templates write tool calls, and vLLM's parser of each.

A replica chooses its parser by the form of its base's template; a certificate tests that it reads a call in that form.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import tokenizers


@dataclass(frozen=True, slots=True)
class Form:
    """A way to write a tool call.

    Attributes:
        parser: vLLM's parser of it.
        pattern: finds it; ``{name}`` stands for the called function.
        token: token that the parser needs; vLLM does not start without it.
    """

    parser: str
    pattern: str
    token: str | None = None


FORMS = (
    Form("qwen3_xml", r"<tool_call>\s*<function={name}>"),
    Form("hermes", r'<tool_call>\s*{{"name": ?"{name}"'),
    Form("mistral", r"\[TOOL_CALLS\].*{name}", "[TOOL_CALLS]"),
    Form("llama3_json", r'{{"name": ?"{name}", ?"parameters"', "<|python_tag|>"),
)


def parser_of(text: str, name: str, backend: tokenizers.Tokenizer) -> str | None:
    """Return vLLM's parser of the form in which a text calls a function; None if it is in no known form."""
    possible_forms = (form for form in FORMS if not form.token or backend.token_to_id(form.token) is not None)
    return next(
        (form.parser for form in possible_forms if re.search(form.pattern.format(name=re.escape(name)), text)), None
    )
