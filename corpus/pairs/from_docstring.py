"""Rule ``from_docstring``: a description → the whole function."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from corpus.pairs.rule import Draft, RuleContext, definitions_for, labels, prompt_of, proof_of
from corpus.units.records import UnitRow
from shared.checkers.unit import UnitKind

MIN_WORDS = 4


class FromDocstring:
    """A whole function for its description."""

    name = "from_docstring"
    version = 1
    needs: ClassVar[frozenset[UnitKind]] = frozenset(("function",))

    def pairs(self, unit: UnitRow, _context: RuleContext) -> Iterator[Draft]:
        """See :class:`corpus.pairs.rule.PairRule`."""
        if len(unit.docstring.split()) < MIN_WORDS:
            return
        item = {
            "docstring": unit.docstring,
            "name": unit.name,
            "language": unit.language,
            "definitions": definitions_for(unit),
        }
        row = {
            "prompt": prompt_of(self.name, unit, **item),
            "response": unit.code,
            **labels("function", "synthesis", 4, unit),
        }
        yield Draft(row, unit.language, proof_of(unit, unit.code))
