"""Many short texts joined into one string, so that a regular expression is started once for all of them."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple

SEPARATOR = "\0"
"""Separator that no expression of this package matches, so that no match extends from one text into the next."""


class FoundSpan(NamedTuple):
    """A span of a string, and the name of what it contains."""

    start: int
    end: int
    kind: str
    value: str = ""
    """The value in its canonical form: equal for two spellings of the same thing."""


class JoinedTexts:
    """Texts, and the string that joins them."""

    def __init__(self, texts: Sequence[str]) -> None:
        self.joined = SEPARATOR.join(texts)
        self._texts = texts
        self._starts: list[int] = []

    def by_text(self, spans: list[FoundSpan]) -> dict[int, list[FoundSpan]]:
        """Return the spans of each text that has any, in order, with places in that text.

        If two spans overlap, the one that begins first stays; if they begin together, the longer one.
        """
        by_number: dict[int, list[FoundSpan]] = {}
        if not spans:
            return by_number
        if not self._starts:
            self._starts = list(accumulate((len(text) + 1 for text in self._texts), initial=0))
        end = -1
        for span in sorted(spans, key=lambda span: (span.start, -span.end)):
            if span.start < end:
                continue
            end = span.end
            number = bisect_right(self._starts, span.start) - 1
            start = self._starts[number]
            by_number.setdefault(number, []).append(span._replace(start=span.start - start, end=span.end - start))
        return by_number
