"""Pages generated from the code: every command and option, every field of the contract, every route and object."""

from __future__ import annotations

import json
import re

import pytest

from cli.lazy_commands import load
from cli.main import PLACES
from scripts.site import commands, contract, http_api
from scripts.site.markdown import prose, table
from shared.contract.field_names import contract_paths


def test_commands_have_their_subcommands_arguments_and_options() -> None:
    page = commands.page()
    for place in PLACES:
        assert (f"\n# mens {place.name}\n" in page.replace("\n## ", "\n# ")) is not place.hidden
    assert "### mens aliases rollback\n" in page
    assert "```\nmens train [OPTIONS] [file]\n```" in page
    for option in ("`--model`", "`--watch / --no-watch`"):
        assert f"| {option} | " in page
    train = next(place for place in PLACES if place.name == "train")
    helps = [param.help for param in load(train).params if getattr(param, "help", None)]
    assert len(helps) > 10
    assert all(prose(" ".join(text.split())).replace("|", "\\|") in page for text in helps)


def test_contract_has_every_field_once() -> None:
    rows = re.findall(r"^\| `([\w.]+)` \| (.+?) \| (.+?) \| (.+?) \|", contract.page(), re.MULTILINE)
    assert sorted(row[0] for row in rows) == sorted(contract_paths())
    assert ("exec.seq_len", "`seq_len`, `max_seq_length`") in [(row[0], row[3]) for row in rows]


@pytest.mark.parametrize(
    ("schema", "text"),
    [
        ({"type": "integer", "minimum": 1, "maximum": 64}, "integer ≥ 1 ≤ 64"),
        ({"anyOf": [{"type": "string"}, {"type": "null"}]}, "string or null"),
        ({"type": "array", "items": {"$ref": "#/components/schemas/Known"}}, "list of [Known](page.md#known)"),
        ({"type": "string", "enum": ["a", "b"]}, "`a`, `b`"),
        ({}, "any"),
    ],
)
def test_type_of_a_field(schema: dict[str, object], text: str) -> None:
    assert contract.describe_type(schema, "page.md") == text


def test_http_api_has_every_route_and_object() -> None:
    document = json.loads(http_api.DOCUMENT.read_text())
    routes = [f"{method.upper()} {path}" for path, methods in document["paths"].items() for method in methods]
    assert sorted(re.findall(r"^### `(.+)`$", http_api.operations_page(), re.MULTILINE)) == sorted(routes)
    objects = re.findall(r"^## (.+)$", http_api.schemas_page(), re.MULTILINE)
    assert objects == list(document["components"]["schemas"])


def test_text_that_is_not_markdown_keeps_its_signs() -> None:
    assert prose("a_b <c> ``d_e`` `f*` [g]") == r"a\_b \<c\> ``d_e`` `f*` \[g\]"
    assert table(("one", "two"), [("a|b", "c\nd")]) == "| one | two |\n| --- | --- |\n| a\\|b | c d |\n"
    assert table(("one",), []) == ""
