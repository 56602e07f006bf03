"""Parse contracts: sectioned JSON, or the flat keys of the original command line.

``{"r": 16, "lora_alpha": 32, "target_modules": ["q_proj"], "batch_size": 4}`` becomes
``{"adapter": {"rank": 16, "alpha": 32, "target_modules": ["q_proj"]}, "exec": {"batch_size": 4}}``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from typing import Any

from pydantic import ValidationError

from shared.contract.choices import BACKENDS, Backend, Kernel, backend_key
from shared.contract.contracts import FineTuneContract
from shared.contract.faults import UNKNOWN_FIELD, reason_of, unknown_before_missing
from shared.contract.field_names import flat_names, nearest_field, other_spellings
from shared.contract.values import BAD_NAME
from shared.errors import Code, ContractRejected

SCHEMA_REMEDY = (
    "The contract's schema is at GET /v1/contract/schema; offline, `mens plan FILE --model BASE --json` prints every "
    "field."
)

_METHODS = {Kernel.BURN_LORA: ("lora", "none"), Kernel.CANDLE_QLORA: ("qlora", "nf4")}


def parse_backend(name: str) -> Backend:
    """Return the kernel of a backend's name.

    Raises:
        ContractRejected: ``UNKNOWN_BACKEND``.
    """
    kernel = BACKENDS.get(backend_key(str(name)))
    if kernel is None:
        raise ContractRejected(
            Code.UNKNOWN_BACKEND,
            f"{name!r} is not a training backend; use lora or qlora.",
            remedy="Use backend qlora.",
            param="backend",
        )
    return kernel


def parse_contract(sections: Mapping[str, Any]) -> FineTuneContract:
    """Parse a contract from JSON.

    Raises:
        ContractRejected: ``CONTRACT_INVALID``, or ``NAME_INVALID`` when that is the first fault, with its path;
            ``details["errors"]`` has them all.
    """
    try:
        return FineTuneContract.model_validate(sections)
    except ValidationError as error:
        # pydantic's own error would contain the whole input, and lacks a code.
        errors = unknown_before_missing(error.errors())
        faults = [{"param": ".".join(map(str, fault["loc"])), "reason": reason_of(fault)} for fault in errors]
        first, kind = faults[0], errors[0]["type"]
        near = nearest_field(first["param"]) if kind == UNKNOWN_FIELD else None
        raise ContractRejected(
            Code.NAME_INVALID if kind == BAD_NAME else Code.CONTRACT_INVALID,
            f"{first['param']}: {first['reason']}.",
            remedy=f"Did you mean {near}? {SCHEMA_REMEDY}" if near else SCHEMA_REMEDY,
            param=first["param"],
            details={"errors": faults},
        ) from None


def from_flat(flat: Mapping[str, Any]) -> dict[str, Any]:
    """Lift flat keys into their sections. Whole sections may be given too.

    Returns:
        A partial contract in sections, every field by its own name; its values are not checked yet (see
        :func:`parse_contract`).

    Raises:
        ContractRejected: ``CONTRACT_INVALID`` for a key that is unknown (naming the nearest known one) or a field that
            is given twice; ``UNKNOWN_BACKEND``.
    """
    sections: dict[str, Any] = {}
    for key, value in flat.items():
        for path, part in _lifted(str(key), value):
            section, _, field = path.rpartition(".")
            target = sections.setdefault(section, {}) if section else sections
            if field in target:
                raise _invalid(key, f"{key} sets {path} a second time.", "Leave one of the two keys out.")
            target[field] = part
    return sections


def _lifted(key: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Iterate over the fields that a key sets, with their paths."""
    name = key.lstrip("-").replace("-", "_")
    if isinstance(value, Mapping) and name in FineTuneContract.model_fields:
        others = other_spellings(name)
        yield from ((f"{name}.{others.get(field, field)}", part) for field, part in value.items())
    elif name == "backend":
        backend = parse_backend(value)
        method, quant = _METHODS[backend]
        yield from (("adapter.method", method), ("quant.base", quant), ("exec.backend", backend.value))
    elif name == "qlora_no_double_quant":
        # Only a boolean is negated; any other value stays, so that validation refuses it.
        yield "quant.double_quant", not value if isinstance(value, bool) else value
    elif name in (paths := flat_names()):
        yield paths[name], value
    else:
        near = get_close_matches(name, [*paths, "backend", "qlora_no_double_quant"], n=1)
        hint = f"Did you mean {near[0]}?" if near else SCHEMA_REMEDY
        raise _invalid(key, f"{key} is not a field of the contract.", hint)


def _invalid(key: str, message: str, remedy: str) -> ContractRejected:
    return ContractRejected(Code.CONTRACT_INVALID, message, remedy=remedy, param=key)
