"""The data files of presets, domain profiles and ladders, typed; `shared/contract/presets.py` applies them.

Values and bounds are by field path of the contract. The numbers are the original system's; if a value could never be
used, the row's note says so.
"""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from typing import Any, Literal, TypeVar

from pydantic import field_validator

from shared.contract.values import ContractValue

Values = dict[str, Any]
"""Values by field path."""
SCHEDULE_FIELDS = frozenset({"exec.epochs", "exec.warmup_steps"})
"""Fields that may depend on the number of rows."""


F = TypeVar("F", bound=ContractValue)


class Preset(ContractValue):
    """A named row of hyper-parameters."""

    id: str
    aliases: tuple[str, ...] = ()
    values: Values


class PresetFile(ContractValue):
    """All presets."""

    schema_version: Literal[1]
    default_base_model: str
    default_preset: str
    presets: tuple[Preset, ...]


class DomainProfile(ContractValue):
    """Values for data of one domain."""

    id: str
    note: str = ""
    values: Values


class DomainFile(ContractValue):
    """All domain profiles, and what they have in common."""

    schema_version: Literal[1]
    defaults: Values
    profiles: tuple[DomainProfile, ...]


class Bound(ContractValue):
    """A closed interval; an absent end is open."""

    min: float | None = None
    max: float | None = None

    def clamp(self, value: Any) -> Any:
        """Return the value of the interval that is nearest to ``value``; numbers keep their type."""
        if self.min is not None and value < self.min:
            return type(value)(self.min)
        if self.max is not None and value > self.max:
            return type(value)(self.max)
        return value


class AutoRow(ContractValue):
    """Values of the preset ``auto`` for cards with this much memory (MiB).

    Attributes:
        max_vram_mb: the original's bound; a card with less takes a smaller row.
        min_vram_mb: the smallest memory of the row's cards, where the original's bound is above that of any card.
    """

    id: str
    max_vram_mb: int
    min_vram_mb: int | None = None
    values: Values


class SizeRow(ContractValue):
    """Bounds for models with at least this many parameters, on cards with at most this much memory."""

    id: str
    min_parameters: int
    max_vram_mb: int | None = None
    bounds: dict[str, Bound]


class SmallDataset(ContractValue):
    """Bounds for files with fewer than ``below_rows`` rows."""

    below_rows: int
    bounds: dict[str, Bound]

    # The number of rows is known only after the file was read, so settings for reading rows cannot depend on it.
    @field_validator("bounds")
    @classmethod
    def _bounds_the_schedule_only(cls, bounds: dict[str, Bound]) -> dict[str, Bound]:
        if other := bounds.keys() - SCHEDULE_FIELDS:
            raise ValueError(f"{min(other)} may not depend on the number of rows")
        return bounds


class LadderFile(ContractValue):
    """Values and bounds by the card's memory, the model's size and the number of rows."""

    schema_version: Literal[1]
    auto_common: Values
    auto: tuple[AutoRow, ...]
    sizes: tuple[SizeRow, ...]
    small_dataset: SmallDataset


def _load(name: str, kind: type[F]) -> F:
    return kind.model_validate_json(files("shared.contract").joinpath("data", name).read_bytes())


@cache
def preset_file() -> PresetFile:
    """Return the content of `data/presets.json`."""
    return _load("presets.json", PresetFile)


@cache
def domain_file() -> DomainFile:
    """Return the content of `data/domain_profiles.json`."""
    return _load("domain_profiles.json", DomainFile)


@cache
def ladder_file() -> LadderFile:
    """Return the content of `data/gpu_ladder.json`."""
    return _load("gpu_ladder.json", LadderFile)
