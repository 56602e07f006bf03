"""Interface and results of a language checker. Start reading here.

A checker is found by the name of its language: those of this package (`languages.py`), and those that an installed
package offers as an entry point of the group ``mens.checkers``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

RICH = 10
"""Number of kinds of construct from which on the richness is 1."""
MAX_DIAGNOSTICS = 20


@dataclass(frozen=True, slots=True)
class Diagnostic:
    """One fault of checked code.

    Attributes:
        code: its kind: ``syntax``, ``name``, ``type``; ``too_long``, ``too_complex`` and ``time_limit`` if not
            checkable.
        message: what is wrong, as the language's own tool says it.
        line: line number, from 1; None if the fault has no place.
        column: column number, from 1.
    """

    code: str
    message: str
    line: int | None = None
    column: int | None = None

    def __str__(self) -> str:
        place = "" if self.line is None else f"line {self.line}: "
        return f"{place}{self.message} ({self.code})"


@dataclass(frozen=True, slots=True)
class Check:
    """Result of checking a piece of code.

    Attributes:
        diagnostics: its faults, at most :data:`MAX_DIAGNOSTICS`; none when it compiles.
        constructs: number of occurrences of each kind of construct; names are the checker's, such as ``function`` or
            ``loop``.
        size: amount of code that does something: lines of code without comments and docstrings, values of JSON, clauses
            of SQL.
    """

    diagnostics: tuple[Diagnostic, ...]
    constructs: Mapping[str, int] = field(default_factory=dict)
    size: int = 0

    @property
    def compiles(self) -> bool:
        """Return true if the code has no fault."""
        return not self.diagnostics

    @property
    def richness(self) -> float:
        """Number of kinds of construct divided by :data:`RICH`, at most 1."""
        return min(1.0, len(self.constructs) / RICH)

    @property
    def signature(self) -> tuple[tuple[str, str], ...]:
        """The faults without their positions; equal if the same mistakes occur in other places."""
        return tuple(sorted({(fault.code, fault.message) for fault in self.diagnostics}))


class Checker(Protocol):
    """Checks code of one language. It must not run the code, and need not limit time or memory, because its process is
    limited.
    """

    def check(self, text: str) -> Check:
        """Find all faults and constructs of a piece of code. It must not raise, whatever the code is."""
        ...
