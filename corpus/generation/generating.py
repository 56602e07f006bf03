"""Stage ``generate``: columns → training rows, marked as synthetic. Rows with answers of models are made in `model_rows.py`."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import msgspec

from corpus.claims import claimed
from corpus.filters.redactors import rules_digests
from corpus.generation.asking import RowDropped
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
from corpus.generation.samplers import Sampler, sampler_of
from corpus.keys import stage_key, stage_mark
from corpus.mixing.mix_file import recipe_invalid
from corpus.provenance import Provenance
from corpus.shards import MAX_SHARD_BYTES, ShardIndex, StageWriter, read_index
from corpus.sources import refuse_retracted
from corpus.verdicts import VerdictCode
from shared.datasets.preferences.rows import parse_pair
from shared.datasets.row_validation import decode_line
from shared.datasets.rows import Labels, RowCode, RowError
from shared.errors import MensError
from shared.graders.templates import parse_path, render, value_at
from shared.hashing import digest_file

STAGE = "generate"
VERSION = 3
"""Increase this when the same recipe would give different bytes."""
PAIR_KEYS = frozenset({"chosen", "preferred_output"})
"""Keys of preference rows; each such row has one of them."""
_LABELS = frozenset(Labels.__struct_fields__)


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
        self._samplers  # noqa: B018 - names a file that is missing
        if self.recipe.models:
            self._model_rows.pools()  # likewise
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
        """Return the largest number of requests to each model; nothing is sent.

        Raises:
            InvalidRequest: ``CORPUS_TERMS_UNSTATED``.
        """
        if not self.recipe.models:
            return []
        endpoints = self._model_rows.endpoints()
        return plan_requests(self.recipe, endpoints, self._samplers, self._count, target / RESPONSES)

    def run(self, target: Path, key: str, max_bytes: int = MAX_SHARD_BYTES) -> ShardIndex:
        """Write the rows.

        Raises:
            NotFound: ``CORPUS_SOURCE_MISSING``: a file of a column.
            InvalidRequest: ``CORPUS_RECIPE_INVALID``: the recipe makes something that is not a training row.
                ``CORPUS_TERMS_UNSTATED``, ``CORPUS_MODEL_REFUSED``, ``CORPUS_OUTPUT_EMPTY``.
            Conflict: ``CORPUS_BUDGET_SPENT``: raised after the rows made within the budget were written.
            Unavailable: ``CORPUS_MODEL_UNAVAILABLE``.
        """
        mark = stage_mark(self.name, key)
        report = RunReport()
        with (
            claimed(target, is_folder=True),
            StageWriter(target, stage=self.name, key=key, max_bytes=max_bytes) as writer,
        ):
            for made in self._rows(target, report):
                made.provenance.stages = [mark]
                writer.write_row(made.row, made.provenance)
            if report.dropped:
                writer.report["dropped"] = dict(sorted(report.dropped.items()))
            if report.stopped:
                # The bytes differ from those of the whole recipe, so the key does too.
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
        for index in range(self._count):
            values: dict[str, Any] = {}
            for name, sampler in self._samplers.items():
                values[name] = sampler(index, values)
            yield self._made(index, values)

    def _made(self, index: int, values: Mapping[str, Any]) -> MadeRow:
        row = {key: _filled(value, values, keeps_type=key in _LABELS) for key, value in self.recipe.row.items()}
        row.setdefault("origin", "synthetic")
        line = msgspec.json.encode(row)
        try:
            (parse_pair if PAIR_KEYS & row.keys() else decode_line)(line)
        except RowError as error:
            if error.code is RowCode.ROW_TOO_LONG and self.recipe.models:
                # What a model writes has any length, and ends no run.
                raise RowDropped(VerdictCode.TOO_LONG) from None
            raise recipe_invalid(
                f"Row {index} is not a training row: {error.reason} ({error.code}).", "row", None
            ) from None
        locator = {"recipe": self.path.name, "index": index}
        # Rows of models pass redactors later.
        is_redacted = bool(self.recipe.models and self.recipe.redact)
        sha256 = None if is_redacted else hashlib.sha256(line).hexdigest()
        source = f"generate:{self.path.stem}"
        provenance = Provenance(id="", source=source, locator=locator, content_sha256=sha256)
        for unit in (values[column.name] for column in self.recipe.columns if isinstance(column, UnitColumn)):
            provenance.parents = [*provenance.parents, unit["id"]]
            provenance.license = provenance.license or unit["source"].get("license")
        return MadeRow(row, provenance)

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
        return ModelRows(self.recipe, self.path.parent, self.access, self._samplers, self._made)


def _filled(template: Any, values: Mapping[str, Any], *, keeps_type: bool) -> Any:
    """Return a template filled in with its values; a label that consists of one placeholder keeps the type of its
    value.
    """
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
