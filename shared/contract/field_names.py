"""Names of a contract's fields: their paths, their flat keys, other spellings, and the nearest field to a misspelt
name.
"""

from __future__ import annotations

from collections import Counter
from difflib import get_close_matches
from functools import cache
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin

from pydantic import AliasChoices

from shared.contract.contracts import FineTuneContract
from shared.contract.values import ContractValue

LONGEST_NAME = 100
"""Largest number of characters of an unknown name that are compared."""
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
    "training_method": "method.type",
    "preference_loss": "preference.loss",
    "preference_smoothing": "preference.smoothing",
    "preference_reference": "preference.reference",
}
_AMBIGUOUS = {"base", "enabled", "experiment", "hook", "kind", "loss", "reference", "smoothing", "type"}
"""Field names that mean nothing without their section; their long forms are aliases."""


def contract_paths() -> list[str]:
    """Return the path of every field, ``section.field``, in the contract's order."""
    paths: list[str] = []
    for name, field in FineTuneContract.model_fields.items():
        kind = field.annotation
        inner = kind.model_fields if isinstance(kind, type) and issubclass(kind, ContractValue) else None
        paths += [f"{name}.{leaf}" for leaf in inner] if inner else [name]
    return paths


@cache
def flat_names() -> dict[str, str]:
    """Return the path of each flat key: a field's own name if only one section has it, and the aliases."""
    names = {path: path.rpartition(".")[2] for path in contract_paths()}
    counts = Counter(names.values())
    own = {name: path for path, name in names.items() if counts[name] == 1 and name not in _AMBIGUOUS}
    return own | _ALIASES


def field_types(flat_name: str) -> frozenset[Any]:
    """Return the classes that a flat key's field accepts, e.g. ``{tuple, NoneType}``; empty for an unknown key."""
    section, _, name = flat_names().get(flat_name, "").rpartition(".")
    kind = FineTuneContract.model_fields[section].annotation if section else FineTuneContract
    fields = getattr(kind, "model_fields", {})
    return _classes(fields[name].annotation) if name in fields else frozenset()


def _classes(annotation: Any) -> frozenset[Any]:
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _classes(arguments[0])
    if origin in (Union, UnionType):
        return frozenset().union(*map(_classes, arguments))
    return frozenset({origin or annotation})


@cache
def other_spellings(section: str) -> dict[str, str]:
    """Return the fields of a section by their other spellings, e.g. ``r`` for ``rank``."""
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


def nearest_field(path: str) -> str | None:
    """Return the path of the field that an unknown path most resembles, preferring fields of its own section.

    None when nothing resembles it.
    """
    section, _, name = path.rpartition(".")
    name, names = name.replace("-", "_")[:LONGEST_NAME], flat_names()
    if name in names:
        return names[name]
    own = _names_in(section)
    if near := get_close_matches(name, own, n=1):
        return f"{section}.{own[near[0]]}".lstrip(".")
    near = get_close_matches(name, names, n=1)
    return names[near[0]] if near else None


def _names_in(section: str) -> dict[str, str]:
    """Return the fields of a section, or of an object in one, by each of their names; empty if the object does not
    exist.
    """
    kind: Any = FineTuneContract
    for part in filter(None, section.split(".")):
        field = kind.model_fields.get(part)
        kinds = _classes(field.annotation) if field else frozenset[Any]()
        kind = next(
            (candidate for candidate in kinds if isinstance(candidate, type) and issubclass(candidate, ContractValue)),
            None,
        )
        if kind is None:
            return {}
    others = other_spellings(section) if section in FineTuneContract.model_fields else {}
    return {name: name for name in kind.model_fields} | others
