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

ADAPTER_ID = re.compile(r"(@[0-9a-f]{12})[0-9a-f]{52}\b")
LEFT_OUT = "…"
"""`cli/client/id_prefixes.py` accepts an id that ends with it."""
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

    On a terminal that is too narrow, the ids of adapters are shortened to a form that every command accepts; if that is
    not enough, and in a pipe, they are complete.

    Args:
        header: whether a pipe also gets the columns' names, for tables that people keep.
    """
    console, lines = Console(), list(rows)
    short = [[ADAPTER_ID.sub(rf"\1{LEFT_OUT}", value) for value in row] for row in lines]
    shown = next((form for form in (lines, short) if _width(columns, form) <= console.width), None)
    if not console.is_terminal or shown is None:
        if console.is_terminal or header:
            typer.echo("\t".join(columns))
        # The terminal wraps these lines itself, so copied values stay complete.
        for row in lines:
            typer.echo("\t".join(row))
        return
    table = Table(*columns)
    for row in shown:
        table.add_row(*row)
    console.print(table)


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


def format_minute(time: str | float | None) -> str:
    """Format an API time to the minute, in UTC unchanged, or from seconds since 1970; empty for None."""
    if isinstance(time, int | float):
        time = datetime.fromtimestamp(time, UTC).isoformat()
    return time[:16].replace("T", " ") if time else ""
