"""Rule ``complete``: the beginning of a function → the rest of it."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from typing import ClassVar

from corpus.pairs.rule import (
    Draft,
    RuleContext,
    definitions_for,
    fenced,
    halves,
    labels,
    prompt_of,
    proof_of,
    seed_of,
)
from corpus.units.records import UnitRow
from shared.checkers.unit import UnitKind

MIN_SIZE = 5
MAX_CUTS = 3
"""Number of places that are tried: a line may continue a statement, and the code must not be cut there."""


class Complete:
    """The rest of a function that is cut between two of its statements."""

    name = "complete"
    version = 1
    needs: ClassVar[frozenset[UnitKind]] = frozenset(("function", "method"))

    def pairs(self, unit: UnitRow, context: RuleContext) -> Iterator[Draft]:
        """See :class:`corpus.pairs.rule.PairRule`."""
        split = halves(unit) if unit.size >= MIN_SIZE else None
        if not split:
            return
        head, body = split
        lines = body.split("\n")
        places = [number for number, line in enumerate(lines) if number and line[:1].strip() and line[0] not in ")]}#"]
        for step in range(min(MAX_CUTS, len(places))):
            place = places[(seed_of(unit) + step) % len(places)]
            begin, rest = "\n".join(lines[:place]), "\n".join(lines[place:])
            prefix = f"{head}\n{textwrap.indent(begin, '    ')}".rstrip()
            if not (self._is_whole(prefix, unit, context) and self._is_whole(_wrapped(rest), unit, context)):
                continue
            row = {
                "prompt": prompt_of(
                    self.name, unit, code=fenced(prefix, unit.language), definitions=definitions_for(unit)
                ),
                "response": rest,
                **labels("completion", "completion", 3, unit),
            }
            yield Draft(row, unit.language, proof_of(unit, f"{prefix}\n{textwrap.indent(rest, '    ')}"))
            return

    def _is_whole(self, code: str, unit: UnitRow, context: RuleContext) -> bool:
        """Return whether code ends between statements; undefined names are allowed."""
        return all(fault.code == "name" for fault in context.checkers.check(unit.language, code).diagnostics)


def _wrapped(rest: str) -> str:
    return "async def rest():\n" + textwrap.indent(rest, "    ")
