"""Check that code that compiles does something: no placeholders, not trivial, and more than one kind of construct."""

from __future__ import annotations

import re
from dataclasses import dataclass

from shared.checkers.checker import Check

MIN_RICHNESS = 0.2
MIN_SIZE = 2
MARKERS = ("todo", "tbd", "placeholder", "stub", "not implemented", "coming soon")
_MARKER = re.compile(
    r"\b(?:" + "|".join(marker.replace(" ", r"[\s_-]*") for marker in MARKERS) + r")(?:error)?\b", re.IGNORECASE
)


@dataclass(frozen=True, slots=True)
class Substance:
    """Measures of an answer's substance, beyond being correct code.

    Attributes:
        markers: number of occurrences of :data:`MARKERS`, as separate words.
        is_trivial: its size is below :data:`MIN_SIZE`.
        richness: kinds of construct; see :attr:`shared.checkers.checker.Check.richness`.
    """

    markers: int
    is_trivial: bool
    richness: float

    @property
    def passes(self) -> bool:
        """Return true if the code is more than a stub."""
        return not self.markers and not self.is_trivial and self.richness >= MIN_RICHNESS


def measure_substance(code: str, check: Check) -> Substance:
    """Measure the substance of code; ``check`` is the result of its checker."""
    return Substance(len(_MARKER.findall(code)), check.size < MIN_SIZE, check.richness)
