"""Limits of the grammars that vLLM compiles: JSON schemas, regular expressions, grammars, choices.

vLLM compiles them in a few threads of its engine, and compilation cannot be stopped; so a replica first measures a
grammar's cost in a separate process, which ends with its caller (docs/serving.md). Unlimited grammars would still
occupy that process.
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
    """Limits of the grammars of one request.

    Attributes:
        max_bytes: largest number of bytes of all grammars of the request together; a schema counts as compact JSON.
        max_depth: deepest nesting of objects and lists.
    """

    max_bytes: int
    max_depth: int

    def check(self, body: dict[str, Any]) -> None:
        """Refuse a request whose schemas and grammars exceed the limits.

        Raises:
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
            # Most grammars have fewer objects and lists than the allowed levels, and are not checked further.
            if text.count(b"{") + text.count(b"[") > self.max_depth and is_deeper(grammar, self.max_depth):
                raise InvalidRequest(
                    Code.GRAMMAR_TOO_DEEP,
                    f"`{param}` has objects or lists more than {self.max_depth} levels deep.",
                    remedy="Describe inner parts once, in `$defs`, and refer to them.",
                    param=param,
                    details={"max_depth": self.max_depth},
                )


def grammars(body: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield the parts of a request that vLLM compiles, each with its field: strings, and JSON values of any kind. Only
    strict tools count.
    """
    if isinstance(outputs := body.get("structured_outputs"), dict):
        for name in COMPILED:
            if outputs.get(name):
                yield f"structured_outputs.{name}", outputs[name]
    if isinstance(response_format := body.get("response_format"), dict):
        yield "response_format", response_format
    if isinstance(text := body.get("text"), dict) and text.get("format"):
        yield "text.format", text["format"]
    tools = body.get("tools")
    for index, tool in enumerate(tools if isinstance(tools, list) else ()):
        function = tool.get("function", tool) if isinstance(tool, dict) else None
        if isinstance(function, dict) and function.get("strict") is True and function.get("parameters"):
            field = "parameters" if function is tool else "function.parameters"
            yield f"tools[{index}].{field}", function["parameters"]


def is_deeper(value: Any, depth: int) -> bool:
    """Return whether objects and lists are nested deeper than `depth` levels. Also looks into a string, which may be
    JSON.
    """
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
