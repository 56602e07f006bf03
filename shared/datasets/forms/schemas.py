"""JSON schemas of tools: their faults, each with its place, and the nulls that a typed table adds to them. Pure.

Training rows and requests are judged by the same rules. A fault is a construct that xgrammar refuses, so that calls
cannot be constrained to the schema; a construct that it accepts is never a fault.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

TYPES = ("object", "array", "string", "number", "integer", "boolean", "null")
MAX_SHOWN = 80
"""Largest number of characters of a caller's value that a fault quotes."""
LISTED = ("prefixItems", "anyOf", "oneOf", "allOf")
"""Keywords whose value is a list of schemas."""
OLDER_DRAFT = "is true or false, as in an older draft of JSON Schema, not a list of names"
"""Fault of `required` in a property of an older draft."""
_MEANINGFUL_NULLS = frozenset({"default", "const"})
"""Keywords of a schema whose value may be null."""
_SCHEMA_KEYWORDS = frozenset(
    [
        "type",
        "properties",
        "required",
        "additionalProperties",
        "$ref",
        "$defs",
        "definitions",
        "anyOf",
        "oneOf",
        "allOf",
        "not",
        "if",
        "then",
        "else",
        "enum",
        "const",
        "description",
        "title",
        "default",
        "$schema",
        "$id",
        "$comment",
        "items",
        "patternProperties",
        "propertyNames",
        "minProperties",
        "maxProperties",
        "dependentRequired",
        "dependentSchemas",
        "unevaluatedProperties",
        "examples",
        "nullable",
        "strict",
    ]
)
_NESTED = ("items", "additionalProperties", "not", "if", "then", "else")
_NAMED = ("properties", "$defs", "definitions", "patternProperties")


class SchemaFault(NamedTuple):
    """A place of a schema, and its fault as the end of a sentence about it."""

    path: str
    reason: str


def schema_faults(schema: Any, path: str) -> Iterator[SchemaFault]:
    """Yield the faults of a schema, and of the schemas inside it.

    Args:
        schema: the raw JSON Schema.
        path: its path in the request.
    """
    if not isinstance(schema, dict):
        if not isinstance(schema, bool):
            yield SchemaFault(path, "is not a schema: it must be an object")
        return
    kinds = schema.get("type", "object")
    for kind in kinds if isinstance(kinds, list) else [kinds]:
        if kind not in TYPES:
            yield SchemaFault(f"{path}.type", f"is {repr(kind)[:MAX_SHOWN]}, not one of {', '.join(TYPES)}")
    yield from _own_faults(schema, path)
    for place, part in _parts(schema):
        yield from schema_faults(part, f"{path}.{place}")


def _parts(schema: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield the schemas inside a schema, each with its place."""
    if isinstance(properties := schema.get("properties"), dict):
        yield from ((f"properties.{name[:MAX_SHOWN]}", part) for name, part in properties.items())
    yield from ((keyword, schema[keyword]) for keyword in ("items", "additionalProperties") if keyword in schema)
    for keyword in LISTED:
        subschemas = schema.get(keyword)
        yield from (
            (f"{keyword}[{index}]", part)
            for index, part in enumerate(subschemas if isinstance(subschemas, list) else ())
        )


def _own_faults(schema: dict[str, Any], path: str) -> Iterator[SchemaFault]:
    """Yield the faults of a schema's own keywords."""
    if "properties" in schema and not isinstance(schema["properties"], dict):
        yield SchemaFault(f"{path}.properties", "is not an object of schemas by name")
    required = schema.get("required", [])
    if isinstance(required, bool):
        yield SchemaFault(f"{path}.required", OLDER_DRAFT)
    elif not (isinstance(required, list) and all(isinstance(name, str) for name in required)):
        yield SchemaFault(f"{path}.required", "is not a list of names")
    if "enum" in schema and not (isinstance(schema["enum"], list) and schema["enum"]):
        yield SchemaFault(f"{path}.enum", "is not a list of values")
    for keyword in LISTED:
        if keyword in schema and not isinstance(schema[keyword], list):
            yield SchemaFault(f"{path}.{keyword}", "is not a list of schemas")
    if not isinstance(schema.get("pattern", ""), str):
        yield SchemaFault(f"{path}.pattern", "is not a string")


def without_nulls(schema: dict[str, Any]) -> dict[str, Any]:
    """Return a schema without the properties and the keywords whose value is null."""
    cleaned: dict[str, Any] = {}
    for key, value in schema.items():
        if value is None and key not in _MEANINGFUL_NULLS:
            continue
        if key in _NAMED and isinstance(value, dict):
            value = {name: _cleaned(part) for name, part in value.items() if part is not None}  # noqa: PLW2901
        elif key in _NESTED:
            value = _cleaned(value)  # noqa: PLW2901
        elif key in LISTED and isinstance(value, list):
            value = [_cleaned(part) for part in value]  # noqa: PLW2901
        cleaned[key] = value
    return cleaned


def _cleaned(value: Any) -> Any:
    return without_nulls(value) if isinstance(value, dict) else value


def object_fault(schema: Any) -> str:
    """Return why parameters do not describe an object; empty if they do."""
    if not isinstance(schema, dict):
        return f"it is {_kind(schema)}"
    kind = schema.get("type", "object")
    if "object" not in (kind if isinstance(kind, list) else [kind]):
        return "its `type` is not `object`"
    labels = [schema[key] for key in ("title", "description") if key in schema]
    is_bare = bool(schema) and not schema.keys() & _SCHEMA_KEYWORDS
    if is_bare or not all(isinstance(label, str) for label in labels):
        return "it has names of parameters where `properties` should be"
    return ""


def _kind(value: Any) -> str:
    names = {list: "a list", str: "a string", bool: "true or false", dict: "an object", type(None): "null"}
    return names.get(type(value), "a number")
