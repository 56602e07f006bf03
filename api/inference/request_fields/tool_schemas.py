"""Finds the fault in a tool's JSON schema, so that a refusal names its place: for a forced call vLLM only reports that
its tag is invalid. Pure.

It looks for constructs that xgrammar refuses, and only after vLLM has refused the request: a construct that xgrammar
accepts is never a fault here.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

TYPES = ("object", "array", "string", "number", "integer", "boolean", "null")
ALTERNATIVES = ("anyOf", "oneOf", "allOf")


class SchemaFault(NamedTuple):
    """A place in a request, and its fault as the end of a sentence about it."""

    path: str
    reason: str


def tool_schema_fault(body: dict[str, Any]) -> SchemaFault | None:
    """Return the first fault in the parameters of the tools that a request lets the model call, if one is known."""
    field = "tools" if isinstance(body.get("tools"), list) else "functions"
    choice = body.get("tool_choice" if field == "tools" else "function_call")
    named = choice.get("function", choice) if isinstance(choice, dict) else {}
    name = named.get("name") if isinstance(named, dict) else None
    tools = body.get(field)
    for index, tool in enumerate(tools if isinstance(tools, list) else ()):
        path = f"{field}[{index}]"
        function = tool
        if isinstance(tool, dict) and isinstance(tool.get("function"), dict):
            path, function = f"{path}.function", tool["function"]
        if not isinstance(function, dict) or name not in (None, function.get("name")):
            continue
        if function.get("parameters") is not None:
            faults = _faults(function["parameters"], f"{path}.parameters")
            if fault := next(faults, None):
                return fault._replace(reason=f"{fault.reason} (tool {function.get('name')!r})")
    return None


def _faults(schema: Any, path: str) -> Iterator[SchemaFault]:
    if not isinstance(schema, dict):
        if not isinstance(schema, bool):
            yield SchemaFault(path, "is not a schema, which is an object")
        return
    kinds = schema.get("type", "object")
    for kind in kinds if isinstance(kinds, list) else [kinds]:
        if kind not in TYPES:
            yield SchemaFault(f"{path}.type", f"is {kind!r}, not one of {', '.join(TYPES)}")
    yield from _own_faults(schema, path)
    for place, part in _parts(schema):
        yield from _faults(part, f"{path}.{place}")


def _parts(schema: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield the schemas inside a schema, each with its place."""
    if isinstance(properties := schema.get("properties"), dict):
        yield from ((f"properties.{name}", part) for name, part in properties.items())
    yield from ((keyword, schema[keyword]) for keyword in ("items", "additionalProperties") if keyword in schema)
    for keyword in ("prefixItems", *ALTERNATIVES):
        parts = schema.get(keyword)
        yield from (
            (f"{keyword}[{index}]", part) for index, part in enumerate(parts if isinstance(parts, list) else ())
        )


def _own_faults(schema: dict[str, Any], path: str) -> Iterator[SchemaFault]:
    """Yield the faults of a schema's own keywords."""
    if "properties" in schema and not isinstance(schema["properties"], dict):
        yield SchemaFault(f"{path}.properties", "is not an object of schemas by name")
    required = schema.get("required", [])
    if not (isinstance(required, list) and all(isinstance(name, str) for name in required)):
        yield SchemaFault(f"{path}.required", "is not a list of names")
    if "enum" in schema and not (isinstance(schema["enum"], list) and schema["enum"]):
        yield SchemaFault(f"{path}.enum", "is not a list of values")
    for keyword in ("prefixItems", *ALTERNATIVES):
        if keyword in schema and not isinstance(schema[keyword], list):
            yield SchemaFault(f"{path}.{keyword}", "is not a list of schemas")
    if not isinstance(schema.get("pattern", ""), str):
        yield SchemaFault(f"{path}.pattern", "is not a string")
