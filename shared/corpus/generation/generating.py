"""Stage ``generate``: columns → training rows, marked as synthetic."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import msgspec

from shared.corpus.claims import claimed
from shared.corpus.generation.columns import GenerationRecipe, LinesColumn, RowsColumn, read_generation
from shared.corpus.generation.samplers import sampler_of
from shared.corpus.keys import stage_mark
from shared.corpus.mixing.mix_file import recipe_invalid
from shared.corpus.provenance import Provenance
from shared.corpus.shards import MAX_SHARD_BYTES, ShardIndex, StageWriter
from shared.datasets.row_validation import decode_line
from shared.datasets.rows import Labels, RowError
from shared.errors import MensError
from shared.graders.templates import parse_path, render, value_at
from shared.hashing import digest_file

STAGE = "generate"
VERSION = 1
"""Raised when an equal recipe would give other bytes."""
_LABELS = frozenset(Labels.__struct_fields__)


@dataclass(frozen=True)
class Generation:
    """The stage for a recipe.

    Args:
        rows: number of rows; None: the recipe's. More rows never change the earlier ones.

    Raises:
        InvalidRequest: ``CORPUS_RECIPE_INVALID``.
    """

    path: Path
    rows: int | None = None
    name: str = STAGE
    version: int = VERSION

    def parameters(self) -> dict[str, Any]:
        """Return the recipe."""
        return self._recipe.model_dump(mode="json") | {"rows": self._count}

    def inputs(self) -> dict[str, str]:
        """Return the digest of each file of a column."""
        self._samplers  # noqa: B018 - names a file that is missing
        files = [column.file for column in self._recipe.columns if isinstance(column, LinesColumn | RowsColumn)]
        return {file: digest_file(self.path.parent / file) for file in files}

    def run(self, target: Path, key: str, max_bytes: int = MAX_SHARD_BYTES) -> ShardIndex:
        """Write the rows.

        Raises:
            NotFound: ``CORPUS_SOURCE_MISSING``: a file of a column.
            InvalidRequest: ``CORPUS_RECIPE_INVALID``: the recipe makes something that is not a training row.
        """
        mark = stage_mark(self.name, key)
        source = f"generate:{self.path.stem}"
        with (
            claimed(target, is_folder=True),
            StageWriter(target, stage=self.name, key=key, max_bytes=max_bytes) as writer,
        ):
            for index in range(self._count):
                row = self._row(index)
                sha256 = hashlib.sha256(msgspec.json.encode(row)).hexdigest()
                locator = {"recipe": self.path.name, "index": index}
                writer.write_row(
                    row, Provenance(id="", source=source, locator=locator, content_sha256=sha256, stages=[mark])
                )
        assert writer.index
        return writer.index

    def _row(self, index: int) -> dict[str, Any]:
        values: dict[str, Any] = {}
        for name, sampler in self._samplers.items():
            values[name] = sampler(index, values)
        row = {key: _filled(value, values, keeps_type=key in _LABELS) for key, value in self._recipe.row.items()}
        row.setdefault("origin", "synthetic")
        try:
            decode_line(msgspec.json.encode(row))
        except RowError as error:
            raise recipe_invalid(
                f"Row {index} is not a training row: {error.reason} ({error.code}).", "row", None
            ) from None
        return row

    @property
    def _count(self) -> int:
        return self.rows or self._recipe.rows

    @cached_property
    def _recipe(self) -> GenerationRecipe:
        return read_generation(self.path)

    @cached_property
    def _samplers(self) -> dict[str, Any]:
        recipe = self._recipe
        return {column.name: sampler_of(column, recipe.seed, self.path.parent) for column in recipe.columns}


def _filled(template: Any, values: Mapping[str, Any], *, keeps_type: bool) -> Any:
    """Return a template with its values; a label that is one placeholder keeps the type of its value."""
    if isinstance(template, str):
        try:
            bare = template.strip()
            if keeps_type and bare.startswith("{{") and bare.find("}}") == len(bare) - 2:
                return value_at(parse_path(bare[2:-2]), values, {})
            return render(template, values, {})
        except MensError as error:
            # A key that some rows of a file lack.
            raise recipe_invalid(error.message, "row", None) from None
    if isinstance(template, Mapping):
        return {key: _filled(value, values, keeps_type=False) for key, value in template.items()}
    if isinstance(template, list):
        return [_filled(value, values, keeps_type=False) for value in template]
    return template
