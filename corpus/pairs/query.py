"""Rule ``query``: a comment or question, and the tables → the statement."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from corpus.pairs.rule import Draft, RuleContext, fenced, labels, prompt_of
from corpus.units.records import UnitRow
from shared.checkers.unit import UnitKind

MIN_WORDS = 3


class DescribedQuery:
    """The statement that a comment describes."""

    name = "query"
    version = 1
    needs: ClassVar[frozenset[UnitKind]] = frozenset(("query",))

    def pairs(self, unit: UnitRow, _context: RuleContext) -> Iterator[Draft]:
        """See :class:`corpus.pairs.rule.PairRule`."""
        if len(unit.docstring.split()) < MIN_WORDS:
            return
        tables = fenced(unit.context, unit.language) if unit.context else ""
        row = {
            "prompt": prompt_of(self.name, unit, docstring=unit.docstring, definitions=tables),
            "response": unit.code,
            **labels("sql", "synthesis", 4, unit),
        }
        yield Draft(row, unit.language, "\n".join(filter(None, [unit.context, unit.code])))
