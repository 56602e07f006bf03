"""Schemas that an installation would refuse are found at the conversion, without vLLM, by the same rules as vLLM's."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from cli.conversion.schemas import refused_schemas, schemas_of
from openai_migration.archive.contents import ArchiveContents
from openai_migration.archive.export import export_project
from openai_migration.archive.folder import Archive
from openai_migration.conversion.response_formats import check_formats
from tests.support.fake_openai import KEY, TUNED, ServedOpenAI, stored_file

NAMED = {"type": "object", "properties": {"name": {"type": "string", "maxLength": 9}}, "required": ["name"]}
REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"type": "integer", "multipleOf": 3}, "multipleOf"),
    ({"type": ["null", "number"], "multipleOf": 0.5}, "multipleOf"),
    ({"type": "array", "uniqueItems": True}, "uniqueItems"),
    ({"type": "array", "contains": {"type": "string"}}, "contains"),
    ({"type": "string", "format": "idn-email"}, "format 'idn-email'"),
    ({"type": "string", "pattern": "a", "maxLength": 3}, "pattern or format together with"),
    ({"type": "string", "format": "date", "minLength": 3}, "pattern or format together with"),
    ({"type": "object", "propertyNames": {"pattern": "a"}, "properties": {}}, "propertyNames together with properties"),
    ({"type": "object", "propertyNames": {"pattern": "a", "minLength": 1}}, "propertyNames with pattern"),
    ({"type": "object", "propertyNames": {}, "patternProperties": {"a": {}}}, "together with patternProperties"),
    ({"type": "object", "propertyNames": {}, "unevaluatedProperties": False}, "unevaluatedProperties"),
    (
        {"type": "object", "patternProperties": {"a": {}}, "properties": {}},
        "patternProperties together with properties",
    ),
    ({"type": "object", "patternProperties": {"a": {}, "b": {}}}, "patternProperties with several patterns"),
    ({"allOf": [{"type": "string"}, {"enum": ["a"]}]}, "allOf with several schemas"),
    ({"anyOf": [NAMED, {"type": "array", "items": {"type": "number", "multipleOf": 2}}]}, "at /anyOf/1/items"),
]
TAKEN: list[dict[str, Any]] = [
    NAMED,
    {"type": "string", "format": "date-time"},
    {"type": "array", "items": NAMED, "minItems": 1},
    {"type": "object", "propertyNames": {"pattern": "a"}},
    {"multipleOf": 3},
    {"allOf": [NAMED]},
    {},
]


def asking(schema: object, name: str = "reply") -> dict[str, Any]:
    """A request for an answer of a schema."""
    form = {"type": "json_schema", "json_schema": {"name": name, "schema": schema, "strict": True}}
    return {"messages": [{"role": "user", "content": "Q"}], "response_format": form}


@pytest.mark.parametrize(("schema", "words"), REFUSED)
def test_a_schema_that_the_engine_would_refuse_is_named_with_the_keyword(schema: dict[str, Any], words: str) -> None:
    assert words in refused_schemas(asking(schema))["response_format reply"]


@pytest.mark.parametrize("schema", TAKEN)
def test_a_schema_that_the_engine_takes_is_not_named(schema: dict[str, Any]) -> None:
    assert refused_schemas(asking(schema)) == {}


@pytest.mark.vllm
@pytest.mark.parametrize("schema", [*(schema for schema, _ in REFUSED), *TAKEN])
def test_the_rules_are_vllms(schema: dict[str, Any]) -> None:
    backend = pytest.importorskip("vllm.v1.structured_output.backend_xgrammar")
    assert backend.has_xgrammar_unsupported_json_features(schema) == bool(refused_schemas(asking(schema)))


@pytest.mark.parametrize(
    ("schema", "words"),
    [({"type": "strin"}, "The JSON Schema is invalid"), ("x", "not a JSON object"), (None, "not a JSON object")],
)
def test_what_is_not_a_schema_is_named(schema: object, words: str) -> None:
    assert words in refused_schemas(asking(schema))["response_format reply"]


def test_a_schema_that_leads_to_another_document_is_not_fetched() -> None:
    assert refused_schemas(asking({"$ref": "https://example.com/schema.json"}))


def test_strict_tools_are_held_to_their_schema_and_others_are_not() -> None:
    def tool(name: str, **more: Any) -> dict[str, Any]:
        return {"type": "function", "function": {"name": name, "parameters": REFUSED[0][0], **more}}

    row = {"tools": [tool("loose"), tool("held", strict=True), "odd", {"function": 3}], "response_format": "odd"}
    assert list(refused_schemas(row)) == ["tool held"]
    assert not list(schemas_of({"response_format": {"type": "json_object"}, "tools": None}))


def test_the_archives_requests_are_tried_each_schema_once(openai: ServedOpenAI, tmp_path: Path) -> None:
    project = openai.fake.projects[KEY]
    bad = asking(REFUSED[0][0])["response_format"]
    for chat in project.lists[f"chat/completions?{TUNED}"]:
        chat["response_format"] = bad
    project.lists["files"].append(stored_file("file-batch", "batch", "batch.jsonl"))
    lines = [{"body": asking(NAMED, "fine")}, {"body": asking(REFUSED[0][0])}]
    project.contents["file-batch"] = "\n".join(map(json.dumps, lines)).encode()
    folder = tmp_path / "a"
    with Archive(folder) as archive, openai.client(project="P") as client:
        export_project(client, archive)
        archive.finish()
    golden = folder / "golden" / "P"
    golden.mkdir(parents=True)
    (golden / "model.jsonl").write_bytes(msgspec.json.encode({"request": asking(NAMED, "fine")}) + b"\n")
    found = {each.name: each for each in check_formats(ArchiveContents(folder))}
    assert found["response_format fine"].requests == {"recorded": 1, "batch": 1}
    assert found["response_format fine"].refused == ""
    assert found["response_format reply"].requests == {"chat": 3, "batch": 1}
    assert "multipleOf" in found["response_format reply"].refused
