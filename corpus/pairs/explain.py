"""Rule ``explain``: code → its docstring."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import ClassVar

from corpus.pairs.rule import Draft, RuleContext, fenced, halves, labels, prompt_of
from corpus.units.records import UnitRow
from shared.checkers.unit import UnitKind

MIN_WORDS = 8


class Explain:
    """The docstring of code, if it says more than the name."""

    name = "explain"
    version = 1
    needs: ClassVar[frozenset[UnitKind]] = frozenset(("function", "method", "class"))

    def pairs(self, unit: UnitRow, _context: RuleContext) -> Iterator[Draft]:
        """See :class:`corpus.pairs.rule.PairRule`."""
        words = re.findall(r"[a-z0-9]+", unit.docstring.lower())
        of_name = set(re.findall(r"[a-z0-9]+", re.sub(r"(?<=[a-z])(?=[A-Z])", "_", unit.name).lower()))
        if len(unit.docstring.split()) < MIN_WORDS or set(words) <= of_name or halves(unit) is None:
            return
        body = "\n".join(unit.code.split("\n")[unit.head_lines :])
        code = fenced(f"{unit.signature}\n{body}", unit.language)
        row = {
            "prompt": prompt_of(self.name, unit, code=code, name=unit.name, kind=unit.kind),
            "response": unit.docstring,
            **labels("documentation", "explanation", 3, unit, mode="prose_only"),
        }
        yield Draft(row)
