"""Rule ``docs_qa``: a heading, as a question → its section; a heading and a sentence → the code block below."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from corpus.pairs.rule import Draft, RuleContext, labels, prompt_of
from corpus.units.records import UnitRow
from shared.checkers.languages import is_checked
from shared.checkers.unit import UnitKind

LANE = "docs_qa"
RATING = 4
"""Rating of an up-to-date document."""


class DocsQa:
    """Questions that a document answers."""

    name = "docs_qa"
    version = 1
    needs: ClassVar[frozenset[UnitKind]] = frozenset(("section", "block"))

    def pairs(self, unit: UnitRow, _context: RuleContext) -> Iterator[Draft]:
        """See :class:`corpus.pairs.rule.PairRule`."""
        rating = max(1, RATING - unit.staleness)
        # A heading such as "Example" means nothing without the one above.
        name = " > ".join(filter(None, [unit.context.rpartition(" > ")[2], unit.name]))
        if unit.kind == "section":
            shown = labels("documentation", "explanation", rating, unit, lane=LANE, mode="prose_only")
            yield Draft({"prompt": prompt_of(self.name, unit, name=name), "response": unit.code, **shown})
            return
        item = {"name": name, "docstring": unit.docstring, "language": unit.language}
        shown = labels("documentation", "synthesis", rating, unit, lane=LANE)
        row = {"prompt": prompt_of("docs_code", unit, **item), "response": unit.code, **shown}
        yield Draft(row, unit.language, unit.code) if is_checked(unit.language) else Draft(row)
