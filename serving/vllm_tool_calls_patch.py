"""A patch of vLLM's tool calls: the JSON of a call's arguments cannot go on for ever with white space.

vLLM's option for that (``disable_any_whitespace``) reaches JSON schemas that are compiled by themselves. The arguments of a call
are a part of a structural tag, whose JSON may have any white space between its tokens (vLLM 0.32).
"""

from __future__ import annotations

import json
from typing import Any

from vllm.v1.structured_output.backend_types import StructuredOutputOptions
from vllm.v1.structured_output.backend_xgrammar import XgrammarBackend

MAX_WHITE_SPACE = 1
"""Characters in a row, between two tokens of JSON."""


def bounded(tag: Any) -> Any:
    """A structural tag whose JSON has little white space; JSON schemas themselves are left alone, and calls in XML too."""
    if isinstance(tag, list):
        return [bounded(part) for part in tag]
    if not isinstance(tag, dict):
        return tag
    if tag.get("type") == "json_schema" and "json_schema" in tag:
        is_json = tag.get("style", "json") == "json"
        return {**tag, "max_whitespace_cnt": MAX_WHITE_SPACE} if is_json else tag
    return {name: bounded(part) for name, part in tag.items()}


def apply_patch() -> None:
    """Make vLLM compile structural tags with the bound, in this process. Idempotent."""
    compile_grammar = XgrammarBackend.compile_grammar
    if getattr(compile_grammar, "bounds_white_space", False):
        return

    def compile_bounded(backend: Any, kind: Any, grammar: str, *args: Any, **kwargs: Any) -> Any:
        if kind == StructuredOutputOptions.STRUCTURAL_TAG:
            grammar = json.dumps(bounded(json.loads(grammar)))
        return compile_grammar(backend, kind, grammar, *args, **kwargs)

    compile_bounded.bounds_white_space = True  # type: ignore[attr-defined]
    XgrammarBackend.compile_grammar = compile_bounded
