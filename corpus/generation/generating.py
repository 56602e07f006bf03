"""Stage ``generate``: columns → training rows, marked as synthetic. Rows with answers of models are made in `model_rows.py`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import msgspec

from corpus.claims import claimed
from corpus.filters.redactors import rules_digests
from corpus.generation.columns import (
    OF_MODELS,
    GenerationRecipe,
    LinesColumn,
    RowsColumn,
    UnitColumn,
    read_generation,
)
from corpus.generation.model_columns import ModelColumn, SelfInstructColumn
from corpus.generation.model_rows import RESPONSES, ModelAccess, ModelRows, RunReport, no_rows
from corpus.generation.output_filters import MadeRow
from corpus.generation.planning import PlannedRequests, plan_requests
from corpus.generation.row_maker import RowMaker
from corpus.generation.samplers import Sampler, sampler_of
from corpus.keys import stage_key, stage_mark
from corpus.shards import MAX_SHARD_BYTES, ShardIndex, StageWriter, read_index
from corpus.sources import refuse_retracted
from shared.hashing import digest_file

STAGE = "generate"
VERSION = 4
"""Increase this when the same recipe would give different bytes."""


@dataclass(frozen=True)
class Generation:
    """The stage for a recipe.

    Args:
        rows: number of rows; None: the recipe's. A larger number never changes the earlier rows.
        access: access to models, for recipes that use any.

    Raises:
        InvalidRequest: ``CORPUS_RECIPE_INVALID``.
    """

    path: Path
    rows: int | None = None
    access: ModelAccess | None = None
    name: str = STAGE
    version: int = VERSION

    def parameters(self) -> dict[str, Any]:
        """Return the recipe without the fields that do not affect the rows."""
        unused = OF_MODELS if not self.recipe.models else {"budget", "prices", "terms"}
        return self.recipe.model_dump(mode="json", exclude=set(unused)) | {"rows": self._count}

    def inputs(self) -> dict[str, str]:
        """Return the digest of each file that a column reads."""
        self._samplers  # noqa: B018 - raises the error that names a missing file
        if self.recipe.models:
            self._model_rows.pools()  # the same
        columns = self.recipe.columns
        files = [column.file for column in columns if isinstance(column, LinesColumn | RowsColumn)]
        files += [column.seeds for column in columns if isinstance(column, SelfInstructColumn)]
        for file in files:
            refuse_retracted(self.path.parent / file)
        digests = {file: digest_file(self.path.parent / file) for file in files}
        for column in self.recipe.columns:
            if isinstance(column, UnitColumn) and (index := read_index(self.path.parent / column.path)):
                digests[column.path] = index.digest()
        if self.recipe.models:
            rules = rules_digests(self.recipe.redact, self.path.parent)
            digests |= {f"rules {name}": digest for name, digest in rules.items()}
            digests |= {f"eval {number}": content.digest() for number, content in enumerate(self._model_rows.evals())}
        return digests

    def plan(self, target: Path) -> list[PlannedRequests]:
        """Return the largest number of requests to each model; nothing is sent."""
        if not self.recipe.models:
            return []
        endpoints = self._model_rows.endpoints()
        return plan_requests(self.recipe, endpoints, self._samplers, self._count, target / RESPONSES)

    def run(self, target: Path, key: str, max_bytes: int = MAX_SHARD_BYTES) -> ShardIndex:
        """Write the rows.

        Raises:
            InvalidRequest: ``CORPUS_RECIPE_INVALID``: the recipe makes something that is not a training row.
                ``CORPUS_OUTPUT_EMPTY``.
        """
        mark = stage_mark(self.name, key)
        report = RunReport()
        with (
            claimed(target, is_folder=True),
            StageWriter(target, stage=self.name, key=key, max_bytes=max_bytes) as writer,
        ):
            for made in self._rows(target, report):
                made.provenance.stages = [mark]
                if made.line is None:
                    writer.write_row(made.row, made.provenance)
                else:
                    writer.write_line(made.line, msgspec.json.encode(made.provenance))
            if report.dropped:
                writer.report["dropped"] = dict(sorted(report.dropped.items()))
            if report.stopped:
                # The bytes differ from those of the whole recipe, so the key must differ too.
                writer.key = stage_key(self.name, self.version, {"rows": writer.rows}, {"whole": key})
                writer.report["stopped"] = f"budget.{report.stopped.bound}"
            elif not writer.rows:
                raise no_rows(report)
        if report.stopped:
            raise report.stopped.error(report.spent)
        assert writer.index
        return writer.index

    def _rows(self, target: Path, report: RunReport) -> Iterator[MadeRow]:
        if self.recipe.models:
            yield from self._model_rows.make(target, self._count, report)
            return
        samplers, maker = list(self._samplers.items()), RowMaker(self.recipe, self.path)
        for index in range(self._count):
            values: dict[str, Any] = {}
            for name, sampler in samplers:
                values[name] = sampler(index, values)
            yield maker.make(index, values)

    @property
    def _count(self) -> int:
        return self.rows or self.recipe.rows

    @cached_property
    def recipe(self) -> GenerationRecipe:
        """The recipe.

        Raises:
            InvalidRequest: ``CORPUS_RECIPE_INVALID``.
        """
        return read_generation(self.path)

    @cached_property
    def _samplers(self) -> dict[str, Sampler]:
        recipe, folder = self.recipe, self.path.parent
        drawn = (column for column in recipe.columns if not isinstance(column, ModelColumn))
        return {column.name: sampler_of(column, recipe.seed, folder) for column in drawn}

    @property
    def _model_rows(self) -> ModelRows:
        assert self.access, "a recipe with models needs access to them"
        maker = RowMaker(self.recipe, self.path)
        return ModelRows(self.recipe, self.path.parent, self.access, self._samplers, maker.make)
