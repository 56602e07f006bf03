"""Values of columns. The value of row i depends only on the seed, the column's name and i, so row 1,000 is the same in
runs of 1,000 and of 10,000 rows.
"""

from __future__ import annotations

import hashlib
import json
import math
import struct
from bisect import bisect_right
from collections.abc import Callable, Mapping
from datetime import timedelta
from itertools import accumulate
from pathlib import Path
from typing import Any

import msgspec

from corpus.generation.columns import (
    CategoryColumn,
    ColumnSpec,
    DateColumn,
    GaussianColumn,
    LinesColumn,
    PoissonColumn,
    RowsColumn,
    SequenceColumn,
    TemplateColumn,
    UniformColumn,
    UnitColumn,
)
from corpus.mixing.mix_file import recipe_invalid
from corpus.shards import checked_shards
from corpus.units.records import read_units
from shared.errors import Code, NotFound
from shared.graders.templates import Template

_FOUR = struct.Struct(">4Q")
"""The four integers of a SHA-256."""
_END = 1 << 48
"""Number of the values that a draw has: those of the first 48 bits of an integer, which a float represents exactly."""
Values = Mapping[str, Any]
Sampler = Callable[[int, Values], Any]
"""A function of a row's number and the values of its earlier columns that returns the value."""


class _Draws:
    """Numbers in [0, 1) for the rows of a column."""

    def __init__(self, seed: int, name: str) -> None:
        self._begin = f"{seed}\0{name}\0"
        self._four = (-1, (0.0, 0.0, 0.0, 0.0))

    def number(self, row: int) -> float:
        """Return a row's number."""
        # Four rows share a digest, which takes most of the time of a draw.
        four, numbers = self._four
        if four != row >> 2:
            numbers = self._numbers(f"{row >> 2}/4")
            self._four = row >> 2, numbers
        return numbers[row & 3]

    def pair(self, row: int) -> tuple[float, float]:
        """Return two other numbers of a row."""
        first, second, _, _ = self._numbers(str(row))
        return first, second

    def _numbers(self, name: str) -> tuple[float, float, float, float]:
        digest = hashlib.sha256(f"{self._begin}{name}".encode()).digest()
        a, b, c, d = _FOUR.unpack(digest)
        return (a >> 16) / _END, (b >> 16) / _END, (c >> 16) / _END, (d >> 16) / _END


def sampler_of(column: ColumnSpec, seed: int, folder: Path) -> Sampler:
    """Return the sampler of a column.

    Args:
        folder: the recipe's folder, which file names are relative to.
    """
    sampler: Sampler = _SAMPLERS[type(column)](column, _Draws(seed, column.name), folder)
    return sampler


def _category(column: CategoryColumn, draws: _Draws, _folder: Path) -> Sampler:
    if isinstance(column.values, list):
        return _choice(column.values, draws)
    names, ends = list(column.values), list(accumulate(column.values.values()))
    total, last = ends[-1], len(names) - 1
    return lambda row, _: names[bisect_right(ends, draws.number(row) * total, 0, last)]


def _uniform(column: UniformColumn, draws: _Draws, _folder: Path) -> Sampler:
    scale = int(10**column.decimals)
    low, high = math.ceil(column.low * scale), math.floor(column.high * scale)
    count = high - low + 1
    if column.decimals:
        return lambda row, _: (low + int(draws.number(row) * count)) / scale
    return lambda row, _: low + int(draws.number(row) * count)


def _gaussian(column: GaussianColumn, draws: _Draws, _folder: Path) -> Sampler:
    def sample(row: int, _: Values) -> int | float:
        value = column.mean + column.deviation * _normal(*draws.pair(row))
        return float(round(value, column.decimals)) if column.decimals else round(value)

    return sample


def _date(column: DateColumn, draws: _Draws, _folder: Path) -> Sampler:
    days = (column.last - column.first).days + 1
    return lambda row, _: (column.first + timedelta(days=int(draws.number(row) * days))).isoformat()


def _rows(column: RowsColumn, draws: _Draws, folder: Path) -> Sampler:
    lines = lines_of(folder / column.file, column.name)
    return _choice([_object(line, column, number) for number, line in enumerate(lines, start=1)], draws)


def _units(column: UnitColumn, draws: _Draws, folder: Path) -> Sampler:
    """Return a sampler of units in an order that the seed determines; the column's value has the unit's keys, and the
    unit's provenance as ``source``.
    """
    units = [
        {**msgspec.to_builtins(unit), "source": msgspec.to_builtins(origin)}
        for unit, origin in read_units(checked_shards(folder / column.path))
        if column.kinds is None or unit.kind in column.kinds
    ]
    if not units:
        kinds = f" of the kinds {', '.join(column.kinds)}" if column.kinds else ""
        raise recipe_invalid(f"{column.path} has no units{kinds}.", column.name, None)
    order = sorted(range(len(units)), key=draws.pair)
    return lambda row, _: units[order[row % len(order)]]


def _sequence(column: SequenceColumn, _draws: _Draws, _folder: Path) -> Sampler:
    start, step = column.start, column.step
    return lambda row, _: start + row * step


def _template(column: TemplateColumn, _draws: _Draws, _folder: Path) -> Sampler:
    template = Template(column.template)
    return lambda _row, values: template.render(values)


_SAMPLERS: dict[type, Callable[[Any, _Draws, Path], Sampler]] = {
    CategoryColumn: _category,
    UniformColumn: _uniform,
    GaussianColumn: _gaussian,
    PoissonColumn: lambda column, draws, _: lambda row, _values: _poisson(column.mean, draws.number(row)),
    DateColumn: _date,
    LinesColumn: lambda column, draws, folder: _choice(lines_of(folder / column.file, column.name), draws),
    RowsColumn: _rows,
    UnitColumn: _units,
    SequenceColumn: _sequence,
    TemplateColumn: _template,
}


def _choice(items: list[Any], draws: _Draws) -> Sampler:
    return lambda row, _: items[int(draws.number(row) * len(items))]


def _normal(first: float, second: float) -> float:
    """Return a normally distributed number (Box-Muller); 1 - ``first`` is never 0."""
    return math.sqrt(-2 * math.log(1 - first)) * math.cos(2 * math.pi * second)


def _poisson(mean: float, share: float) -> int:
    """Return the smallest count whose cumulative probability reaches a share."""
    probability = math.exp(-mean)
    cumulated, count = probability, 0
    # Far in the tail the sum no longer grows, and would never reach a share near 1.
    while cumulated < share and count < 10 * mean + 100:
        count += 1
        probability *= mean / count
        cumulated += probability
    return count


def lines_of(path: Path, name: str) -> list[str]:
    """Return the lines of a column's file, without blank ones.

    Raises:
        NotFound: ``CORPUS_SOURCE_MISSING``.
        InvalidRequest: ``CORPUS_RECIPE_INVALID``: it is empty, or not UTF-8.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (FileNotFoundError, IsADirectoryError, NotADirectoryError):
        message, remedy = (
            f"The file {path} of the column {name} does not exist or is a folder.",
            "Name an existing file, relative to the recipe's folder.",
        )
        raise NotFound(Code.CORPUS_SOURCE_MISSING, message, remedy=remedy, param=str(path)) from None
    except UnicodeDecodeError:
        raise recipe_invalid(f"{path} is not UTF-8.", name, None) from None
    lines = [line.strip() for line in text.split("\n") if line.strip()]
    if not lines:
        raise recipe_invalid(f"The file {path} of the column {name} is empty.", name, None)
    return lines


def _object(line: str, column: RowsColumn, number: int) -> dict[str, Any]:
    try:
        value = json.loads(line)
    except ValueError:
        value = None
    if not isinstance(value, dict):
        raise recipe_invalid(f"Line {number} of {column.file} is not a JSON object.", column.name, None)
    return value
