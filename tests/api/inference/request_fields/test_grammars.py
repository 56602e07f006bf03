"""Limits of schemas and grammars, in every field of a request that can contain one."""

from __future__ import annotations

from typing import Any

import pytest

from api.inference.request_fields.grammars import GrammarLimits
from shared.errors import InvalidRequest

LIMITS = GrammarLimits(max_bytes=200, max_depth=5)
LONG = "x" * 201


def nested(depth: int) -> Any:
    schema: Any = {}
    for _ in range(depth - 1):
        schema = {"items": schema}
    return schema


PLACES: list[tuple[Any, str]] = [
    (lambda schema: {"structured_outputs": {"json": schema}}, "structured_outputs.json"),
    (lambda schema: {"response_format": {"type": "json_schema", "json_schema": {"schema": schema}}}, "response_format"),
    (lambda schema: {"text": {"format": {"type": "json_schema", "schema": schema}}}, "text.format"),
    (lambda schema: {"tools": [{"function": {"strict": True, "parameters": schema}}]}, "tools[0].function.parameters"),
    (lambda schema: {"tools": [{"type": "function", "strict": True, "parameters": schema}]}, "tools[0].parameters"),
]


@pytest.mark.parametrize(("place", "param"), PLACES)
@pytest.mark.parametrize(("schema", "code"), [({"enum": [LONG]}, "GRAMMAR_TOO_LARGE"), (nested(7), "GRAMMAR_TOO_DEEP")])
def test_schema_over_a_limit_is_refused_wherever_it_is(place: Any, param: str, schema: Any, code: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        LIMITS.check(place(schema))
    assert (refused.value.code, refused.value.param) == (code, param)
    LIMITS.check(place({"type": "string"}))


@pytest.mark.parametrize("kind", ["json", "regex", "grammar", "structural_tag", "whitespace_pattern"])
def test_text_over_the_limit_is_refused(kind: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        LIMITS.check({"structured_outputs": {kind: LONG}})
    assert (refused.value.code, refused.value.param) == ("GRAMMAR_TOO_LARGE", f"structured_outputs.{kind}")
    with pytest.raises(InvalidRequest):
        LIMITS.check({"structured_outputs": {"choice": ["abcd"] * 40}})


def test_texts_of_one_request_count_together() -> None:
    tool = {"function": {"strict": True, "parameters": {"description": "x" * 90}}}
    LIMITS.check({"tools": [tool]})
    with pytest.raises(InvalidRequest) as refused:
        LIMITS.check({"tools": [tool, tool]})
    assert refused.value.param == "tools[1].function.parameters"


def test_tools_that_are_not_strict_are_not_grammars() -> None:
    """vLLM shows them to the model and compiles nothing; an agent may have many."""
    for strict in (None, False):
        LIMITS.check({"tools": [{"function": {"strict": strict, "parameters": {"description": LONG}}}]})


def test_depth_is_seen_in_a_text_too() -> None:
    limits = GrammarLimits(max_bytes=1 << 20, max_depth=5)
    for text in ("[" * 6 + "]" * 6, "[" * 20_000 + "]" * 20_000):
        with pytest.raises(InvalidRequest, match="levels deep"):
            limits.check({"structured_outputs": {"json": text}})
    limits.check({"structured_outputs": {"json": "[[[[[]]]]]"}})
    limits.check({"structured_outputs": {"json": "{", "grammar": "[[[[[[[[["}})


def test_malformed_fields_are_not_grammars() -> None:
    LIMITS.check({"structured_outputs": "x", "response_format": 3, "text": "y", "tools": "z"})
    LIMITS.check({"tools": [None, {"function": "f"}, {"function": {"parameters": None}}], "text": {"format": None}})
