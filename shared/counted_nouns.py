"""A number with its noun, in messages of every tier."""

from __future__ import annotations


def counted(count: int, noun: str, plural: str = "") -> str:
    """Return a number with its noun: ``1 row``, ``2,000 rows``; ``plural`` for irregular nouns."""
    return f"{count:,} {noun if count == 1 else plural or noun + 's'}"
