"""Recipe of generated rows: columns that are drawn, filled in or written by a model, and the row made from them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from datetime import date
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, FiniteFloat, Tag, model_validator

from corpus.filters.redactors import PATTERNS
from corpus.generation.model_columns import (
    AnswerColumn,
    BackTranslateColumn,
    GenerationBudget,
    JudgeColumn,
    ModelColumn,
    PreferColumn,
    Price,
    SelfAlignColumn,
    SelfInstructColumn,
)
from corpus.mixing.mix_file import Decontaminate, Dedup, MixModel, read_recipe_file, recipe_invalid
from shared.checkers.unit import UnitKind
from shared.errors import MensError
from shared.graders.model_graders import judging_models
from shared.graders.templates import paths_of

MAX_ROWS = 10_000_000
MAX_NUMBER = 1e15
"""Largest number of a column; a float could not represent more digits exactly."""
Number = Annotated[FiniteFloat, Field(ge=-MAX_NUMBER, le=MAX_NUMBER)]
MAX_POISSON = 500
"""Largest mean: the number of steps of a draw grows with it."""


class _Column(MixModel):
    name: str = Field(pattern=r"^[a-z_][a-z0-9_]{0,63}$")


class CategoryColumn(_Column):
    """One of several values, drawn in proportion to their weights."""

    sampler: Literal["category"]
    values: dict[str, Annotated[FiniteFloat, Field(gt=0, le=MAX_NUMBER)]] | list[str] = Field(min_length=1)


class UniformColumn(_Column):
    """A number in a range whose ends are included; an integer without ``decimals``."""

    sampler: Literal["uniform"]
    low: Number
    high: Number
    decimals: int = Field(0, ge=0, le=9)

    @model_validator(mode="after")
    def _ordered(self) -> UniformColumn:
        if math.floor(self.high * 10**self.decimals) < math.ceil(self.low * 10**self.decimals):
            raise ValueError("there must be a number with these `decimals` between `low` and `high`")
        return self


class GaussianColumn(_Column):
    """A number around a mean."""

    sampler: Literal["gaussian"]
    mean: Number
    deviation: Number = Field(ge=0)
    decimals: int = Field(2, ge=0, le=9)


class PoissonColumn(_Column):
    """A count of events with a mean."""

    sampler: Literal["poisson"]
    mean: float = Field(gt=0, le=MAX_POISSON)


class DateColumn(_Column):
    """A day in a range whose ends are included, written as ``2026-11-27``."""

    sampler: Literal["date"]
    first: date
    last: date

    @model_validator(mode="after")
    def _ordered(self) -> DateColumn:
        if self.last < self.first:
            raise ValueError("`last` must not be before `first`")
        return self


class LinesColumn(_Column):
    """A line of a text file."""

    sampler: Literal["lines"]
    file: str


class RowsColumn(_Column):
    """A row of a JSONL file; templates name its keys: ``{{ item.ticket.title }}``."""

    sampler: Literal["rows"]
    file: str


class SequenceColumn(_Column):
    """The number of the row, in steps."""

    sampler: Literal["sequence"]
    start: int = 0
    step: int = 1


class UnitColumn(_Column):
    """A unit of ``mens corpus extract``; every unit is used once before any is used again. Templates name its keys:
    ``{{ item.unit.code }}``.

    Attributes:
        path: folder of the units.
        kinds: kinds of the units that are used; all kinds without it.
    """

    sampler: Literal["unit"]
    path: str
    kinds: list[UnitKind] | None = Field(None, min_length=1)


class TemplateColumn(_Column):
    """A text filled in with values of earlier columns: ``{{ item.product }}``."""

    template: str


def _kind(value: Any) -> str:
    fields = value if isinstance(value, Mapping) else value.__dict__
    return "template" if "template" in fields else str(fields.get("method", fields.get("sampler")))


ColumnSpec = Annotated[
    Annotated[CategoryColumn, Tag("category")]
    | Annotated[UniformColumn, Tag("uniform")]
    | Annotated[GaussianColumn, Tag("gaussian")]
    | Annotated[PoissonColumn, Tag("poisson")]
    | Annotated[DateColumn, Tag("date")]
    | Annotated[LinesColumn, Tag("lines")]
    | Annotated[RowsColumn, Tag("rows")]
    | Annotated[SequenceColumn, Tag("sequence")]
    | Annotated[TemplateColumn, Tag("template")]
    | Annotated[UnitColumn, Tag("unit")]
    | Annotated[AnswerColumn, Tag("answer")]
    | Annotated[JudgeColumn, Tag("judge")]
    | Annotated[PreferColumn, Tag("prefer")]
    | Annotated[BackTranslateColumn, Tag("back_translate")]
    | Annotated[SelfInstructColumn, Tag("self_instruct")]
    | Annotated[SelfAlignColumn, Tag("self_align")],
    Discriminator(_kind),
]


OF_MODELS = frozenset({"terms", "budget", "prices", "redact", "dedup", "decontaminate"})
"""Fields of a recipe that need a column with a method."""


class GenerationRecipe(MixModel):
    """A recipe of generated rows.

    Attributes:
        rows: number of rows to make; filters may leave out some that contain answers of models.
        columns: columns in order; a template may use only columns before it.
        row: a training row whose strings are templates.
        terms: the statement that the providers of remote models permit training on their answers.
        prices: prices by model name.
        redact: redactors of personal data.
        dedup: which rows that equal or resemble earlier ones are left out.
        decontaminate: evals whose items must not be in a row.
    """

    rows: int = Field(ge=1, le=MAX_ROWS)
    seed: int = 0
    columns: list[ColumnSpec] = Field(min_length=1)
    row: dict[str, Any] = Field(min_length=1)
    terms: Literal["permits_training"] | None = None
    budget: GenerationBudget = GenerationBudget()
    prices: dict[str, Price] = {}
    redact: list[str] = [PATTERNS]
    dedup: Dedup = Dedup()
    decontaminate: Decontaminate | None = None

    @property
    def model_columns(self) -> list[ModelColumn]:
        """The columns that a model writes."""
        return [column for column in self.columns if isinstance(column, ModelColumn)]

    @property
    def models(self) -> list[str]:
        """The models that receive requests, in the order of the columns."""
        names = [column.model for column in self.model_columns]
        judges = [name for column in self.model_columns for grader in column.graders for name in judging_models(grader)]
        return list(dict.fromkeys(names + judges))


def read_generation(path: Path) -> GenerationRecipe:
    """Read a recipe.

    Raises:
        InvalidRequest: ``CORPUS_RECIPE_INVALID``, with the path of the field as ``param``.
    """
    recipe = _with_prompts(read_recipe_file(path, GenerationRecipe, "recipe"))
    names: list[str] = []
    for number, column in enumerate(recipe.columns):
        place = f"columns.{number}"
        if column.name in names:
            raise recipe_invalid(f"Two columns have the name {column.name}.", f"{place}.name", None)
        templates = (
            column.templates if isinstance(column, ModelColumn) else {"template": getattr(column, "template", "")}
        )
        for field, template in templates.items():
            _check(template, names, f"{place}.{field}")
        names.append(column.name)
    for place, template in strings_of(recipe.row, "row"):
        _check(template, names, place)
    _check_models(recipe)
    return recipe


def _check_models(recipe: GenerationRecipe) -> None:
    """Raise an error if a field has no effect: a model name misspelt in `prices` would leave the budget without that
    price.
    """
    if unused := sorted(recipe.model_fields_set & OF_MODELS) if not recipe.models else []:
        raise recipe_invalid(f"`{unused[0]}` needs a column with a `method`; no column has one.", unused[0], None)
    if unknown := sorted(set(recipe.prices) - set(recipe.models)):
        message = f"prices.{unknown[0]}: no column uses this model; the models used are {', '.join(recipe.models)}."
        raise recipe_invalid(message, f"prices.{unknown[0]}", None)
    if recipe.budget.money is not None and (free := [name for name in recipe.models if name not in recipe.prices]):
        message = f"budget.money needs the price of each model; {free[0]} has none in `prices`."
        raise recipe_invalid(message, "budget.money", None)


def _with_prompts(recipe: GenerationRecipe) -> GenerationRecipe:
    """Return the recipe with the row's prompt in each column that does not have its own."""
    prompt = recipe.row.get("prompt")
    columns: list[Any] = []
    for number, column in enumerate(recipe.columns):
        asks_row = isinstance(column, AnswerColumn | PreferColumn) and column.prompt is None
        if asks_row and not isinstance(prompt, str):
            message = "A column without `prompt` uses the row's prompt, but the row has none."
            raise recipe_invalid(message, f"columns.{number}.prompt", None)
        columns.append(column.model_copy(update={"prompt": prompt}) if asks_row else column)
    return recipe.model_copy(update={"columns": columns})


def strings_of(value: Any, place: str) -> Iterator[tuple[str, str]]:
    """Yield the strings in a value, each with its path."""
    if isinstance(value, str):
        yield place, value
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from strings_of(item, f"{place}.{key}")
    elif isinstance(value, list):
        for number, item in enumerate(value):
            yield from strings_of(item, f"{place}.{number}")


def _check(template: str, names: list[str], place: str) -> None:
    try:
        paths = paths_of(template)
    except MensError as error:
        raise recipe_invalid(f"{place}: {error.message}", place, None) from None
    for path in paths:
        if path[0] != "item" or len(path) < 2 or path[1] not in names:
            message = (
                f"{place} uses {'.'.join(map(str, path))}, which is not an earlier column: "
                f"{', '.join(names) or 'none'}."
            )
            raise recipe_invalid(message, place, None)
