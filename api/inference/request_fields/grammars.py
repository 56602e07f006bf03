"""Limits of the texts that vLLM compiles: JSON schemas, regular expressions, grammars, choices.

vLLM compiles them in a few threads of its engine, and nothing ends that; so a replica finds out in a process of its own what a text
costs, and ends that with its caller (docs/serving.md). Texts of any size would still take their turns there.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import msgspec

from shared.errors import Code, InvalidRequest

COMPILED = ("json", "regex", "choice", "grammar", "structural_tag", "whitespace_pattern")
"""Parts of ``structured_outputs`` that are compiled."""


@dataclass(frozen=True)
class GrammarLimits:
    """Limits of what one request may have compiled.

    Attributes:
        max_bytes: of all its texts together; a schema counts as compact JSON.
        max_depth: of objects and lists in one another.
    """

    max_bytes: int
    max_depth: int

    def check(self, body: dict[str, Any]) -> None:
        """Raises:
        InvalidRequest: ``GRAMMAR_TOO_LARGE``, ``GRAMMAR_TOO_DEEP``.
        """
        total = 0
        for param, grammar in grammars(body):
            text = grammar.encode() if isinstance(grammar, str) else msgspec.json.encode(grammar)
            total += len(text)
            if total > self.max_bytes:
                raise InvalidRequest(
                    Code.GRAMMAR_TOO_LARGE,
                    f"The schemas and grammars of the request have more than {self.max_bytes} bytes.",
                    remedy="Shorten them, or check the answer yourself.",
                    param=param,
                    details={"max_bytes": self.max_bytes},
                )
            # Most have fewer objects and lists than they may have levels, and are not looked into.
            if text.count(b"{") + text.count(b"[") > self.max_depth and is_deeper(grammar, self.max_depth):
                raise InvalidRequest(
                    Code.GRAMMAR_TOO_DEEP,
                    f"`{param}` has objects or lists more than {self.max_depth} levels deep.",
                    remedy="Describe inner parts once, in `$defs`, and refer to them.",
                    param=param,
                    details={"max_depth": self.max_depth},
                )


def grammars(body: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """What vLLM compiles of a request, each with its field: texts, and JSON values of any kind. Of tools the strict ones."""
    if isinstance(outputs := body.get("structured_outputs"), dict):
        for name in COMPILED:
            if outputs.get(name):
                yield f"structured_outputs.{name}", outputs[name]
    if isinstance(given := body.get("response_format"), dict):
        yield "response_format", given
    if isinstance(text := body.get("text"), dict) and text.get("format"):
        yield "text.format", text["format"]
    tools = body.get("tools")
    for index, tool in enumerate(tools if isinstance(tools, list) else ()):
        function = tool.get("function", tool) if isinstance(tool, dict) else None
        if isinstance(function, dict) and function.get("strict") is True and function.get("parameters"):
            field = "parameters" if function is tool else "function.parameters"
            yield f"tools[{index}].{field}", function["parameters"]


def is_deeper(value: Any, depth: int) -> bool:
    """Whether objects and lists are nested more than so many levels. Looks into a text too, which may be JSON."""
    if isinstance(value, str):
        try:
            value = msgspec.json.decode(value) if value[:1] in "{[" else None
        except (msgspec.DecodeError, UnicodeError):
            return False
        except RecursionError:
            return True
    level = [value] if isinstance(value, dict | list) else []
    for _ in range(depth):
        if not level:
            return False
        level = [
            child
            for node in level
            for child in (node.values() if isinstance(node, dict) else node)
            if isinstance(child, dict | list)
        ]
    return bool(level)
