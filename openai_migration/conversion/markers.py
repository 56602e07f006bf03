"""Separators and stop tokens of prompt-completion files: the endings that nearly all prompts or completions share."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from itertools import islice

from cli.conversion.outcomes import Markers, Row

SAMPLED_ROWS = 2_000
LONGEST_MARKER = 24
SHARE = 0.95
FEWEST_ROWS = 5


def find_markers(rows: Iterable[Row]) -> Markers:
    """Return the endings that more than 95 % of the first rows' prompts and completions share."""
    pairs = [
        (row["prompt"], row["completion"])
        for row in islice(rows, SAMPLED_ROWS)
        if isinstance(row.get("prompt"), str) and isinstance(row.get("completion"), str)
    ]
    return Markers(_common_end([prompt for prompt, _ in pairs]), _common_end([answer for _, answer in pairs]))


def _common_end(texts: list[str]) -> str:
    """Return the longest ending that most strings share; empty if it is part of a word, or one character."""
    if len(texts) < FEWEST_ROWS:
        return ""
    for length in range(LONGEST_MARKER, 1, -1):
        endings = Counter(text[-length:] for text in texts if len(text) > length)
        ending, count = next(iter(endings.most_common(1)), ("", 0))
        if count > SHARE * len(texts):
            return "" if ending.isalnum() else ending
    return ""
