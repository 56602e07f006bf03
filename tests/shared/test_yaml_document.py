"""YAML documents: values with their lines, and no references."""

from __future__ import annotations

from typing import Annotated, Literal

import pytest
from pydantic import BaseModel, ConfigDict, Field

from shared.yaml_document import parse_mapping, read_document


class FaultError(Exception):
    """A document's error: message, field, line."""


def test_every_path_has_its_line() -> None:
    values, lines = parse_mapping("a: 1\nb:\n  - c: x\n", "note", FaultError)
    assert values == {"a": 1, "b": [{"c": "x"}]}
    assert (lines[("b",)], lines["b", "0", "c"]) == (2, 3)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a: &x 1\nb: *x\n", "not allowed"),
        ("a: 1\na: 2\n", "occurs twice"),
        ("- 1\n", "A note is a mapping"),
        ("a: " + "[" * 40 + "]" * 40, "nested too deeply"),
        ("a: x" * 70_000, "bytes"),
    ],
)
def test_fault_is_named(text: str, words: str) -> None:
    with pytest.raises(FaultError, match=words):
        parse_mapping(text, "note", FaultError)


class Named(BaseModel):
    """A member of a union that its kind tells apart."""

    model_config = ConfigDict(extra="forbid")
    kind: Literal["named"]
    values: dict[str, float] | list[str]


class Counted(BaseModel):
    """The other member."""

    model_config = ConfigDict(extra="forbid")
    kind: Literal["counted"]
    count: int


class Sheet(BaseModel):
    """A document with unions."""

    model_config = ConfigDict(extra="forbid")
    parts: list[Annotated[Named | Counted, Field(discriminator="kind")]]


@pytest.mark.parametrize(
    ("part", "field", "reason"),
    [
        ("{kind: other}", "parts.0", "has to be one of named, counted, and not 'other'"),
        ("{count: 1}", "parts.0", "it has no kind"),
        ("{kind: counted, count: many}", "parts.0.count", "has to be a whole number"),
        ("{kind: counted}", "parts.0.count", "is required"),
        ("{kind: counted, count: 1, size: 2}", "parts.0.size", "this field does not exist"),
        ("{kind: named, values: 3}", "parts.0.values", "has to be a mapping of names to values or a list, such as"),
        ("{kind: named, values: {a: x}}", "parts.0.values.a", "has to be a number"),
    ],
)
def test_fault_in_a_union_names_the_field_and_what_is_allowed(part: str, field: str, reason: str) -> None:
    with pytest.raises(FaultError) as raised:
        read_document(f"parts:\n  - {part}\n", Sheet, "sheet", FaultError)
    message, where, line = raised.value.args
    assert (where, line) == (field, 2)
    assert reason in message
    assert "Input" not in message
