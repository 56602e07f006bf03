"""Rule ``implement``: signature and docstring → body."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from typing import ClassVar

from corpus.pairs.rule import Draft, RuleContext, definitions_for, fenced, halves, labels, prompt_of, proof_of
from corpus.units.records import UnitRow
from shared.checkers.unit import UnitKind


class Implement:
    """The body of a documented function. Its rating is higher if a test calls the function."""

    name = "implement"
    version = 1
    needs: ClassVar[frozenset[UnitKind]] = frozenset(("function", "method"))

    def pairs(self, unit: UnitRow, context: RuleContext) -> Iterator[Draft]:
        """See :class:`corpus.pairs.rule.PairRule`."""
        split = halves(unit) if unit.docstring else None
        if not split:
            return
        head, body = split
        item = {"code": fenced(head, unit.language), "name": unit.name, "definitions": definitions_for(unit)}
        is_tested = unit.kind == "function" and context.neighbours.is_tested(unit.name)
        row = {
            "prompt": prompt_of(self.name, unit, **item),
            "response": body,
            **labels("function", "synthesis", 5 if is_tested else 4, unit),
        }
        yield Draft(row, unit.language, proof_of(unit, f"{head}\n{textwrap.indent(body, '    ')}"))
