"""A patch of vLLM's structured output: a model cannot generate an unlimited amount of white space within JSON.

Between two tokens of JSON, vLLM (0.32) allows either any amount of white space or none (``disable_any_whitespace``,
which does not apply to the arguments of tool calls). With none, a model could not write JSON as in its training,
because most training rows have a space after each colon and comma. So the patch allows one character.
"""

from __future__ import annotations

import json
from typing import Any

from vllm.v1.structured_output.backend_types import StructuredOutputOptions
from vllm.v1.structured_output.backend_xgrammar import XgrammarBackend
from xgrammar import GrammarCompiler

MAX_WHITE_SPACE = 1
"""Largest number of consecutive white-space characters between two tokens of JSON."""


def bounded(tag: Any) -> Any:
    """Bound the white space in the JSON of a structural tag, and in tool calls written as XML. The JSON schemas in it
    stay unchanged.
    """
    if isinstance(tag, list):
        return [bounded(part) for part in tag]
    if not isinstance(tag, dict):
        return tag
    if tag.get("type") == "json_schema" and "json_schema" in tag:
        return {**tag, "max_whitespace_cnt": MAX_WHITE_SPACE}
    return {name: bounded(part) for name, part in tag.items()}


def apply_patch() -> None:
    """Make vLLM compile JSON schemas and structural tags with the bound, in this process. Idempotent."""
    compile_grammar, compile_schema = XgrammarBackend.compile_grammar, GrammarCompiler.compile_json_schema
    if getattr(compile_grammar, "bounds_white_space", False):
        return

    def compile_bounded(backend: Any, kind: Any, grammar: str, *args: Any, **kwargs: Any) -> Any:
        if kind == StructuredOutputOptions.STRUCTURAL_TAG:
            grammar = json.dumps(bounded(json.loads(grammar)))
        return compile_grammar(backend, kind, grammar, *args, **kwargs)

    def compile_bounded_schema(compiler: Any, schema: Any, **kwargs: Any) -> Any:
        return compile_schema(compiler, schema, **{"max_whitespace_cnt": MAX_WHITE_SPACE, **kwargs})

    compile_bounded.bounds_white_space = True  # type: ignore[attr-defined]
    XgrammarBackend.compile_grammar = compile_bounded
    GrammarCompiler.compile_json_schema = compile_bounded_schema  # type: ignore[method-assign, assignment]
