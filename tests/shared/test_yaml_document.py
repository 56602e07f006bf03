"""YAML documents: values with their lines, and no references."""

from __future__ import annotations

import pytest

from shared.yaml_document import parse_mapping


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
