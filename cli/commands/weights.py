"""The weights that `mens up` serves for a base: the base's own weights, or those of its dequantised twin, with which
NF4 training computes.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Sequence
from enum import StrEnum

from cli.client.connection import note
from cli.commands.bases.derived import dequantize
from cli.output import format_size
from cli.standalone.memory_shares import QUANTIZATION, TRAINER_SHARE, gpu_settings, roundings
from shared.artifacts.base_folders import locate_base, locate_fetched_base
from shared.base_models.catalog import BaseModelEntry, Catalog, load_catalog, model_files
from shared.base_models.config import ModelConfig, parse_model_config
from shared.base_models.weights import json_object
from shared.contract.choices import BaseQuant
from shared.contract.flat_keys import parse_contract
from shared.errors import Code, InvalidRequest, MensError, Unavailable
from shared.gpus.usable import find_gpus
from shared.host import allowed_memory
from shared.preflight.base_precision import decide
from shared.preflight.types import Machine
from shared.settings import Settings

BYTES_PER_SECOND = 20e6
"""Speed of creating a twin on a slow core, in bytes of the base's files; measured: 269 MB of bfloat16 in 14 s of
processor time."""
DISK_RESERVE = 1 << 30
"""Bytes that must stay free on the disk after a twin is written, because jobs write there too."""


class ServedWeights(StrEnum):
    """An operator's choice of the weights to serve."""

    AUTO = "auto"
    ORIGINAL = "original"
    TWIN = "twin"


def choose_weights(
    settings: Settings, bases: Sequence[str], weights: ServedWeights, report: Callable[[str], None] = note
) -> list[str]:
    """Return the name of the served model for each base, in order: the base itself, or its twin, which is created if it
    is missing.

    A base that is itself a twin is unchanged. ``auto`` means the original, unless jobs without a set precision are
    trained over NF4 on this machine.

    Args:
        report: receives why a twin is served, its name, and the cost of creating it.

    Raises:
        InvalidRequest: ``SETTINGS_INVALID``: a twin would be rounded.
        Unavailable: ``STORAGE_FULL``: the disk has too little space for a requested twin; and the errors of
            :func:`cli.commands.bases.derived.dequantize`.
    """
    catalog, machine = load_catalog(settings.catalog_path), this_machine(settings, bases)
    rounded = [] if QUANTIZATION in os.environ else _rounded(settings, bases)
    names = []
    for base in bases:
        if base in rounded and weights is not ServedWeights.TWIN:
            report(
                f"{base} is served with weights rounded to fp8, because in 16 bit it does not fit on the GPU. If the "
                "certificates of its adapters fail because of the engine error, set MENS_PARITY=shift, or serve it "
                "on a larger GPU"
            )
            names.append(base)
        else:
            names.append(_served_name(settings, catalog, catalog.get(base), weights, machine, report))
    return list(dict.fromkeys(names))


def _rounded(settings: Settings, bases: Sequence[str]) -> list[str]:
    """Return the bases that a GPU of this machine holds only with rounded weights."""
    if not (gpus := find_gpus().gpus) or "MENS_SERVING_DEVICE" in os.environ:
        return []
    ways = roundings(settings, bases, gpus[-1].memory_bytes)
    return [base for base, way in zip(bases, ways, strict=True) if way]


def tuned_base(settings: Settings, served: str) -> str:
    """Return the name that jobs use for a served base: for a twin, its original's."""
    entry = load_catalog(settings.catalog_path).get(served)
    return entry.twin_of.name if entry.twin_of else served


def _served_name(
    settings: Settings,
    catalog: Catalog,
    base: BaseModelEntry,
    weights: ServedWeights,
    machine: Machine,
    report: Callable[[str], None],
) -> str:
    if base.twin_of or weights is ServedWeights.ORIGINAL:
        return base.name
    reason = "--weights says so" if weights is ServedWeights.TWIN else nf4_reason(settings, base, machine)
    if reason is None:
        return base.name
    if quantization := os.environ.get(QUANTIZATION):
        if weights is ServedWeights.TWIN:
            raise InvalidRequest(
                Code.SETTINGS_INVALID,
                f"{QUANTIZATION} is {quantization}: it would round the twin of {base.name}, whose values must stay "
                "exact.",
                remedy="Leave it out, or serve the original (--weights original).",
                param=QUANTIZATION,
            )
        return base.name
    twin = find_twin(catalog, base)
    if twin is None:
        try:
            twin = make_twin(settings, catalog, base, report)
        except Unavailable as error:
            if weights is ServedWeights.TWIN or error.code is not Code.STORAGE_FULL:
                raise
            report(f"warning: {base.name} is served with its original weights. {error.message} {error.remedy}")
            return base.name
    report(
        f"{base.name} is served as its twin {twin.name}, the weights that NF4 training computes with, because {reason}."
        f" Jobs still name {base.name}; chats without an adapter name {twin.name}"
    )
    return twin.name


def nf4_reason(settings: Settings, base: BaseModelEntry, machine: Machine) -> str | None:
    """Return why a job without a set precision on a base is trained over NF4 on a machine; None if it is trained
    without NF4, or if this is unknown.
    """
    config = _read_config(settings, base)
    on_gpu = machine.device == "cuda"
    unknown = machine.memory(on_gpu=on_gpu) is None and machine.quant_base is BaseQuant.AUTO
    if config is None or not config.spec.lora or unknown:
        return None
    contract = parse_contract({"model": {"hf_repo": base.name}, "data": {"train_file": "any"}})
    decision = decide(contract, config, machine, on_gpu=on_gpu)
    return decision.reason if decision.base_quant is BaseQuant.NF4 else None


def this_machine(settings: Settings, bases: Sequence[str]) -> Machine:
    """Return the machine that jobs of `mens up` train on; a single GPU counts without the share of the replicas of some
    bases.
    """
    gpus = find_gpus().gpus
    divided = gpu_settings(settings, bases, () if "MENS_SERVING_DEVICE" in os.environ else gpus)
    share = float(os.environ.get(TRAINER_SHARE) or divided.trainer_share)
    return Machine(
        device="cuda" if gpus else "cpu",
        vram_bytes=min((int(share * gpu.memory_bytes) for gpu in gpus), default=None),
        host_bytes=allowed_memory(),
        quant_base=BaseQuant(settings.quant_base),
    )


def find_twin(catalog: Catalog, base: BaseModelEntry) -> BaseModelEntry | None:
    """Return the twin of a base from the current catalogue, for contracts with the default ``quant.double_quant``."""
    for entry in catalog.bases:
        if (origin := entry.twin_of) and origin.digests == base.digests and origin.double_quant:
            return entry
    return None


def make_twin(
    settings: Settings, catalog: Catalog, base: BaseModelEntry, report: Callable[[str], None]
) -> BaseModelEntry:
    """Make the twin of a base, if the disk has room for it.

    Raises:
        Unavailable: ``STORAGE_FULL``.
        MensError: as :func:`cli.commands.bases.derived.dequantize`.
    """
    size = sum(path.stat().st_size for path in model_files(locate_base(base, settings)))
    free = shutil.disk_usage(settings.home).free
    if size + DISK_RESERVE > free:
        raise Unavailable(
            Code.STORAGE_FULL,
            f"The twin of {base.name} takes {format_size(size)} in {settings.home}, where only {format_size(free)} "
            "are free.",
            remedy=(
                f"Free {format_size(size + DISK_RESERVE - free)}, or serve the original weights (--weights original)."
            ),
        )
    name = f"{base.name}-nf4"
    if any(other.name == name for other in catalog.bases):
        # The twin belongs to an earlier base of this name, or to another quantisation.
        name = f"{name}-{base.digest[:8]}"
    seconds = size / BYTES_PER_SECOND
    report(
        f"creating {name}, the twin of {base.name}: once, {format_size(size)} on the disk,"
        f" about {f'{seconds / 60:.0f} min' if seconds > 90 else f'{seconds + 10:.0f} s'}"
    )
    return dequantize(settings, base.name, name)


def _read_config(settings: Settings, base: BaseModelEntry) -> ModelConfig | None:
    """Return the config of a base; None if its files are missing here or invalid; the base's replica reports the
    reason.
    """
    try:
        raw = (locate_fetched_base(base, settings) / "config.json").read_bytes()
        return parse_model_config(json_object(raw, "config.json", Code.MODEL_CONFIG_INVALID))
    except (OSError, MensError):
        return None
