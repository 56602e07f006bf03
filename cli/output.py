"""Tables on a terminal, and tab-separated lines everywhere else, so that ids can always be copied; sizes and times in them."""

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
    """A number with its noun: ``1 row``, ``2 rows``; ``plural`` where an s does not make it."""
    return f"{count} {noun if count == 1 else plural or noun + 's'}"


def print_table(columns: Sequence[str], rows: Iterable[Sequence[str]], *, header: bool = False) -> None:
    """Print rows; a value is never cut off, and in a pipe each row is one line.

    On a terminal that is too narrow for them the ids of adapters are shortened, as every command takes them; where that is not
    enough, and in a pipe, they are whole.

    Args:
        header: whether a pipe gets the columns' names too, for tables that people keep rather than programs read.
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
    """Characters of a table: every value on one line, and three of border for each column."""
    return sum(max(map(len, column)) + 3 for column in zip(columns, *rows, strict=True)) + 1


def format_size(count: float) -> str:
    """Bytes, e.g. ``1.5 MB``."""
    for unit in UNITS[:-1]:
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "bytes" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} {UNITS[-1]}"


def format_minute(time: str | float | None) -> str:
    """A time of the API to the minute, in UTC as it is, or of seconds since 1970; nothing for none."""
    if isinstance(time, int | float):
        time = datetime.fromtimestamp(time, UTC).isoformat()
    return time[:16].replace("T", " ") if time else ""
