"""The sections of a contract for a command: those of a file, overridden by flags and options."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NoReturn

from corpus.provenance import stated_terms
from shared.contract.contracts import FineTuneContract
from shared.contract.flat_keys import from_flat
from shared.contract.sections import MAX_ANSWER_MODEL, MAX_ANSWER_MODELS
from shared.errors import Code, ContractRejected

Sections = dict[str, dict[str, Any]]
REQUEST_OPTIONS = ("name", "preset", "domain")


def read_sections(path: Path | None) -> Sections:
    """Return the sections of a contract file, of a request with the contract in it, or of the output of ``mens plan --json``; empty
    without a file.

    Every field gets its own name, even if the file spells it differently (``adapter.r``).

    Raises:
        ContractRejected: ``CONTRACT_INVALID``: the file contains no sections, or a field twice.
    """
    if path is None:
        return {}
    try:
        sections = json.loads(path.read_bytes(), parse_constant=_refuse_constant)
    except ValueError as error:
        raise _invalid(path, f"is not JSON: {error}.") from None
    if isinstance(sections, dict) and isinstance(sections.get("plan"), dict):
        sections = sections["plan"].get("contract")
    elif isinstance(sections, dict) and isinstance(sections.get("contract"), dict):
        sections = sections["contract"]
    names = FineTuneContract.model_fields
    if not isinstance(sections, dict) or not all(
        isinstance(value, dict) or names.get(name, names["data"]).annotation is bool for name, value in sections.items()
    ):
        raise _invalid(path, "does not contain a JSON object of sections.")
    return from_flat(sections)


def read_request_options(path: Path | None) -> dict[str, str]:
    """Return the name, preset and domain next to the contract in a request, as the console writes one; empty for other
    files.
    """
    content = json.loads(path.read_bytes()) if path else None
    if not isinstance(content, dict) or not isinstance(content.get("contract"), dict):
        return {}
    return {name: content[name] for name in REQUEST_OPTIONS if isinstance(content.get(name), str)}


def lay_over(sections: Sections, overrides: Mapping[str, Mapping[str, Any]]) -> None:
    """Override the sections' fields with the given ones (not None)."""
    for section, fields in overrides.items():
        sections.setdefault(section, {}).update({name: value for name, value in fields.items() if value is not None})


def add_answer_models(sections: Sections, files: Iterable[Path]) -> None:
    """Add the models of other servers that wrote rows of files, according to the files' provenance, to the models that
    the contract names.

    Long entries are shortened in the middle. If there are too many, one entry counts the rest; one place stays free for
    a parent's entry.
    """
    stated = sections.get("provenance", {}).get("answer_models") or []
    if not isinstance(stated, list) or not all(isinstance(model, str) for model in stated):
        return  # refused later, with the rest of the contract
    models = sorted({_cut(model) for path in files for model in stated_terms(path)} - set(stated))
    if not models:
        return
    room = MAX_ANSWER_MODELS - 1 - len(stated)
    if len(models) > room:
        kept = max(room - 1, 0)
        models[kept:] = [f"{len(models) - kept} further models that the provenance of the rows names"]
    lay_over(sections, {"provenance": {"answer_models": sorted({*stated, *models})}})


def _cut(model: str) -> str:
    half = MAX_ANSWER_MODEL // 2
    return model if len(model) <= MAX_ANSWER_MODEL else f"{model[: half - 1]}…{model[-half:]}"


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON number")


def _invalid(path: Path, what: str) -> ContractRejected:
    remedy = 'Write an object of sections, e.g. {"exec": {"epochs": 3}}.'
    return ContractRejected(Code.CONTRACT_INVALID, f"{path} {what}", remedy=remedy, param="--contract")
