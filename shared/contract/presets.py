"""Presets, domain profiles and the size ladder: the sources of fields that the caller left open.

    explicit  >  data  >  parent  >  domain  >  ladder  >  preset  >  default

- **preset**: a named row of `data/presets.json`, or ``auto``: the largest row of `data/gpu_ladder.json` whose
  ``max_vram_mb`` the card has. Cards report a little less than their nominal memory, so 97 % of a row's figure is
  enough; an unknown or smaller memory takes the smallest row. Without a preset, the contract's own defaults apply.
- **ladder**: bounds by the model's parameter count and the card's memory. A row applies from ``min_parameters`` on, so
  14B, 32B and 72B are under the 9B row; below 400M no row applies. Unknown memory counts as the least. Files of fewer
  than 500 rows have bounds too.
- **domain**: a profile of `data/domain_profiles.json` over that file's defaults; it names the adapter.
- **parent**: values of the adapter that the run continues from (`shared/preflight/parents.py`).
- **data**: the length, if it was left out, from the longest row (`shared/preflight/sequence_length.py`).
- **machine**: the precision, if it was left out, from the machine's memory (`shared/preflight/base_precision.py`).
- **explicit**: a value that the caller set, even null. It is never changed.

Finally, values that are not explicit are lowered to fit other fields: the limits of a mobile target, and a loss window
that fits in ``exec.seq_len``.
"""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any, Literal

from shared.contract.base_quant import is_open, pair_values
from shared.contract.choices import BaseQuant, DeploymentTarget, HeldBase
from shared.contract.contracts import FineTuneContract
from shared.contract.field_names import contract_paths
from shared.contract.flat_keys import parse_contract
from shared.contract.preset_files import AutoRow, Bound, SizeRow, Values, domain_file, ladder_file, preset_file
from shared.contract.refusals import MOBILE_LIMITS
from shared.contract.values import ContractValue
from shared.errors import Code, ContractRejected

AUTO = "auto"
DEFAULT_PRESET = "4080"
"""The preset of a command line that names none; `resolve_contract` itself has no default."""
# A card reports slightly less memory than it is sold with.
VRAM_SLACK = 0.97

Source = Literal["explicit", "auto", "data", "machine", "parent", "domain", "ladder", "preset", "default"]
"""Source of a field's value. ``auto``: set by a rule of `shared/contract/auto_hyperparameters.py` before presets; it
has the same precedence as an explicit value.
"""


class Resolution(ContractValue):
    """A complete contract, the source of each field, and changed values of a chosen preset or domain."""

    contract: FineTuneContract
    sources: dict[str, Source]
    notes: tuple[str, ...] = ()


def preset_names() -> list[str]:
    """Return every name of a preset: ids, aliases, and ``auto``."""
    return [name for preset in preset_file().presets for name in (preset.id, *preset.aliases)] + [AUTO]


def domain_names() -> list[str]:
    """Return the name of every domain."""
    return [profile.id for profile in domain_file().profiles]


def preset_values(name: str, vram_mb: int | None = None) -> Values:
    """Return a preset's values by field path.

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
    """Return a domain's values by field path, with its file's defaults.

    Raises:
        ContractRejected: ``UNKNOWN_DOMAIN`` with the nearest name; ``details["known"]`` lists them.
    """
    for profile in domain_file().profiles:
        if name == profile.id:
            return domain_file().defaults | {"exec.adapter_tag": name} | profile.values
    raise _unknown(Code.UNKNOWN_DOMAIN, "domain", name, domain_names())


def auto_row(vram_mb: int | None) -> AutoRow:
    """Return the largest row for a card with this much memory; the smallest when the memory is unknown or less."""
    rows = ladder_file().auto
    fitting = [
        row for row in rows if vram_mb is not None and vram_mb >= (row.min_vram_mb or row.max_vram_mb * VRAM_SLACK)
    ]
    return max(fitting, key=lambda row: row.max_vram_mb) if fitting else rows[0]


def size_row(parameters: int | None, vram_mb: int | None) -> SizeRow | None:
    """Return the bounds for a model with this many parameters on a card with this much memory."""
    sizes = ladder_file().sizes
    reached = max((row.min_parameters for row in sizes if row.min_parameters <= (parameters or 0)), default=None)
    # Rows of one size are ordered by memory; the first one that the card fits decides.
    for row in sizes:
        if row.min_parameters == reached and (row.max_vram_mb is None or (vram_mb or 0) <= row.max_vram_mb):
            return row
    return None


def is_small_dataset(rows: int) -> bool:
    """Return whether a file with this many rows has bounds of its own."""
    return rows < ladder_file().small_dataset.below_rows


def resolve_contract(
    contract: FineTuneContract,
    *,
    preset: str | None = None,
    domain: str | None = None,
    parameters: int | None = None,
    vram_mb: int | None = None,
    rows: int | None = None,
    max_positions: int | None = None,
    inherited: Values | None = None,
    measured: Values | None = None,
    open_base: HeldBase | None = None,
) -> Resolution:
    """Complete a contract; the module's docstring has the order of precedence.

    Args:
        contract: the caller's; the fields that were set (``model_fields_set``) are explicit. A field two levels down,
            e.g. ``data.context_filter``, is taken whole.
        preset: a preset's name or ``auto``.
        domain: a domain profile's name.
        parameters: number of parameters of the base model, counted from its config.
        vram_mb: memory of the card.
        rows: rows that are trained on.
        max_positions: length of the longest row that the base can read.
        inherited: values by field path of the adapter that the run continues from.
        measured: values by field path that the data decides, taking precedence over all other sources.
        open_base: precision of the base where the contract leaves it open; None: it stays open.

    Returns:
        The contract, the same object when nothing was decided for it, and the source of each field.

    Raises:
        ContractRejected: ``CONTRACT_INVALID``, ``UNKNOWN_PRESET``, ``UNKNOWN_DOMAIN``.
    """
    # Weakest first: each source overwrites the ones before it.
    draft = _Draft(contract)
    if preset is not None:
        draft.take(preset_values(preset, vram_mb), "preset")
    if size := size_row(parameters, vram_mb):
        draft.bound(size.bounds, _describe_size(parameters, vram_mb))
    if rows is not None and is_small_dataset(rows):
        draft.bound(ladder_file().small_dataset.bounds, f"the file has {rows} rows")
    if domain is not None:
        draft.take(domain_values(domain), "domain")
    if max_positions is not None:
        draft.bound({"exec.seq_len": Bound(max=max_positions)}, f"the base has {max_positions} positions")
    draft.take(inherited or {}, "parent")
    draft.decide(measured or {}, "data")
    if open_base is not None or not is_open(contract):
        pair = pair_values(contract, open_base or BaseQuant.NF4)
        left_open = {path: value for path, value in pair.items() if draft.values[path] == AUTO}
        draft.decide(left_open, "machine" if is_open(contract) else "default")
    # Last, because these limits follow from fields that may have just been decided.
    limits = MOBILE_LIMITS if draft.values["artifact.deployment_target"] == DeploymentTarget.MOBILE_EDGE else {}
    seq_len = min(draft.values["exec.seq_len"], limits.get("exec.seq_len", draft.values["exec.seq_len"]))
    reason = "the deployment target is mobile_edge" if limits else f"exec.seq_len is {seq_len}"
    draft.bound({path: Bound(max=limit) for path, limit in {**limits, "exec.qlora_ce_last_k": seq_len}.items()}, reason)
    return Resolution(contract=draft.contract(), sources=draft.sources, notes=tuple(draft.notes()))


def _describe_size(parameters: int | None, vram_mb: int | None) -> str:
    size = "of unknown size" if parameters is None else f"of {parameters / 1e9:.2g}B parameters"
    card = "GPU memory is not known" if vram_mb is None else f"the GPU has {vram_mb} MiB"
    return f"the base is {size} and {card}"


class _Draft:
    """The fields of a contract while they are decided, weakest source first; explicit ones stay."""

    def __init__(self, contract: FineTuneContract) -> None:
        self._contract = contract
        self._decided: set[str] = set()
        # The value of a preset or domain for each field, and the reasons why it was changed.
        self._chosen: dict[str, tuple[Any, Source]] = {}
        self._reasons: dict[str, list[str]] = {}
        self.values: Values = {}
        self.sources: dict[str, Source] = {}
        for path in contract_paths():
            section, _, field = path.rpartition(".")
            part = getattr(contract, section) if section else contract
            # An empty section, `"exec": {}`, sets nothing.
            is_set = (not section or section in contract.model_fields_set) and field in part.model_fields_set
            self.values[path] = getattr(part, field)
            self.sources[path] = "explicit" if is_set else "default"

    def take(self, values: Values, source: Source) -> None:
        """Set the fields that are not explicit, to values of a preset or domain that was chosen by name."""
        open_ = {path: value for path, value in values.items() if self.sources[path] != "explicit"}
        self.decide(open_, source)
        self._chosen |= {path: (value, source) for path, value in open_.items()}

    def decide(self, values: Values, source: Source) -> None:
        """Set fields to values that were not chosen by name; notes no longer mention them."""
        for path, value in values.items():
            self._set(path, value, source)
            self._chosen.pop(path, None)
            self._reasons.pop(path, None)

    def bound(self, bounds: Mapping[str, Bound], reason: str) -> None:
        """Clamp the fields that are not explicit to their bounds."""
        for path, bound in bounds.items():
            value = bound.clamp(self.values[path])
            if self.sources[path] == "explicit" or value == self.values[path]:
                continue
            chosen, source = self._chosen.get(path, (None, "ladder"))
            # One bound may undo what another did.
            self._set(path, value, source if value == chosen else "ladder")
            self._reasons.setdefault(path, []).append(reason)

    def notes(self) -> list[str]:
        """Return a note for each changed value of a preset or domain that was chosen. Call it last, when all values
        are set.
        """
        return [
            f"{path} is {self.values[path]}, not {chosen} as in the {source}, because"
            f" {' and '.join(self._reasons[path])}. To use {chosen}, set the field yourself."
            for path, (chosen, source) in self._chosen.items()
            if self.values[path] != chosen
        ]

    def _set(self, path: str, value: Any, source: Source) -> None:
        if value != self.values[path]:
            self._decided.add(path)
        self.values[path], self.sources[path] = value, source

    def contract(self) -> FineTuneContract:
        """Return the decided contract; parsed again only if something was decided."""
        if not self._decided:
            return self._contract
        # Validated again instead of copied: presets and bounds come from data files, and must respect the contract's
        # ranges.
        sections = self._contract.model_dump(mode="json")
        for path in self._decided:
            section, _, field = path.rpartition(".")
            (sections[section] if section else sections)[field] = self.values[path]
        return parse_contract(sections)


def _unknown(code: Code, noun: str, name: str, names: list[str]) -> ContractRejected:
    near = get_close_matches(name.lower(), names, n=1, cutoff=0.5)
    hint = f"Did you mean {near[0]}?" if near else f"Use one of: {', '.join(names)}."
    details = {"known": names, "nearest": near[0] if near else None}
    return ContractRejected(code, f"Unknown {noun} {name!r}.", remedy=hint, param=noun, details=details)
