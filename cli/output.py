"""Tables: for people on a terminal, tab-separated lines for everything else, so that ids can always be copied."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import typer
from rich.console import Console
from rich.table import Table


def print_table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print rows; a value is never cut off, and in a pipe each row is one line."""
    console, found = Console(), list(rows)
    if not console.is_terminal or _width(columns, found) > console.width:
        if console.is_terminal:
            typer.echo("\t".join(columns))
        for row in found:  # the terminal wraps these lines itself, so what is copied from them is whole
            typer.echo("\t".join(row))
        return
    table = Table(*columns)
    for row in found:
        table.add_row(*row)
    console.print(table)


def _width(columns: Sequence[str], rows: list[Sequence[str]]) -> int:
    """Width of the table that shows every value on one line, its borders included."""
    return sum(max(map(len, column)) + 3 for column in zip(columns, *rows, strict=True)) + 1
