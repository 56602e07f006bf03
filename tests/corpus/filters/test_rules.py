"""Redaction with the user's rules: applied to texts, and never to a row's structure."""

from __future__ import annotations

from pathlib import Path

import pytest

from corpus.filters.rules import RedactionRules
from shared.errors import InvalidRequest


def redaction(folder: Path, *rules: str) -> RedactionRules:
    (folder / "rules").write_text("\n".join(rules))
    return RedactionRules(folder / "rules")


def test_rules_are_applied_in_order_to_every_text(tmp_path: Path) -> None:
    rules = redaction(tmp_path, r"(\w+)@example\.com => <\1>", "<ann> => somebody", "user => X")
    row = {
        "messages": [{"role": "user", "content": [{"type": "text", "text": "ann@example.com"}], "weight": 1}],
        "n": None,
    }
    assert rules.apply(row) == {
        "messages": [{"role": "user", "content": [{"type": "text", "text": "somebody"}], "weight": 1}],
        "n": None,
    }


def test_arguments_of_calls_are_texts_too(tmp_path: Path) -> None:
    call = {"id": "ann", "function": {"name": "f", "arguments": '{"who": "ann"}'}}
    assert redaction(tmp_path, "ann => X").apply(call) == {
        "id": "ann",
        "function": {"name": "f", "arguments": '{"who": "X"}'},
    }


@pytest.mark.parametrize("rule", ["no arrow", "( => x", r"a => \1", r"a => \g<x>"])
def test_a_line_that_is_not_a_rule_is_named(tmp_path: Path, rule: str) -> None:
    with pytest.raises(InvalidRequest, match="Line 2"):
        redaction(tmp_path, "a => b", rule)
