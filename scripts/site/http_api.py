"""The reference pages of the HTTP API, from the OpenAPI document that a test compares with the code."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

from scripts.site.contract import describe_type
from scripts.site.markdown import code, prose, table

DOCUMENT = Path(__file__).resolve().parents[2] / "tests" / "api" / "golden" / "openapi.json"
SCHEMAS = "http-schemas.md"
OPERATIONS_HEAD = """# HTTP API

This page is generated from the OpenAPI document, which a running API serves at `GET /v1/openapi.json`. The objects have
[a page of their own](http-schemas.md). Errors have the codes of [errors](errors.md); [OpenAI compatibility](openai.md)
describes the routes that OpenAI's clients use.
"""
SCHEMAS_HEAD = """# HTTP schemas

This page is generated from the OpenAPI document. It has every object that a request or an answer of the [HTTP API](http-api.md) contains.
"""


@cache
def _document() -> dict[str, Any]:
    document: dict[str, Any] = json.loads(DOCUMENT.read_text())
    return document


def operations_page() -> str:
    """Return the page of the routes, by tag."""
    sections = defaultdict(list)
    for path, methods in _document()["paths"].items():
        for method, operation in methods.items():
            sections[operation.get("tags", ["other"])[0]].append(_operation(f"{method.upper()} {path}", operation))
    blocks = [part for tag, operations in sorted(sections.items()) for part in (f"## {tag}\n", *operations)]
    return "\n".join([OPERATIONS_HEAD, *blocks])


def _operation(title: str, operation: dict[str, Any]) -> str:
    blocks = [f"### `{title}`\n", prose(operation.get("description") or operation.get("summary", "")) + "\n"]
    blocks.append(table(("parameter", "in", "type", "what it is"), map(_parameter, operation.get("parameters", ()))))
    if body := _content(operation.get("requestBody", {})):
        blocks.append(f"Body: {body}\n")
    for status, answer in operation.get("responses", {}).items():
        if status.startswith("2"):
            blocks.append(f"Answer {status}: {_content(answer) or 'no JSON'}\n")
    return "\n".join(blocks)


def _parameter(parameter: dict[str, Any]) -> tuple[str, str, str, str]:
    name = code(parameter["name"]) + (" (required)" if parameter.get("required") else "")
    return (
        name,
        parameter["in"],
        describe_type(parameter.get("schema", {}), SCHEMAS),
        prose(parameter.get("description", "")),
    )


def _content(holder: dict[str, Any]) -> str:
    """Return the types of a body by media type."""
    types = {
        media: describe_type(value.get("schema", {}), SCHEMAS) for media, value in holder.get("content", {}).items()
    }
    return "; ".join(kind if media == "application/json" else f"{code(media)}: {kind}" for media, kind in types.items())


def schemas_page() -> str:
    """Return the page of the objects, by name."""
    schemas = _document()["components"]["schemas"]
    sections = [
        f"## {name}\n\n{prose(schema.get('description', ''))}\n\n{_schema(schema)}" for name, schema in schemas.items()
    ]
    return "\n".join([SCHEMAS_HEAD, *sections])


def _schema(schema: dict[str, Any]) -> str:
    if "properties" not in schema:
        return f"Type: {describe_type(schema, SCHEMAS)}\n"
    return table(("field", "type", "what it is"), _fields(schema))


def _fields(schema: dict[str, Any]) -> Iterator[tuple[str, str, str]]:
    required = schema.get("required", ())
    for name, field in schema["properties"].items():
        kind = describe_type(field, SCHEMAS)
        yield code(name) + (" (required)" if name in required else ""), kind, prose(field.get("description", ""))
