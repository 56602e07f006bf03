"""Tables on a terminal, and tab-separated lines everywhere else, so that ids can always be copied; and formats of sizes
and times.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import NamedTuple

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

LEFT_OUT = "…"
"""Stands for the part that a shortened id leaves out; `cli/client/id_prefixes.py` accepts such ids."""
SHORT_IDS = (
    (re.compile(r"(@[0-9a-f]{12})[0-9a-f]{52}\b"), rf"\1{LEFT_OUT}"),
    # Ids of one day begin alike, so their end tells them apart.
    (re.compile(r"\b(ftjob|file|receipt)(-)[0-9a-z]{20}([0-9a-z]{6})\b"), rf"\1\2{LEFT_OUT}\3"),
)
"""Patterns of long ids of adapters and rows, and the parts that a narrow terminal shows."""
TERMINAL_CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
"""Control characters except the line break and the tab, and characters that change the direction of a line."""
UNITS = ("bytes", "KB", "MB", "GB", "TB")


def line_ranges(lines: Sequence[int]) -> str:
    """Return ascending line numbers with runs shortened: ``1-19, 25``."""
    runs: list[list[int]] = []
    for line in lines:
        if runs and line == runs[-1][-1] + 1:
            runs[-1][1:] = [line]
        else:
            runs.append([line])
    return ", ".join("-".join(map(str, run)) for run in runs)


def print_table(
    columns: Sequence[str], rows: Iterable[Sequence[str]], *, header: bool = False, spare: Sequence[str] = ()
) -> None:
    """Print rows; values are never cut off, and in a pipe each row is one line.

    On a terminal that is too narrow, ids are shortened to a form that every command accepts, and values are wrapped between
    words; then spare columns are left out, which a note names. If that is not enough, and in a pipe, rows are complete.

    Args:
        header: whether a pipe also gets the columns' names: tables of results do, because people keep them; lists do not,
            so that scripts read rows alone.
        spare: columns that a narrow terminal leaves out, the first of them first.
    """
    console, lines = plain_console(), list(rows)
    form = _fitting(columns, lines, spare, console.width) if console.is_terminal else None
    if form is None:
        if console.is_terminal or header:
            typer.echo("\t".join(columns))
        # The terminal wraps these lines itself, so copied values stay complete.
        for row in lines:
            typer.echo("\t".join(row))
        return
    shown, table = [columns[index] for index in form.indices], Table()
    for column, width in zip(shown, form.widths, strict=True):
        table.add_column(Text(column), width=width)
    for row in form.rows:
        table.add_row(*(Text(printable(value)) for value in row))
    console.print(table)
    if left_out := [column for column in columns if column not in shown]:
        typer.echo(f"left out, as the terminal is narrow: {', '.join(left_out)}", err=True)


def plain_console(*, stderr: bool = False) -> Console:
    """Return a console that prints strings as they are.

    Names, rows and answers are other people's: Rich would read ``[/b]`` in them as markup and fail, and replace ``:smile:``.
    """
    return Console(stderr=stderr, markup=False, emoji=False)


def printable(text: str) -> str:
    """Return a model's or another user's text without the characters that control a terminal; line breaks and tabs stay."""
    return TERMINAL_CONTROLS.sub("", text)


def on_one_line(text: str, longest: int = 300) -> str:
    """Return printable text on one line, cut to at most ``longest`` characters."""
    line = printable(" ".join(text.split()))
    return line if len(line) <= longest else f"{line[: longest - 1]}…"


def shorten_ids(text: str) -> str:
    """Return text with its long ids shortened."""
    for pattern, short in SHORT_IDS:
        text = pattern.sub(short, text)
    return text


class TableForm(NamedTuple):
    """A form of a table that fits into a terminal: its columns, their widths, and the rows."""

    indices: list[int]
    widths: list[int]
    rows: list[list[str]]


def _fitting(
    columns: Sequence[str], rows: Sequence[Sequence[str]], spare: Sequence[str], width: int
) -> TableForm | None:
    """Return the first form that fits into the terminal; None if none fits."""
    whole, short = [list(row) for row in rows], [[shorten_ids(value) for value in row] for row in rows]
    if (form := _form(columns, list(range(len(columns))), whole, width)) and _is_unwrapped(form, columns):
        return form
    for count in range(len(spare) + 1):
        kept = [index for index, column in enumerate(columns) if column not in spare[:count]]
        if form := _form(columns, kept, [[row[index] for index in kept] for row in short], width):
            return form
    return None


def _form(columns: Sequence[str], indices: list[int], rows: list[list[str]], width: int) -> TableForm | None:
    """Return a table whose values are wrapped between words if necessary; None if even the single words do not fit."""
    cells = list(zip([columns[index] for index in indices], *rows, strict=True))
    least = [max(len(word) for value in column for word in (value.split() or [""])) for column in cells]
    natural = [max(map(len, column)) for column in cells]
    # The border takes three characters per column, and one more.
    room = width - sum(least) - 3 * len(cells) - 1
    if room < 0:
        return None
    widths = list(least)
    for index in sorted(range(len(cells)), key=lambda index: natural[index] - least[index]):
        more = min(natural[index] - least[index], room)
        widths[index], room = widths[index] + more, room - more
    return TableForm(indices, widths, rows)


def _is_unwrapped(form: TableForm, columns: Sequence[str]) -> bool:
    return all(
        len(value) <= width for row in (columns, *form.rows) for value, width in zip(row, form.widths, strict=True)
    )


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
