"""Tables on a terminal, and tab-separated lines everywhere else, so that ids can always be copied."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import typer
from rich.console import Console
from rich.table import Table


def print_table(columns: Sequence[str], rows: Iterable[Sequence[str]], *, header: bool = False) -> None:
    """Print rows; a value is never cut off, and in a pipe each row is one line.

    Args:
        header: whether a pipe gets the columns' names too, for tables that people keep rather than programs read.
    """
    console, lines = Console(), list(rows)
    # Every value on one line, and three characters of border for each column.
    width = sum(max(map(len, column)) + 3 for column in zip(columns, *lines, strict=True)) + 1
    if not console.is_terminal or width > console.width:
        if console.is_terminal or header:
            typer.echo("\t".join(columns))
        # A terminal wraps these lines itself, so what is copied from them is whole.
        for row in lines:
            typer.echo("\t".join(row))
        return
    table = Table(*columns)
    for row in lines:
        table.add_row(*row)
    console.print(table)
