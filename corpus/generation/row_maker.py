"""Training rows from the values of a recipe's columns."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from corpus.generation.asking import RowDropped
from corpus.generation.columns import GenerationRecipe, UnitColumn
from corpus.generation.output_filters import MadeRow
from corpus.mixing.mix_file import recipe_invalid
from corpus.provenance import LABELS, Provenance, line_with_id, record_id
from corpus.verdicts import VerdictCode
from shared.datasets.preferences.rows import parse_pair
from shared.datasets.row_validation import decode_line
from shared.datasets.rows import RowCode, RowError
from shared.errors import MensError
from shared.graders.templates import Template, parse_path, value_at

PAIR_KEYS = frozenset({"chosen", "preferred_output"})
"""Keys of preference rows; each such row has one of them."""
Values = Mapping[str, Any]
Leaf = Callable[[Values], Any]


class RowMaker:
    """Makes the training row of a recipe from the values of its columns.

    Args:
        path: the recipe's file, which provenance names.
    """

    def __init__(self, recipe: GenerationRecipe, path: Path) -> None:
        self._row = [(key, _leaf(value, keeps_type=key in LABELS)) for key, value in recipe.row.items()]
        if "origin" not in recipe.row:
            self._row.append(("origin", lambda _: "synthetic"))
        self._is_pair = bool(PAIR_KEYS & recipe.row.keys())
        self._has_models = bool(recipe.models)
        # Rows of models pass redactors later.
        self._has_digest = not (self._has_models and recipe.redact)
        self._has_id = "id" in recipe.row
        self._file, self._source = path.name, f"generate:{path.stem}"
        self._units = [column.name for column in recipe.columns if isinstance(column, UnitColumn)]

    def make(self, index: int, values: Values) -> MadeRow:
        """Return the row and its provenance, which has the row's id unless filters may still change the row.

        Raises:
            InvalidRequest: ``CORPUS_RECIPE_INVALID``: it is not a training row.
            RowDropped: a model wrote more than a row holds.
        """
        row = self._fill(values)
        line = msgspec.json.encode(row)
        provenance = Provenance(
            id=self._checked(index, line),
            source=self._source,
            locator={"recipe": self._file, "index": index},
            content_sha256=hashlib.sha256(line).hexdigest() if self._has_digest else None,
        )
        for name in self._units:
            unit = values[name]
            provenance.parents = [*provenance.parents, unit["id"]]
            provenance.license = provenance.license or unit["source"].get("license")
        is_final = bool(provenance.id) and not self._has_id
        return MadeRow(row, provenance, line_with_id(provenance.id, line) if is_final else None)

    def _fill(self, values: Values) -> dict[str, Any]:
        try:
            return {key: leaf(values) for key, leaf in self._row}
        except MensError as error:
            # Some rows of the file lack this key.
            raise recipe_invalid(error.message, "row", None) from None

    def _checked(self, index: int, line: bytes) -> str:
        """Check the row; return its id, or nothing if the writer has to compute it."""
        try:
            if self._is_pair:
                parse_pair(line)
                return ""
            record = decode_line(line)
        except RowError as error:
            if error.code is RowCode.ROW_TOO_LONG and self._has_models:
                # A model's text may have any length, and must not end the run.
                raise RowDropped(VerdictCode.TOO_LONG) from None
            raise recipe_invalid(
                f"Row {index} is not a training row: {error.reason} ({error.code}).", "row", None
            ) from None
        return "" if self._has_models else record_id(record)


def _leaf(template: Any, *, keeps_type: bool) -> Leaf:
    """Return a function that fills in a template; a label that consists of one placeholder keeps the type of its
    value.
    """
    if isinstance(template, str):
        bare = template.strip()
        if keeps_type and bare.startswith("{{") and bare.find("}}") == len(bare) - 2:
            path = parse_path(bare[2:-2])
            return lambda values: value_at(path, values, {})
        return Template(template).render
    if isinstance(template, Mapping):
        fields = {key: _leaf(value, keeps_type=False) for key, value in template.items()}
        return lambda values: {key: leaf(values) for key, leaf in fields.items()}
    if isinstance(template, list):
        items = [_leaf(value, keeps_type=False) for value in template]
        return lambda values: [leaf(values) for leaf in items]
    return lambda _: template
