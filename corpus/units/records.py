"""The line of a unit in a shard, and the reasons why files and units are left out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from enum import StrEnum
from operator import attrgetter
from pathlib import Path
from typing import Any, Self

import msgspec

from corpus.provenance import Provenance, content_id
from corpus.shards import read_lines
from shared.checkers.unit import Unit, UnitKind


class LeftOut(StrEnum):
    """Reasons for leaving out a file, or a unit; the counts are in the report of the stage."""

    EMPTY = "empty"
    GENERATED = "generated"
    LONE_SURROGATE = "lone_surrogate"
    MINIFIED = "minified"
    NOT_A_FILE = "not_a_file"
    NOT_COMPILING = "not_compiling"
    NOT_ELIGIBLE = "not_eligible"
    NOT_UTF8 = "not_utf8"
    SECRET = "secret"  # noqa: S105
    SYMLINK = "symlink"
    TEST_HELPER = "test_helper"
    TIME_LIMIT = "time_limit"
    TOO_COMPLEX = "too_complex"
    TOO_LONG = "too_long"
    UNREADABLE = "unreadable"
    VENDORED_FOLDER = "vendored_folder"


class UnitRow(msgspec.Struct, kw_only=True, frozen=True):
    """A unit as a stage writes it; the remaining attributes are those of :class:`shared.checkers.unit.Unit`.

    Attributes:
        id: the same for the same unit in every file and corpus.
        path: path of its file, relative to the repository's root or to the named folder.
        richness: as :attr:`shared.checkers.unit.Unit.richness`.
        staleness: 0 to 3, one for each 90 days between the last commits of a document and of its repository.
        checks: findings about the unit.
    """

    id: str
    kind: UnitKind
    name: str
    language: str
    path: str
    first_line: int
    last_line: int
    signature: str
    docstring: str
    head_lines: int
    code: str
    context: str
    uses: tuple[str, ...]
    constructs: dict[str, int]
    size: int
    richness: float
    ast_hash: str
    difficulty: int
    staleness: int = 0
    checks: dict[str, Any] = {}

    @classmethod
    def of(cls, unit: Unit, path: str, staleness: int = 0) -> Self:
        """Return the row of a unit of a file that compiles."""
        fields = dict(zip(_UNIT_FIELDS, _unit_values(unit), strict=True))
        fields["constructs"] = dict(sorted(unit.constructs.items()))
        checks: dict[str, Any] = {"compiles": True} if unit.kind not in ("section", "block") else {}
        key = content_id([unit.language, unit.kind, unit.name, unit.context, unit.code])
        return cls(id=key, path=path, richness=unit.richness, staleness=staleness, checks=checks, **fields)

    @property
    def texts(self) -> tuple[str, ...]:
        """Every string of the unit that a row may contain."""
        return (self.name, self.path, self.signature, self.docstring, self.code, self.context, *self.uses)


_UNIT_FIELDS = tuple(name for name in UnitRow.__struct_fields__ if name in Unit.__slots__)
_unit_values = attrgetter(*_UNIT_FIELDS)
_decode_unit = msgspec.json.Decoder(UnitRow).decode
_decode_provenance = msgspec.json.Decoder(Provenance).decode


def read_units(shards: Sequence[Path]) -> Iterator[tuple[UnitRow, Provenance]]:
    """Yield the units of shards, each with its provenance."""
    for line, sources in read_lines(shards):
        assert sources
        yield _decode_unit(line), _decode_provenance(sources)
