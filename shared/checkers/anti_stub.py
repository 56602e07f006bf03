"""Whether code that compiles does something: no placeholders, not trivial, and made of more than one kind of construct."""

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
    """What an answer is besides being correct code.

    Attributes:
        markers: how often it has one of :data:`MARKERS`, as a word of its own.
        is_trivial: less than :data:`MIN_SIZE` of it does something.
        richness: kinds of construct; see :attr:`shared.checkers.checker.Check.richness`.
    """

    markers: int
    is_trivial: bool
    richness: float

    @property
    def passes(self) -> bool:
        """Whether it is no stub."""
        return not self.markers and not self.is_trivial and self.richness >= MIN_RICHNESS


def measure_substance(code: str, check: Check) -> Substance:
    """What code is besides being correct; ``check`` is what its checker found."""
    return Substance(len(_MARKER.findall(code)), check.size < MIN_SIZE, check.richness)
