"""The reference page of the contract: every field with its type, default, range and flat key."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import Any

from scripts.site.markdown import NONE, code, prose, table
from shared.contract.contracts import FineTuneContract
from shared.contract.field_names import flat_names

HEAD = """# Contract

This page is generated from `shared/contract/sections.py`. A field is written by its path in a contract file, in the `mens` block of OpenAI's request and in
`POST /v1/jobs`; each of its flat keys is an option of `mens train` and `mens plan` too, with dashes in place of underscores. [Jobs](jobs.md) explains contracts;
[preflight](preflight.md) says which well-formed contracts may run.
"""
BOUNDS = {
    "minimum": "≥",
    "exclusiveMinimum": ">",
    "maximum": "≤",
    "exclusiveMaximum": "<",
    "minLength": "length ≥",
    "maxLength": "length ≤",
}
"""Ranges by their names in JSON Schema."""


def page() -> str:
    """Return the text of the page."""
    schema = FineTuneContract.model_json_schema()
    sections = [
        f"## {name}\n\n{prose(_resolved(schema, field).get('description', ''))}\n\n{_fields(schema, name, field)}"
        for name, field in schema["properties"].items()
    ]
    return "\n".join([HEAD, *sections])


def _fields(schema: dict[str, Any], section: str, field: dict[str, Any]) -> str:
    keys = defaultdict(list)
    for key, path in flat_names().items():
        keys[path].append(key)
    properties = _resolved(schema, field).get("properties") or {"": field}
    rows = [
        (
            code(path),
            describe_type(value),
            _default(value),
            ", ".join(map(code, keys[path])),
            prose(value.get("description", "")),
        )
        for name, value in properties.items()
        for path in [f"{section}.{name}".rstrip(".")]
    ]
    return table(("field", "type", "default", "flat keys", "what it is"), rows)


def _default(field: dict[str, Any]) -> str:
    return code(field["default"]) if field.get("default") not in (None, "") else NONE


def _resolved(schema: dict[str, Any], field: dict[str, Any]) -> dict[str, Any]:
    """Return the object that a field refers to, or the field itself."""
    name = field.get("$ref", "").rpartition("/")[2]
    target: dict[str, Any] = schema["$defs"][name] if name else field
    return target


def describe_type(field: dict[str, Any], link: str = "") -> str:
    """Return a field's type with its range, e.g. ``integer ≥ 1 or null``.

    Args:
        field: JSON Schema of the field.
        link: page that has a heading for each named object; without one, names are not linked.
    """
    return " or ".join(dict.fromkeys(_types(field, link))) or "any"


def _types(field: dict[str, Any], link: str) -> Iterator[str]:
    for choice in field.get("anyOf") or field.get("oneOf") or ():
        yield from _types(choice, link)
    if name := field.get("$ref", "").rpartition("/")[2]:
        yield f"[{name}]({link}#{name.lower()})" if link else name
    if "const" in field or "enum" in field:
        yield ", ".join(code(value) for value in field.get("enum", [field.get("const")]))
    elif field.get("type") == "array":
        yield f"list of {describe_type(field.get('items', {}), link)}"
    elif kind := field.get("type"):
        bounds = [f"{sign} {field[name]}" for name, sign in BOUNDS.items() if name in field]
        yield " ".join([str(kind), *bounds])
