"""Unit: a piece of a file that can be learned by itself, such as a function, with its measures.

A checker that has a method ``units`` divides files of its language (:class:`UnitFinder`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from operator import attrgetter
from typing import Any, Literal, Protocol, runtime_checkable

from shared.checkers.checker import RICH, Diagnostic

UnitKind = Literal["function", "class", "method", "module", "test", "section", "block", "query"]
MAX_DIFFICULTY = 10


@dataclass(frozen=True, slots=True)
class Unit:
    """A piece of code or documentation.

    Attributes:
        kind: ``block`` is a fenced block of a document, ``query`` a statement with a comment before it.
        name: a method's begins with its class: ``Stack.push``; a section's is its heading.
        language: language of ``code``.
        code: its lines, without the indentation of the place where it stands.
        first_line, last_line: its place in the file, from 1.
        signature: everything before the docstring or the first statement: decorators and ``def``.
        docstring: docstring of code; the comment before a query; the sentence before a block.
        head_lines: how many lines of ``code`` are signature and docstring; 0 if the body begins on the same line.
        context: the imports that it uses, one per line; the tables that a query reads.
        uses: other names of its module that it uses.
        constructs: number of constructs of each kind, as in :attr:`shared.checkers.checker.Check.constructs`.
        size: amount of code that does something, as in :attr:`shared.checkers.checker.Check.size`.
        ast_hash: SHA-256 of its tree; equal for copies with other names, comments, docstrings and layout.
        difficulty: the unit's difficulty from 1 to 10; see :func:`difficulty_of`.
    """

    kind: UnitKind
    name: str
    language: str
    code: str
    first_line: int
    last_line: int
    signature: str = ""
    docstring: str = ""
    head_lines: int = 0
    context: str = ""
    uses: tuple[str, ...] = ()
    constructs: Mapping[str, int] = field(default_factory=dict)
    size: int = 0
    ast_hash: str = ""
    difficulty: int = 1

    @property
    def richness(self) -> float:
        """Number of kinds of construct divided by :data:`shared.checkers.checker.RICH`, at most 1."""
        return min(1.0, len(self.constructs) / RICH)


@dataclass(frozen=True, slots=True)
class Units:
    """The units of a file, or the faults that prevent its division."""

    units: tuple[Unit, ...] = ()
    diagnostics: tuple[Diagnostic, ...] = ()


@runtime_checkable
class UnitFinder(Protocol):
    """The optional method of a checker."""

    def units(self, text: str) -> Units:
        """Divide a file into its units, in the order of their first lines. It must not raise, whatever the text is."""
        ...


def difficulty_of(size: int, nesting: int, kinds: int) -> int:
    """Return how hard a unit is to write, from 1 to 10; it never falls when a statement is added.

    Args:
        size: lines that do something.
        nesting: number of blocks around its innermost statement.
        kinds: kinds of construct.
    """
    # 1 + ⌊log2(1 + size / 4)⌋ in whole numbers, so that rounding is the same on every platform.
    level = ((4 + size) // 4).bit_length()
    return max(1, min(MAX_DIFFICULTY, level + nesting + kinds // 6))


_NAMES = tuple(part.name for part in fields(Unit))
_values = attrgetter(*_NAMES)
_USES = _NAMES.index("uses")


def to_wire(unit: Unit) -> list[Any]:
    """Return a unit's fields in their order, as JSON values."""
    return list(_values(unit))


def from_wire(values: list[Any]) -> Unit:
    """Rebuild a unit from the values of :func:`to_wire`, which have been written and read as JSON."""
    values[_USES] = tuple(values[_USES])
    return Unit(*values)
