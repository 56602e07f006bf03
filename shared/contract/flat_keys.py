"""Parses contracts: sectioned JSON, or the flat keys of the original command line.

``{"r": 16, "lora_alpha": 32, "target_modules": ["q_proj"], "batch_size": 4}`` becomes
``{"adapter": {"rank": 16, "alpha": 32, "target_modules": ["q_proj"]}, "exec": {"batch_size": 4}}``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from enum import StrEnum
from functools import cache
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin

from pydantic import AliasChoices, ValidationError

from shared.contract.sections import BAD_NAME, ContractValue, FineTuneContract
from shared.errors import Code, ContractRejected

SCHEMA_REMEDY = "The contract's schema is at GET /v1/contract/schema."


class Kernel(StrEnum):
    """The two training kernels of the original. The first may be planned, but is never run."""

    BURN_LORA = "burn_lora"
    CANDLE_QLORA = "candle_qlora"


BACKENDS: dict[str, Kernel] = {
    **dict.fromkeys(("lora", "burn", "burn-lora"), Kernel.BURN_LORA),
    **dict.fromkeys(("qlora", "candle", "candle-qlora"), Kernel.CANDLE_QLORA),
}
"""Every accepted name of a backend, in any case."""

_METHODS = {Kernel.BURN_LORA: ("lora", "none"), Kernel.CANDLE_QLORA: ("qlora", "nf4")}
_ALIASES = {
    "model": "model.hf_repo",
    "base_model": "model.hf_repo",
    "tokenizer": "data.tokenizer_mode",
    "tokenizer_path": "model.tokenizer_json",
    "training_file": "data.train_file",
    "base_model_family": "provenance.base_family",
    "r": "adapter.rank",
    "lora_rank": "adapter.rank",
    "lora_alpha": "adapter.alpha",
    "lora_dropout": "adapter.dropout",
    "quantization": "quant.base",
    "lr": "exec.learning_rate",
    "warmup": "exec.warmup_steps",
    "n_epochs": "exec.epochs",
    "num_train_epochs": "exec.epochs",
    "max_seq_length": "exec.seq_len",
    "gradient_accumulation_steps": "exec.grad_accum",
    "resume": "exec.resume_from",
    "vram_limit_fraction": "exec.max_vram_fraction",
    "ce_last_k": "exec.qlora_ce_last_k",
    "device": "device.device",
    "curriculum": "curriculum.enabled",
    "optimizer_kind": "optimizer.kind",
    "optimizer_experiment": "optimizer.experiment",
    "optimizer_experiment_mode": "optimizer.experiment",
    "trajectory_weighting_enabled": "trajectory.enabled",
    "trajectory_tool_trace_boost": "trajectory.tool_trace_boost",
    "trajectory_failure_category_boost": "trajectory.failure_category_boost",
    "trajectory_quality_floor": "trajectory.quality_floor",
    "trajectory_quality_boost": "trajectory.quality_boost",
    "reward_hook": "reward.hook",
}
_AMBIGUOUS = {"base", "enabled", "experiment", "hook", "kind"}
"""Field names that mean nothing without their section; their long forms are aliases."""


def contract_paths() -> list[str]:
    """The path of every field, ``section.field``, in the contract's order."""
    paths: list[str] = []
    for name, field in FineTuneContract.model_fields.items():
        kind = field.annotation
        inner = kind.model_fields if isinstance(kind, type) and issubclass(kind, ContractValue) else None
        paths += [f"{name}.{leaf}" for leaf in inner] if inner else [name]
    return paths


@cache
def flat_names() -> dict[str, str]:
    """The path that each flat key means: a field's own name where only one section has it, and the aliases."""
    names = {path: path.rpartition(".")[2] for path in contract_paths()}
    counts = Counter(names.values())
    own = {name: path for path, name in names.items() if counts[name] == 1 and name not in _AMBIGUOUS}
    return own | _ALIASES


def field_types(flat_name: str) -> frozenset[Any]:
    """The classes that a flat key's field takes, e.g. ``{tuple, NoneType}``; none for a key that is no field."""
    section, _, name = flat_names().get(flat_name, "").rpartition(".")
    kind = FineTuneContract.model_fields[section].annotation if section else FineTuneContract
    fields = getattr(kind, "model_fields", {})
    return _classes(fields[name].annotation) if name in fields else frozenset()


def _classes(annotation: Any) -> frozenset[Any]:
    origin, parts = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _classes(parts[0])
    if origin in (Union, UnionType):
        return frozenset().union(*map(_classes, parts))
    return frozenset({origin or annotation})


@cache
def _other_spellings(section: str) -> dict[str, str]:
    """The fields of a section by the names that they may have there besides their own, e.g. ``r`` for ``rank``."""
    kind = FineTuneContract.model_fields[section].annotation
    fields = kind.model_fields if isinstance(kind, type) and issubclass(kind, ContractValue) else {}
    choices = {name: field.validation_alias for name, field in fields.items()}
    return {
        str(other): name
        for name, alias in choices.items()
        if isinstance(alias, AliasChoices)
        for other in alias.choices
        if other != name
    }


def parse_backend(name: str) -> Kernel:
    """The kernel that a backend's name means.

    Raises:
        ContractRejected: ``UNKNOWN_BACKEND``.
    """
    kernel = BACKENDS.get(str(name).strip().lower().replace("_", "-"))
    if kernel is None:
        raise ContractRejected(
            Code.UNKNOWN_BACKEND,
            f"{name!r} is no training backend; lora and qlora are.",
            remedy="Use backend qlora.",
            param="backend",
        )
    return kernel


def parse_contract(sections: Mapping[str, Any]) -> FineTuneContract:
    """A contract from JSON.

    Raises:
        ContractRejected: ``CONTRACT_INVALID``, or ``NAME_INVALID`` when that is the first fault, with its path;
            ``details["errors"]`` has them all.
    """
    try:
        return FineTuneContract.model_validate(sections)
    except ValidationError as error:
        # pydantic's own error would carry the whole input, and lacks a code.
        faults = [{"param": ".".join(map(str, fault["loc"])), "reason": fault["msg"]} for fault in error.errors()]
        first = faults[0]
        raise ContractRejected(
            Code.NAME_INVALID if error.errors()[0]["type"] == BAD_NAME else Code.CONTRACT_INVALID,
            f"{first['param']}: {first['reason'].removeprefix('Value error, ')}.",
            remedy=SCHEMA_REMEDY,
            param=first["param"],
            details={"errors": faults},
        ) from None


def from_flat(flat: Mapping[str, Any]) -> dict[str, Any]:
    """Lift flat keys into their sections. Whole sections may stand beside them.

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
    """The fields that one key sets, with their paths."""
    name = key.lstrip("-").replace("-", "_")
    if isinstance(value, Mapping) and name in FineTuneContract.model_fields:
        others = _other_spellings(name)
        yield from ((f"{name}.{others.get(field, field)}", part) for field, part in value.items())
    elif name == "backend":
        method, quant = _METHODS[parse_backend(value)]
        yield from (("adapter.method", method), ("quant.base", quant))
    elif name == "qlora_no_double_quant":
        # Only a boolean is negated; anything else goes on as it is, so that validation refuses it.
        yield "quant.double_quant", not value if isinstance(value, bool) else value
    elif name in (known := flat_names()):
        yield known[name], value
    else:
        near = get_close_matches(name, [*known, "backend", "qlora_no_double_quant"], n=1)
        hint = f"Did you mean {near[0]}?" if near else SCHEMA_REMEDY
        raise _invalid(key, f"{key} is no field of the contract.", hint)


def _invalid(key: str, message: str, remedy: str) -> ContractRejected:
    return ContractRejected(Code.CONTRACT_INVALID, message, remedy=remedy, param=key)
