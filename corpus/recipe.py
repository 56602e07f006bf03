"""A recipe: one YAML file that names the stages of a corpus, from its sources to the training file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic import Field

from corpus.mixing.mix_file import Mix, MixModel, MixSource, read_recipe_file, recipe_invalid

PULLED, PULLED_ROWS, UNITS, PAIRS = "pulled", "pulled.jsonl", "units", "pairs"
GENERATED, FILTERED = "generated", "filtered"
"""Names of folders in the work folder: pulled rows with all their versions, the newest of each, units, rows made of
units, generated rows, and the rows of each source of the mix after the filters.
"""


class ExtractSection(MixModel):
    """The files that units are taken from.

    Attributes:
        paths: files and folders, relative to the recipe's folder.
        language: language, as in ``mens corpus extract --language``.
    """

    paths: list[str] = Field(min_length=1)
    language: list[str] = Field(min_length=1)
    license: str | None = None


class PairsSection(MixModel):
    """The rules that make rows from units; all rules if none is named."""

    rules: list[str] = []


class GenerateSection(MixModel):
    """Rows generated from columns, without a model.

    Attributes:
        recipe: recipe file of the columns, relative to the recipe's folder.
        rows: number of rows, instead of the number in that file.
    """

    recipe: str = Field(min_length=1)
    rows: int | None = Field(None, ge=1)


class FiltersSection(MixModel):
    """Filters of the rows of all sources of the mix.

    Attributes:
        secrets: whether rows that contain a secret are left out.
        personal_data: redactors, in order, as in a pull's ``redact``.
    """

    secrets: bool = True
    personal_data: list[str] = []


class RecipeMix(Mix):
    """The mix of a recipe. If it names no sources, it takes the rows of all stages."""

    sources: list[MixSource] = []


class CorpusRecipe(MixModel):
    """A recipe.

    Attributes:
        work: folder of the stages, relative to the recipe's folder.
        pull: a table as a source (``reading/pull_spec.py:PullSpec``).
        extract: files as a source; their units become rows by ``pairs``.
        generate: rows from columns as a source.
        filters: filters of the rows of all sources.
        mix: the mix that makes the training file.
    """

    work: str = Field("corpus", min_length=1)
    pull: dict[str, Any] | None = None
    extract: ExtractSection | None = None
    pairs: PairsSection = PairsSection()
    generate: GenerateSection | None = None
    filters: FiltersSection | None = None
    mix: RecipeMix

    def mix_with_sources(self) -> Mix:
        """Return the mix, with the stages' rows as sources if it names none."""
        paths = [f"{self.work}/{PULLED_ROWS}"] if self.pull is not None else []
        paths += [f"{self.work}/{PAIRS}"] if self.extract else []
        paths += [f"{self.work}/{GENERATED}"] if self.generate else []
        sources = self.mix.sources or [MixSource(path=path) for path in paths]
        return Mix.model_validate(self.mix.model_dump() | {"sources": [source.model_dump() for source in sources]})


def read_recipe(path: Path) -> CorpusRecipe:
    """Read a recipe.

    Raises:
        InvalidRequest: ``CORPUS_RECIPE_INVALID``, with the path of the field as ``param`` and its line in ``details``.
    """
    recipe = read_recipe_file(path, CorpusRecipe, "recipe")
    if recipe.pull is None and recipe.extract is None and recipe.generate is None and not recipe.mix.sources:
        raise recipe_invalid(
            "The recipe has no source: name `pull`, `extract`, `generate` or `mix.sources`.", "mix.sources", None
        )
    return recipe
