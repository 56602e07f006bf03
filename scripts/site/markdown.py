"""Pieces of generated Markdown pages: tables, code and prose."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

NONE = "—"
"""The content of an empty cell."""


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table; the empty string without rows."""
    lines = [[re.sub(r"(?<!\\)\|", r"\\|", " ".join(cell.split())) for cell in row] for row in rows]
    return (
        "\n".join(f"| {' | '.join(line)} |" for line in [[*heads], ["---"] * len(heads), *lines]) + "\n"
        if lines
        else ""
    )


def code(text: object) -> str:
    """Return text as code; the dash of an empty cell for the empty string."""
    return f"`{text}`" if str(text) else NONE


def prose(text: str) -> str:
    """Return a description that was not written as Markdown, escaped so that the page shows its characters unchanged."""
    pieces = re.split(r"(``.+?``|`[^`]+`)", text)
    return "".join(part if index % 2 else re.sub(r"([\\*_<>\[\]])", r"\\\1", part) for index, part in enumerate(pieces))
