"""Presets, domain profiles and the size ladder: who decides a field that the caller left open.

    explicit  >  domain  >  ladder  >  preset  >  default

- **preset**: a named row of `data/presets.json`, or ``auto``: the largest row of `data/gpu_ladder.json` whose
  ``max_vram_mb`` the card has. A card reports a little less than its nominal memory, so 97 % of a row's figure is enough;
  an unknown or smaller memory takes the smallest row. Without a preset the contract's own defaults stand.
- **ladder**: bounds by the model's number of parameters and the card's memory. A row holds from ``min_parameters`` on, so
  14B, 32B and 72B are under the 9B row; below 400M there is none. Unknown memory counts as the least. A file under 500
  rows is under bounds too.
- **domain**: a profile of `data/domain_profiles.json` over that file's defaults; it names the adapter.
- **explicit**: what the caller set, null too. It is never changed.

Last, values that nobody asked for are lowered until they fit those around them: the mobile limits, and the loss window
within ``exec.seq_len``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from shared.contract import DeploymentTarget, FineTuneContract
from shared.errors import Code, ContractRejected
from shared.flat import contract_paths, parse_contract
from shared.gates import MOBILE_LIMITS
from shared.profiles import AutoRow, Bound, SizeRow, Values, domain_file, ladder_file, preset_file

AUTO = "auto"
DEFAULT_PRESET = "4080"
"""What a command line takes when nothing is named; `resolve_contract` itself takes none."""
VRAM_SLACK = 0.97

Source = Literal["explicit", "domain", "ladder", "preset", "default"]


class Resolution(BaseModel):
    """A complete contract, and who decided each of its fields."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    contract: FineTuneContract
    sources: dict[str, Source]


def preset_names() -> list[str]:
    """Every name of a preset: ids, aliases, and ``auto``."""
    return [name for preset in preset_file().presets for name in (preset.id, *preset.aliases)] + [AUTO]


def domain_names() -> list[str]:
    """Every domain."""
    return [profile.id for profile in domain_file().profiles]


def preset_values(name: str, vram_mb: int | None = None) -> Values:
    """A preset's values by field path.

    Raises:
        ContractRejected: ``UNKNOWN_PRESET`` with the nearest name; ``details["known"]`` lists them.
    """
    if name == AUTO:
        return ladder_file().auto_common | auto_row(vram_mb).values
    for preset in preset_file().presets:
        if name == preset.id or name in preset.aliases:
            return dict(preset.values)
    raise _unknown(Code.UNKNOWN_PRESET, "preset", name, preset_names())


def domain_values(name: str) -> Values:
    """A domain's values by field path, its file's defaults among them.

    Raises:
        ContractRejected: ``UNKNOWN_DOMAIN`` with the nearest name; ``details["known"]`` lists them.
    """
    for profile in domain_file().profiles:
        if name == profile.id:
            return domain_file().defaults | {"exec.adapter_tag": name} | profile.values
    raise _unknown(Code.UNKNOWN_DOMAIN, "domain", name, domain_names())


def auto_row(vram_mb: int | None) -> AutoRow:
    """The largest row that a card of so much memory has; the smallest when that is unknown or less."""
    rows = ladder_file().auto
    fitting = [row for row in rows if vram_mb is not None and vram_mb >= row.max_vram_mb * VRAM_SLACK]
    return max(fitting, key=lambda row: row.max_vram_mb) if fitting else rows[0]


def size_row(parameters: int | None, vram_mb: int | None) -> SizeRow | None:
    """The bounds for a model of so many parameters on a card of so much memory."""
    sizes = ladder_file().sizes
    reached = max((row.min_parameters for row in sizes if row.min_parameters <= (parameters or 0)), default=None)
    for row in sizes:
        if row.min_parameters == reached and (row.max_vram_mb is None or (vram_mb or 0) <= row.max_vram_mb):
            return row
    return None


def resolve_contract(
    explicit: Mapping[str, Any],
    *,
    preset: str | None = None,
    domain: str | None = None,
    parameters: int | None = None,
    vram_mb: int | None = None,
    rows: int | None = None,
) -> Resolution:
    """Complete a contract (see the module's docstring for who wins).

    Args:
        explicit: the caller's sections, see :func:`shared.flat.from_flat` for flat keys. A field two levels down, e.g.
            ``data.context_filter``, is taken whole.
        preset: a preset's name or ``auto``.
        domain: a domain profile's name.
        parameters: of the base model, counted from its config.
        vram_mb: memory of the card.
        rows: rows that are trained on.

    Raises:
        ContractRejected: ``CONTRACT_INVALID``, ``UNKNOWN_PRESET``, ``UNKNOWN_DOMAIN``.
    """
    fields = _Fields(parse_contract(explicit))
    if preset is not None:
        fields.take(preset_values(preset, vram_mb), "preset")
    for bounds in _ladder(parameters, vram_mb, rows):
        fields.bound(bounds)
    if domain is not None:
        fields.take(domain_values(domain), "domain")
    fields.bound(_fitting(fields.values))
    return Resolution(contract=parse_contract(fields.sections()), sources=fields.sources)


class _Fields:
    """The fields of a contract while they are decided, weakest source first; explicit ones stay."""

    def __init__(self, asked: FineTuneContract) -> None:
        dumped = asked.model_dump(mode="json")
        set_paths = _set_paths(asked)
        self.values: Values = {path: _at(dumped, path) for path in contract_paths()}
        self.sources: dict[str, Source] = {path: "explicit" if path in set_paths else "default" for path in self.values}

    def take(self, values: Values, source: Source) -> None:
        for path, value in values.items():
            if self.sources[path] != "explicit":
                self.values[path], self.sources[path] = value, source

    def bound(self, bounds: Mapping[str, Bound]) -> None:
        clamped = {path: bound.clamp(self.values[path]) for path, bound in bounds.items()}
        self.take({path: value for path, value in clamped.items() if value != self.values[path]}, "ladder")

    def sections(self) -> dict[str, Any]:
        sections: dict[str, Any] = {}
        for path, value in self.values.items():
            section, _, field = path.rpartition(".")
            (sections.setdefault(section, {}) if section else sections)[field] = value
        return sections


def _set_paths(asked: FineTuneContract) -> set[str]:
    """The paths that the caller set: a section that he named alone sets nothing."""
    paths = set()
    for name in asked.model_fields_set:
        part = getattr(asked, name)
        paths |= {f"{name}.{field}" for field in part.model_fields_set} if isinstance(part, BaseModel) else {name}
    return paths


def _at(dumped: dict[str, Any], path: str) -> Any:
    section, _, field = path.rpartition(".")
    return dumped[section][field] if section else dumped[field]


def _ladder(parameters: int | None, vram_mb: int | None, rows: int | None) -> Iterable[dict[str, Bound]]:
    if size := size_row(parameters, vram_mb):
        yield size.bounds
    small = ladder_file().small_dataset
    if rows is not None and rows < small.below_rows:
        yield small.bounds


def _fitting(values: Values) -> dict[str, Bound]:
    """Upper limits that keep open fields usable with the decided ones."""
    limits = MOBILE_LIMITS if values["artifact.deployment_target"] == DeploymentTarget.MOBILE_EDGE else {}
    seq_len = min(values["exec.seq_len"], limits.get("exec.seq_len", values["exec.seq_len"]))
    return {path: Bound(max=limit) for path, limit in {**limits, "exec.qlora_ce_last_k": seq_len}.items()}


def _unknown(code: Code, what: str, name: str, known: list[str]) -> ContractRejected:
    near = get_close_matches(name.lower(), known, n=1, cutoff=0.5)
    hint = f"Did you mean {near[0]}?" if near else f"Use one of: {', '.join(known)}."
    details = {"known": known, "nearest": near[0] if near else None}
    return ContractRejected(code, f"There is no {what} {name!r}.", remedy=hint, param=what, details=details)
