"""The data files of presets, domain profiles and ladders, typed: who reads them is `shared/presets.py`.

Values and bounds are by field path of the contract. The numbers are the original system's; where one of them could
never be used, the row says so in its note.
"""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from typing import Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict

Values = dict[str, Any]
"""Values by field path."""


class _Frozen(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


F = TypeVar("F", bound=_Frozen)


class Preset(_Frozen):
    """A named row of hyper-parameters."""

    id: str
    aliases: tuple[str, ...] = ()
    values: Values


class PresetFile(_Frozen):
    schema_version: Literal[1]
    default_base_model: str
    default_preset: str
    presets: tuple[Preset, ...]


class DomainProfile(_Frozen):
    """What a domain's data wants."""

    id: str
    note: str = ""
    values: Values


class DomainFile(_Frozen):
    schema_version: Literal[1]
    defaults: Values
    profiles: tuple[DomainProfile, ...]


class Bound(_Frozen):
    """A closed interval; an absent end is open."""

    min: float | None = None
    max: float | None = None

    def clamp(self, value: Any) -> Any:
        """The nearest value within; numbers keep their type."""
        if self.min is not None and value < self.min:
            return type(value)(self.min)
        if self.max is not None and value > self.max:
            return type(value)(self.max)
        return value


class AutoRow(_Frozen):
    id: str
    max_vram_mb: int
    values: Values


class SizeRow(_Frozen):
    """Bounds for models of at least so many parameters, on cards of at most so much memory."""

    id: str
    min_parameters: int
    max_vram_mb: int | None = None
    bounds: dict[str, Bound]


class SmallDataset(_Frozen):
    below_rows: int
    bounds: dict[str, Bound]


class LadderFile(_Frozen):
    schema_version: Literal[1]
    auto_common: Values
    auto: tuple[AutoRow, ...]
    sizes: tuple[SizeRow, ...]
    small_dataset: SmallDataset


def _load(name: str, kind: type[F]) -> F:
    return kind.model_validate_json(files("shared").joinpath("data", name).read_bytes())


@cache
def preset_file() -> PresetFile:
    """`data/presets.json`."""
    return _load("presets.json", PresetFile)


@cache
def domain_file() -> DomainFile:
    """`data/domain_profiles.json`."""
    return _load("domain_profiles.json", DomainFile)


@cache
def ladder_file() -> LadderFile:
    """`data/gpu_ladder.json`."""
    return _load("gpu_ladder.json", LadderFile)
