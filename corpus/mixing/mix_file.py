"""A mix file: YAML with the original system's keys, and the keys that Mens adds."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, FiniteFloat

from corpus.mixing.record_formats import RecordFormat
from shared.datasets.duplicates import SIMILAR
from shared.errors import Code, InvalidRequest
from shared.yaml_document import Model, read_document

Share = Annotated[FiniteFloat, Field(gt=0, lt=1)]
DEFAULT_SEED = 42
MAX_WEIGHT = 1_000


class MixModel(BaseModel):
    """Base of the parts of a mix file: unknown keys are errors."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class MixSource(MixModel):
    """A file of rows, or a folder of them.

    Attributes:
        path: from the folder of the mix file: a JSONL file, the folder of a stage, or a folder of JSONL files.
        weight: number of copies of each row. A fraction is a share of the rows: 0.25 keeps a quarter of them. 0 or less
            skips the source.
        sample_rate: share of the rows that are read at all.
        record_format: how lines become rows; null for training rows.
        optional: whether the source may be missing or empty.
        max_share: largest share of the output.
    """

    path: str = Field(min_length=1)
    weight: FiniteFloat = Field(1.0, le=MAX_WEIGHT)
    record_format: RecordFormat | None = None
    optional: bool = False
    sample_rate: Annotated[FiniteFloat, Field(gt=0, le=1)] | None = None
    max_share: Share | None = None


class Holdout(MixModel):
    """Rows that become the validation file.

    Attributes:
        rows: largest number of its rows.
        by: how rows are grouped; a group is held out as a whole or not at all: ``source_group`` (repository, table's
            key or file, from the provenance), ``path`` (the file in a repository), or a label of the rows.
    """

    rows: int = Field(ge=1)
    by: Literal["source_group", "path", "category", "lane", "task_family"] = "source_group"


class Dedup(MixModel):
    """Duplicates that are left out.

    Attributes:
        exact: rows that are equal apart from case and white space.
        near: minimum similarity of near duplicates; null keeps them.
    """

    exact: bool = True
    near: Annotated[FiniteFloat, Field(ge=SIMILAR, le=1)] | None = None


class Decontaminate(MixModel):
    """Evals whose items must not be in the output.

    Attributes:
        files: files of items, as JSONL or a JSON list.
        policies: whether to include the tenant's evals at the installation, and the files that its policies name.
    """

    files: list[str] = []
    policies: bool = False


class Mix(MixModel):
    """A mix: the sources, and the file that they are mixed into."""

    output: str = Field(min_length=1)
    seed: int = Field(DEFAULT_SEED, ge=0, lt=1 << 64)
    max_rows: int | None = Field(None, ge=1)
    include_lanes: list[str] | None = None
    exclude_lanes: list[str] = []
    sources: list[MixSource] = Field(min_length=1)
    holdout: Holdout | None = None
    dedup: Dedup = Dedup()
    decontaminate: Decontaminate | None = None


def read_mix(path: Path) -> Mix:
    """Read a mix file.

    Raises:
        InvalidRequest: ``CORPUS_RECIPE_INVALID``, with the path of the field as ``param`` and its line in ``details``.
    """
    return read_recipe_file(path, Mix, "mix")


def read_recipe_file(path: Path, model: type[Model], noun: str) -> Model:
    """Read a file of a corpus that a person writes.

    Raises:
        InvalidRequest: as :func:`read_mix`.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise recipe_invalid(f"{path} is not UTF-8.", "", None) from None
    return read_document(text, model, noun, recipe_invalid)


def recipe_invalid(message: str, param: str, line: int | None) -> InvalidRequest:
    """Return the error of a mix file or a recipe."""
    where = f"line {line}: " if line else ""
    return InvalidRequest(
        Code.CORPUS_RECIPE_INVALID,
        f"{where}{message}",
        remedy="docs/corpus.md has every field.",
        param=param or None,
        details={"line": line},
    )
