"""Conversion of a table's rows into training rows, by a template."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from corpus.reading.database import Column
from corpus.reading.values import to_json
from shared.errors import Code, InvalidRequest, MensError
from shared.graders.templates import pieces, value_at

CONTENT_KEYS = frozenset(
    {"messages", "prompt", "response", "instruction", "output", "input", "completion", "context", "system"}
)
"""Keys whose values are always texts; a label such as ``rating`` keeps the type of its column."""

Leaf = Callable[[Sequence[Any]], Any]


class MissingValue(Exception):
    """A column that a row's text needs is null."""


class RowTemplate:
    """Fills in a template of a row.

    Args:
        row: the template; strings may contain ``{{ item.column }}``.
        columns: the query's columns.

    Raises:
        InvalidRequest: ``CORPUS_RECIPE_INVALID``: a template names a column that the query does not have, or is not closed.
    """

    def __init__(self, row: Mapping[str, Any], columns: Sequence[Column]) -> None:
        self._columns = {column.name: (number, column) for number, column in enumerate(columns)}
        try:
            self._leaves = {key: self._compile(value, key, is_text=key in CONTENT_KEYS) for key, value in row.items()}
        except MensError as error:
            if error.code is Code.CORPUS_RECIPE_INVALID:
                raise
            raise InvalidRequest(
                Code.CORPUS_RECIPE_INVALID, f"`pull.row`: {error.message}", remedy=error.remedy, param="pull.row"
            ) from None

    def fill(self, values: Sequence[Any]) -> dict[str, Any]:
        """Return the training row for a table's row. A label whose column is null is left out."""
        filled = {key: leaf(values) for key, leaf in self._leaves.items()}
        return {key: value for key, value in filled.items() if value is not None}

    def _compile(self, template: Any, key: str, *, is_text: bool) -> Leaf:
        if isinstance(template, str):
            return self._text(template, key, is_text=is_text)
        if isinstance(template, Mapping):
            leaves = {name: self._compile(value, key, is_text=is_text) for name, value in template.items()}
            return lambda values: {name: leaf(values) for name, leaf in leaves.items()}
        if isinstance(template, list):
            items = [self._compile(value, key, is_text=is_text) for value in template]
            return lambda values: [leaf(values) for leaf in items]
        return lambda _values: template

    def _text(self, template: str, key: str, *, is_text: bool) -> Leaf:
        segments: list[str | Leaf] = []
        for piece in pieces(template):
            if not isinstance(piece, str):
                segments.append(self._value(piece, key))
            elif piece:
                segments.append(piece)
        if all(isinstance(part, str) for part in segments):
            return lambda _values: template
        if len(segments) == 1 and callable(segments[0]):
            only = segments[0]
            return (lambda values: _text_of(only(values))) if is_text else only
        return lambda values: "".join([part if isinstance(part, str) else _text_of(part(values)) for part in segments])

    def _value(self, path: tuple[str | int, ...], key: str) -> Leaf:
        name, rest = path[1] if len(path) > 1 else "", path[2:]
        if path[0] != "item" or name not in self._columns:
            raise InvalidRequest(
                Code.CORPUS_RECIPE_INVALID,
                f"`pull.row.{key}` uses {'.'.join(map(str, path))}, which is not a column of the query.",
                remedy=(
                    f"The query has: {', '.join(self._columns)}. Write {{{{ item.COLUMN }}}}, or name the column "
                    "with AS."
                ),
                param=f"pull.row.{key}",
            )
        number, column = self._columns[str(name)]
        if not rest:
            return lambda values: to_json(values[number], column)

        def nested(values: Sequence[Any]) -> Any:
            try:
                return value_at(("item", *rest), to_json(values[number], column) or {}, {})
            except MensError:
                return None

        return nested


def _text_of(value: Any) -> str:
    if type(value) is str:
        return value
    if value is None:
        raise MissingValue
    return msgspec.json.encode(value).decode()
