"""Tables on a terminal, and tab-separated lines everywhere else, so that ids can always be copied; and formats of sizes
and times.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

LEFT_OUT = "…"
"""`cli/client/id_prefixes.py` accepts ids in which it stands for the rest."""
SHORT_IDS = (
    (re.compile(r"(@[0-9a-f]{12})[0-9a-f]{52}\b"), rf"\1{LEFT_OUT}"),
    # Ids of one day begin alike, so their end tells them apart.
    (re.compile(r"\b(ftjob|file|receipt)(-)[0-9a-z]{20}([0-9a-z]{6})\b"), rf"\1\2{LEFT_OUT}\3"),
)
"""Long ids of adapters and of rows, and what is shown of them where a terminal is narrow."""
UNITS = ("bytes", "KB", "MB", "GB", "TB")


def counted(count: int, noun: str, plural: str = "") -> str:
    """Return a number with its noun: ``1 row``, ``2,000 rows``; ``plural`` for irregular nouns."""
    return f"{count:,} {noun if count == 1 else plural or noun + 's'}"


def line_ranges(lines: Sequence[int]) -> str:
    """Return ascending line numbers with runs shortened: ``1-19, 25``."""
    runs: list[list[int]] = []
    for line in lines:
        if runs and line == runs[-1][-1] + 1:
            runs[-1][1:] = [line]
        else:
            runs.append([line])
    return ", ".join("-".join(map(str, run)) for run in runs)


def print_table(columns: Sequence[str], rows: Iterable[Sequence[str]], *, header: bool = False) -> None:
    """Print rows; values are never cut off, and in a pipe each row is one line.

    On a terminal that is too narrow, ids are shortened to a form that every command accepts, then values are wrapped between
    words; if that is not enough, and in a pipe, they are complete.

    Args:
        header: whether a pipe also gets the columns' names, for tables that people keep.
    """
    console, lines = Console(), list(rows)
    shown = _fitting(columns, lines, console.width) if console.is_terminal else None
    if shown is None:
        if console.is_terminal or header:
            typer.echo("\t".join(columns))
        # The terminal wraps these lines itself, so copied values stay complete.
        for row in lines:
            typer.echo("\t".join(row))
        return
    table = Table()
    for column in columns:
        table.add_column(Text(column))
    for row in shown:
        table.add_row(*map(Text, row))
    console.print(table)


def shorten_ids(text: str) -> str:
    """Return text with its long ids shortened."""
    for pattern, short in SHORT_IDS:
        text = pattern.sub(short, text)
    return text


def _fitting(columns: Sequence[str], rows: list[Sequence[str]], width: int) -> list[Sequence[str]] | None:
    """Return the rows in the first form that a terminal has room for; None if it has for none."""
    if _width(columns, rows) <= width:
        return rows
    short: list[Sequence[str]] = [[shorten_ids(value) for value in row] for row in rows]
    words = [[max(value.split(), key=len, default="") for value in row] for row in short]
    fits = _width([max(column.split(), key=len) for column in columns], words) <= width
    return short if fits else None


def _width(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> int:
    """Return the width of a table in characters: every value on one line, and three of border for each column."""
    return sum(max(map(len, column)) + 3 for column in zip(columns, *rows, strict=True)) + 1


def format_size(count: float) -> str:
    """Format bytes, e.g. ``1.5 MB``."""
    for unit in UNITS[:-1]:
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "bytes" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} {UNITS[-1]}"


def format_duration(seconds: float) -> str:
    """Format seconds with the unit below the largest one: ``42 s``, ``7 min``, ``2 h 05 min``, ``3 d 4 h``."""
    minutes, hours = int(seconds // 60), int(seconds // 3600)
    if minutes < 1:
        return f"{max(0, int(seconds))} s"
    if hours < 1:
        return f"{minutes} min"
    return f"{hours} h {minutes % 60:02} min" if hours < 24 else f"{hours // 24} d {hours % 24} h"


def format_minute(time: str | float | None) -> str:
    """Format an API time to the minute, in UTC unchanged, or from seconds since 1970; empty for None."""
    if isinstance(time, int | float):
        time = datetime.fromtimestamp(time, UTC).isoformat()
    return time[:16].replace("T", " ") if time else ""
