"""Faults in tools' schemas: the named part is the one that xgrammar refuses."""

from __future__ import annotations

import json
import sys
from typing import Any

import pytest

from api.inference.request_fields.tool_schemas import tool_schema_fault, with_schemas_without_nulls
from api.inference.vllm_messages import explain
from shared.errors import Code

TAG = "Invalid structural tag specification."


def of(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties}


FAULTY: list[tuple[Any, str]] = [
    (of(a=3), "properties.a"),
    (of(a="string"), "properties.a"),
    (of(a=None), "properties.a"),
    (of(a={"type": "str"}), "properties.a.type"),
    (of(a={"type": ["string", "nothing"]}), "properties.a.type"),
    (of(a={"type": "array", "items": 3}), "properties.a.items"),
    (of(a={"type": "array", "items": of(b={"type": "float"})}), "properties.a.items.properties.b.type"),
    (of(a={"type": "array", "prefixItems": {}}), "properties.a.prefixItems"),
    (of(a={"enum": "x"}), "properties.a.enum"),
    (of(a={"enum": []}), "properties.a.enum"),
    (of(a={"anyOf": {}}), "properties.a.anyOf"),
    (of(a={"oneOf": [{"type": "string"}, 3]}), "properties.a.oneOf[1]"),
    (of(a={"type": "string", "pattern": 3}), "properties.a.pattern"),
    ({"type": "object", "properties": ["a"]}, "properties"),
    ({"type": "object", "required": "a"}, "required"),
    ({"type": "object", "required": [1]}, "required"),
    ({"type": "object", "additionalProperties": 3}, "additionalProperties"),
    ({"type": "dict"}, "type"),
    ([], ""),
    ("x", ""),
]
SOUND: list[Any] = [
    {},
    True,
    of(a={"type": "string"}, b=True, c={"const": 1}, d={"enum": [1, None]}, e={"type": ["string", "null"]}),
    of(a={"type": "array", "items": {"type": "integer"}, "prefixItems": [{"type": "string"}]}),
    of(a={"anyOf": [{"type": "string"}, {"type": "null"}]}) | {"required": ["a"], "additionalProperties": False},
]


def chat(parameters: Any, **more: Any) -> dict[str, Any]:
    tools = [
        {"type": "function", "function": {"name": name, "parameters": value}}
        for name, value in (("f", {}), ("g", parameters))
    ]
    return {"messages": [], "tools": tools, "tool_choice": "required", **more}


def refusal(schema: Any) -> str | None:
    """Return xgrammar's error for a schema; None if it compiles."""
    xgrammar = pytest.importorskip("xgrammar")
    try:
        xgrammar.Grammar.from_structural_tag(
            json.dumps({"type": "structural_tag", "format": {"type": "json_schema", "json_schema": schema}})
        )
    except Exception as error:
        return str(error) or type(error).__name__
    return None


@pytest.mark.parametrize(("schema", "place"), FAULTY, ids=[json.dumps(schema) for schema, _ in FAULTY])
def test_fault_is_named_with_tool_and_place(schema: Any, place: str) -> None:
    error = explain(TAG, None, chat(schema))
    path = "tools[1].function.parameters" + (place and f".{place}")
    assert (error.param, error.code) == (path, Code.REQUEST_INVALID)
    assert path in error.message
    assert "'g'" in error.message


@pytest.mark.torch
def test_xgrammar_refuses_what_is_faulty_and_compiles_what_is_sound() -> None:
    assert [schema for schema, _ in FAULTY if refusal(schema) is None] == []
    assert [schema for schema in SOUND if refusal(schema) is not None] == []


@pytest.mark.parametrize("schema", SOUND)
def test_sound_schema_has_no_fault(schema: Any) -> None:
    assert tool_schema_fault(chat(schema)) is None


def test_only_the_tool_that_is_forced_is_looked_at() -> None:
    other = {"type": "function", "function": {"name": "f"}}
    assert tool_schema_fault(chat({"type": "dict"}, tool_choice=other)) is None
    responses = {"input": "x", "tools": [{"type": "function", "name": "g", "parameters": {"type": "dict"}}]}
    fault = tool_schema_fault({**responses, "tool_choice": {"type": "function", "name": "g"}})
    assert fault and fault.path == "tools[0].parameters.type"
    fault = tool_schema_fault(
        {"functions": [{"name": "g", "parameters": {"type": "dict"}}], "function_call": {"name": "g"}}
    )
    assert fault and fault.path == "functions[0].parameters.type"


def test_tag_whose_fault_is_not_known_blames_the_tools() -> None:
    error = explain(TAG, None, chat(of(a={"$ref": "#/$defs/x"})))
    assert (error.message, error.param) == (TAG, "tools")
    assert "reference" in error.remedy
    assert explain(TAG, None, {"structured_outputs": {"structural_tag": "{}"}}).param == "structured_outputs"


def test_nulls_of_schemas_are_not_sent_and_other_tools_are_sent_as_they_are() -> None:
    sound, merged = {"type": "object", "properties": {"a": {"type": "string", "default": None}}}, {"type": "object"}
    merged |= {"title": None, "properties": {"a": {"type": "string", "enum": None}, "b": None}}
    clean = {"type": "object", "properties": {"a": {"type": "string"}}}
    for wrap in (
        lambda schema: {"function": {"name": "f", "parameters": schema}},
        lambda schema: {"parameters": schema},
    ):
        body = {"tools": [wrap(sound), wrap(merged), "no tool"]}
        assert with_schemas_without_nulls(body) == {"tools": [wrap(sound), wrap(clean), "no tool"]}
        same = {"tools": [wrap(sound)]}
        assert with_schemas_without_nulls(same) is same
    assert with_schemas_without_nulls({"tools": None}) == {"tools": None}


def test_schema_that_is_too_deep_is_sent_as_it_is() -> None:
    deep: dict[str, Any] = {"title": None}
    for _ in range(5_000):
        deep = {"properties": {"a": deep}}
    body = {"tools": [{"parameters": deep}]}
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(1_000)  # Python's own; a library may have raised it for an earlier test of this process
    try:
        assert with_schemas_without_nulls(body) is body
    finally:
        sys.setrecursionlimit(limit)
