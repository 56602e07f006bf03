"""Redaction by the user's own rules: a file of expressions and replacements."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from corpus.filters.redacted import Redacted
from shared.errors import Code, InvalidRequest

ARROW = " => "
NEVER_CHANGED = frozenset({"role", "type", "id", "tool_call_id", "tools", "functions"})
"""Keys whose values were not written by a person or a model."""


class RedactionRules:
    """Rules that replace matches of regular expressions in texts, or in the strings of a row.

    Args:
        path: a file with one rule per line, ``EXPRESSION => REPLACEMENT``; blank lines and lines that begin with # are
            skipped.

    Raises:
        InvalidRequest: a line is not a rule.
    """

    def __init__(self, path: Path) -> None:
        lines = enumerate(path.read_text().splitlines(), start=1)
        self._rules = [_rule(line, number) for number, line in lines if line.strip() and not line.startswith("#")]

    def redact(self, texts: list[str]) -> list[Redacted]:
        """Return each text with the rules applied in order, and the number of replacements."""
        return [self._redact(text) for text in texts]

    def apply(self, value: Any) -> Any:
        """Return a JSON value with the rules applied to its strings."""
        if isinstance(value, str):
            return self._redact(value).text
        if isinstance(value, list):
            return [self.apply(item) for item in value]
        if isinstance(value, dict):
            return {name: item if name in NEVER_CHANGED else self.apply(item) for name, item in value.items()}
        return value

    def _redact(self, text: str) -> Redacted:
        matches = 0
        for expression, replacement in self._rules:
            text, number = expression.subn(replacement, text)
            matches += number
        return Redacted(text, {"RULE": matches}) if matches else Redacted(text)


def _rule(line: str, number: int) -> tuple[re.Pattern[str], str]:
    expression, arrow, replacement = line.partition(ARROW)
    error: Exception | str = "" if arrow else f"{ARROW.strip()!r} is missing"
    try:
        compiled = re.compile(expression)
        # A replacement may name groups that the expression lacks, which shows at its first use.
        compiled.sub(replacement, "")
    except (re.error, IndexError) as failure:
        error = failure
    if error:
        message = f"Line {number} of the redaction rules is not a valid rule: {error}."
        raise InvalidRequest(Code.REQUEST_INVALID, message, remedy=f"Write EXPRESSION{ARROW}REPLACEMENT.")
    return compiled, replacement
