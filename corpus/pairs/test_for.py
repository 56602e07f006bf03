"""Rule ``test_for``: function → a test that names it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import ClassVar

from corpus.pairs.rule import Draft, RuleContext, fenced, labels, prompt_of, proof_of
from corpus.units.records import UnitRow
from shared.checkers.unit import UnitKind

MAX_USES = 3
"""Largest number of helpers from its module that a test may use; with more, it could not be written from the function
alone."""
_IMPORTED = re.compile(r"^from \S+ import (\w+)$", re.MULTILINE)


def functions_named(test: UnitRow) -> list[str]:
    """Return the names that a test imports and calls, in order of their first calls."""
    imported = set(_IMPORTED.findall(test.context))
    calls = re.findall(r"(?<![\w.])(\w+)\(", test.code)
    return [name for name in dict.fromkeys(calls) if name in imported]


class TestFor:
    """A test for the first function that it calls."""

    name = "test_for"
    version = 1
    needs: ClassVar[frozenset[UnitKind]] = frozenset(("test",))
    # Pytest would collect the class as a test.
    __test__ = False

    def pairs(self, unit: UnitRow, context: RuleContext) -> Iterator[Draft]:
        """See :class:`corpus.pairs.rule.PairRule`."""
        functions = (context.neighbours.function(name) for name in functions_named(unit))
        function = next(filter(None, functions), None)
        if function is None or len(unit.uses) > MAX_USES or not unit.code.startswith("def "):
            return
        code = "\n\n".join(filter(None, [function.context, function.code]))
        item = {"code": fenced(code, unit.language), "name": function.name, "test": unit.name}
        row = {
            "prompt": prompt_of(self.name, unit, **item),
            "response": "\n\n\n".join(filter(None, [unit.context, unit.code])),
            **labels("test", "synthesis", 4, unit),
        }
        yield Draft(row, unit.language, proof_of(unit, unit.code), {"function": function.id})
