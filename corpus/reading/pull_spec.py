"""Description of a pull: the section ``pull`` of a recipe, or the options of `mens corpus pull`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from corpus.filters.redactors import PATTERNS
from shared.errors import Code, InvalidRequest
from shared.hashing import digest_json

PAGE_ROWS = 5000
_DURATION = re.compile(r"(\d{1,9})\s*(s|m|h|d)?")
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400, None: 1}
_STATEMENT = re.compile(r"(?:\s|--[^\n]*\n|/\*.*?\*/)*(?:select|with|values|table)\b", re.IGNORECASE | re.DOTALL)


class PullSpec(BaseModel):
    """A query on a table, and the template that turns its rows into training rows. It never contains an address."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    source: str = Field(min_length=1, description="Name of the source; its address is in MENS_CORPUS_SOURCES.")
    sql: str = Field(min_length=1, description="One SELECT, or the path of a .sql file with it.")
    key: Annotated[list[str], Field(min_length=1, description="Columns that identify a row: unique, never null.")]
    watermark: str | None = Field(
        None, description="Column with the time of the last change; without it, each pull reads all rows."
    )
    lag: float = Field(
        600, ge=0, description="Rows newer than this are left for the next pull; for example 90, 10m, 2h or 1d."
    )
    row: dict[str, Any] = Field(
        default={"prompt": "{{ item.prompt }}", "response": "{{ item.response }}"},
        min_length=1,
        description="The training row, with {{ item.column }} where a column's value goes.",
    )
    redact: list[str] = Field(default=[PATTERNS], description="Redactors, applied before anything is written.")
    limit: int = Field(PAGE_ROWS, ge=1, le=100_000, description="Rows per page.")
    license: str | None = Field(None, description="Licence of the rows, for their provenance.")

    @field_validator("key", "redact", mode="before")
    @classmethod
    def _accept_one(cls, value: object) -> object:
        return [value] if isinstance(value, str) else value

    @field_validator("lag", mode="before")
    @classmethod
    def _parse_lag(cls, value: object) -> object:
        if not isinstance(value, str):
            return value
        match = _DURATION.fullmatch(value.strip())
        if not match:
            raise ValueError("write a time such as 90s, 10m, 2h or 1d")
        return int(match[1]) * _SECONDS[match[2]]

    @classmethod
    def of(cls, section: Mapping[str, Any], folder: Path = Path()) -> Self:
        """Check a recipe's section. A path of ``sql`` is relative to the recipe's folder.

        Raises:
            InvalidRequest: ``CORPUS_RECIPE_INVALID`` with the key as ``param``; ``CORPUS_QUERY_INVALID``: not one SELECT.
        """
        try:
            spec = cls.model_validate(dict(section))
        except ValidationError as error:
            fault = error.errors(include_input=False, include_url=False)[0]
            name = ".".join(["pull", *map(str, fault["loc"])])
            raise InvalidRequest(
                Code.CORPUS_RECIPE_INVALID,
                f"`{name}`: {fault['msg'].removeprefix('Value error, ')}.",
                remedy=f"The keys are {', '.join(cls.model_fields)}.",
                param=name,
            ) from None
        return spec.model_copy(update={"sql": _statement(spec.sql, folder)})

    @property
    def order(self) -> list[str]:
        """Columns that rows are ordered by: the watermark, then the key."""
        return [self.watermark, *self.key] if self.watermark else list(self.key)

    def digest(self, rules: Mapping[str, str]) -> str:
        """Return the SHA-256 of everything that determines the rows and how they are written.

        Args:
            rules: digest of each file of redaction rules.
        """
        fields = self.model_dump(include={"source", "sql", "key", "watermark", "row", "redact", "license"})
        return digest_json(fields | {"rules": dict(rules)} if rules else fields)


def _statement(written: str, folder: Path) -> str:
    if written.strip().endswith(".sql") and "\n" not in written.strip():
        path = folder / written.strip()
        if not path.is_file():
            remedy = "Name an existing .sql file, or write the SELECT itself."
            message = f"The file {path} does not exist."
            raise InvalidRequest(Code.CORPUS_QUERY_INVALID, message, remedy=remedy, param="pull.sql")
        written = path.read_text()
    statement = written.strip().removesuffix(";").rstrip()
    if not _STATEMENT.match(statement):
        message = "The query is not a SELECT."
        remedy = "Write a single SELECT that returns one row per training row; pulls never write."
        raise InvalidRequest(Code.CORPUS_QUERY_INVALID, message, remedy=remedy, param="pull.sql")
    return statement
