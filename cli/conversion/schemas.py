"""Checks without an installation whether it accepts a JSON Schema as an answer's format; vLLM is not needed.

The serving tier's grammar backend is xgrammar; vLLM refuses constructs that xgrammar would silently leave out.
``_unsupported`` has vLLM 0.32's rules; a test compares the two.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from typing import Any

import msgspec

from shared.errors import InvalidRequest
from shared.graders.checks import Schema

ARRAY_KEYWORDS = ("uniqueItems", "contains", "minContains", "maxContains")
STRING_FORMATS = frozenset(
    [
        "email",
        "date",
        "time",
        "date-time",
        "duration",
        "ipv4",
        "ipv6",
        "hostname",
        "uuid",
        "uri",
        "uri-reference",
        "uri-template",
        "json-pointer",
        "relative-json-pointer",
    ]
)
SCHEMAS_REMEMBERED = 512


def refused_schemas(request: Mapping[str, Any]) -> dict[str, str]:
    """Return the schemas of a request or row that an installation would not accept, and why."""
    return {name: fault for name, schema in schemas_of(request) if (fault := schema_fault(written_schema(schema)))}


def schemas_of(request: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield names and schemas that constrain an answer to a request: of its response format and of its strict tools."""
    form = request.get("response_format")
    if isinstance(form, dict) and form.get("type") == "json_schema":
        schema_form = form.get("json_schema")
        schema_form = schema_form if isinstance(schema_form, dict) else {}
        yield f"response_format {schema_form.get('name', '')}".rstrip(), schema_form.get("schema")
    tools = request.get("tools")
    for tool in tools if isinstance(tools, list) else ():
        function = tool.get("function") if isinstance(tool, dict) else None
        if isinstance(function, dict) and function.get("strict") is True:
            yield f"tool {function.get('name', '')}".rstrip(), function.get("parameters") or {}


def written_schema(schema: Any) -> str:
    return msgspec.json.encode(schema).decode()


@lru_cache(SCHEMAS_REMEMBERED)
def schema_fault(text: str) -> str:
    schema = msgspec.json.decode(text)
    if not isinstance(schema, dict):
        return "it is not a JSON object"
    try:
        Schema(schema)
    except InvalidRequest as error:
        return error.message
    place = next(_unsupported(schema), "")
    return f"the engine's grammars do not support {place}" if place else ""


def _unsupported(schema: Mapping[str, Any], at: str = "") -> Iterator[str]:
    """Yield the parts of a schema that the engine refuses, each with its place."""
    here = f" at {at}" if at else ""
    yield from (f"{keyword}{here}" for keyword in _unsupported_here(schema))
    for name, value in schema.items():
        place = f"{at}/{name}"
        if isinstance(value, dict):
            yield from _unsupported(value, place)
        elif isinstance(value, list):
            for index, part in enumerate(value):
                if isinstance(part, dict):
                    yield from _unsupported(part, f"{place}/{index}")


def _unsupported_here(schema: Mapping[str, Any]) -> Iterator[str]:
    type_value = schema.get("type")
    types = (
        {type_value} if isinstance(type_value, str) else {name for name in type_value or () if isinstance(name, str)}
    )
    if types & {"integer", "number"} and "multipleOf" in schema:
        yield "multipleOf"
    if "array" in types:
        yield from (keyword for keyword in ARRAY_KEYWORDS if keyword in schema)
    if "string" in types:
        if "format" in schema and schema["format"] not in STRING_FORMATS:
            yield f"format {schema['format']!r}"
        if _has_pattern_and_length(schema):
            yield "pattern or format together with minLength or maxLength"
    if "object" in types:
        yield from _unsupported_of_objects(schema)
    if isinstance(schema.get("allOf"), list) and len(schema["allOf"]) > 1:
        yield "allOf with several schemas"


def _unsupported_of_objects(schema: Mapping[str, Any]) -> Iterator[str]:
    names, patterns = schema.get("propertyNames"), schema.get("patternProperties")
    if "propertyNames" in schema:
        if isinstance(names, dict) and _has_pattern_and_length(names):
            yield "propertyNames with pattern or format together with minLength or maxLength"
        yield from (
            f"propertyNames together with {other}" for other in ("patternProperties", "properties") if other in schema
        )
        if schema.get("unevaluatedProperties", True) is not True:
            yield "propertyNames together with unevaluatedProperties"
    if isinstance(patterns, dict):
        if "properties" in schema:
            yield "patternProperties together with properties"
        if len(patterns) > 1:
            yield "patternProperties with several patterns"


def _has_pattern_and_length(schema: Mapping[str, Any]) -> bool:
    return _has_any(schema, ("pattern", "format")) and _has_any(schema, ("minLength", "maxLength"))


def _has_any(schema: Mapping[str, Any], keywords: Iterable[str]) -> bool:
    return any(keyword in schema for keyword in keywords)
