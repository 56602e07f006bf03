"""Columns of a table, or keys of rows: the names that the user gives them, and what is wrong with them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from cli.conversion.outcomes import Row
from shared.datasets.forms.advice import list_names
from shared.datasets.forms.recognition import recognise
from shared.datasets.rows import RowCode
from shared.errors import Code, InvalidRequest

MOST_COLUMNS = 1_000
"""Number of columns that are remembered; rows of a file with more have arbitrary keys."""
COLUMN_NAMES = (
    "prompt", "response", "instruction", "input", "output", "context", "system", "history", "messages", "conversations", "tools",
    "text", "chosen", "rejected", "completion", "label", "images", "rating", "category", "difficulty", "lane", "task_family",
)  # fmt: skip
"""Names that a column may be given."""
_ANSWERS = ("response", "completion", "answer", "output")
"""Names of the answer in the forms that have one question and one answer."""


def parse_columns(text: str) -> dict[str, str]:
    """Parse Mens' names by column from ``COLUMN=NAME,COLUMN=NAME``.

    Raises:
        InvalidRequest: ``REQUEST_INVALID``.
    """
    pairs = [part.partition("=") for part in text.split(",") if part.strip()]
    bad = [name for _, _, name in pairs if name.strip() not in COLUMN_NAMES]
    if bad or not pairs:
        raise InvalidRequest(
            Code.REQUEST_INVALID,
            f"--columns {text[:80]!r} does not name columns.",
            remedy=f"Write COLUMN=NAME, separated by commas; NAME is one of {', '.join(COLUMN_NAMES)}.",
            param="columns",
        )
    return {column.strip(): name.strip() for column, _, name in pairs}


def rename_columns(row: Row, columns: Mapping[str, str]) -> tuple[Row, list[str]]:
    """Return a row under Mens' names, and the columns that have no name there."""
    if not columns:
        return row, []
    mapped = {name: row[column] for column, name in columns.items() if column in row}
    return mapped, sorted(key for key, value in row.items() if key not in columns and value not in (None, "", [], {}))


def refuse_missing_columns(path: Path, named: Mapping[str, str], present: Iterable[str]) -> None:
    """Refuse names of columns that no row of a file has.

    Raises:
        InvalidRequest: ``REQUEST_INVALID``.
    """
    columns = list(present)
    missing = [column for column in named if column not in columns]
    if missing and 0 < len(columns) < MOST_COLUMNS:
        raise InvalidRequest(
            Code.REQUEST_INVALID,
            f"--columns names {list_names('column', missing)}, but {path} has {list_names('column', columns)}.",
            remedy="Correct --columns; nothing was written.",
            param="columns",
        )


def empty_cell(row: Row) -> str | None:
    """Return the fault of a row that would have a form if none of its values were missing; None for any other."""
    if recognise({name: "x" if value is None else value for name, value in row.items()}) is None:
        return None
    has_answer = any(row.get(name) is not None for name in _ANSWERS)
    return RowCode.ROW_CONTENT_EMPTY if has_answer else RowCode.ROW_ANSWER_EMPTY
