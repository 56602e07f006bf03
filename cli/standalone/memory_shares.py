"""Share of memory or GPU that each replica of `mens up` may use on this machine: the trainer and the other programs
need the rest.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from shared.base_models.catalog import BaseModelEntry, LocalSource, load_catalog
from shared.base_models.config import parse_model_config
from shared.base_models.tensors import expected_tensors, linear_layers, parameter_count
from shared.errors import MensError
from shared.gpus.driver import visible_names
from shared.gpus.torch_report import TorchGpu
from shared.settings import Settings

SERVING_SHARE, MOST_SHARE = 0.6, 0.9
"""Share of the memory for all replicas together: the default, and the largest share if the weights need more."""
UTILIZATION, QUANTIZATION = "MENS_SERVING_GPU_MEMORY_UTILIZATION", "MENS_SERVING_QUANTIZATION"
TRAINER_SHARE, LEAST_TRAINER_SHARE = "MENS_TRAINER_GPU_SHARE", 0.05
OVERHEAD_BYTES = 2 << 30
"""Memory of a replica in addition to its weights: the engine, adapters, and the KV cache of a few sequences."""
ROUNDING = "fp8_per_channel"
"""Rounding of a base that would not fit a GPU otherwise."""
LINEAR_BYTES = {"mxfp8": 1 + 1 / 32, "mxfp4": 0.5 + 1 / 32}
"""Bytes of a rounded weight of a linear layer, for roundings where that is not 1. All other weights keep their 16 bits.
"""


@dataclass(frozen=True, slots=True)
class GpuSettings:
    """Settings for the machine's GPUs: those of all programs, and further ones for each replica, in the replicas'
    order.

    Attributes:
        trainer_share: the trainer's share of a GPU's memory.
    """

    common: dict[str, str] = field(default_factory=dict)
    replicas: tuple[dict[str, str], ...] = ()
    trainer_share: float = 1.0


def gpu_settings(settings: Settings, bases: Sequence[str], gpus: Sequence[TorchGpu]) -> GpuSettings:
    """Return how trainer and replicas share the GPUs: with several, the replicas get the last one, which the trainer does
    not use; a single one is divided, and each keeps to its part. Bases that do not fit it in 16 bit are rounded.

    Args:
        settings: settings of the installation.
        bases: bases that the replicas serve, in their order.
        gpus: usable GPUs, in CUDA's order.
    """
    if not gpus:
        return GpuSettings()
    memory, alone = gpus[-1].memory_bytes, len(gpus) > 1
    rounding = roundings(settings, bases, memory)
    shares = memory_shares(settings, bases, memory, rounding, share=MOST_SHARE if alone else SERVING_SHARE)
    utilizations = [os.environ.get(UTILIZATION) or f"{part / memory:.3f}" for part in shares]
    replicas = [
        {UTILIZATION: part} | ({QUANTIZATION: way} if way else {})
        for part, way in zip(utilizations, rounding, strict=True)
    ]
    common = {"MENS_SERVING_DEVICE": "cuda"}
    if not alone:
        rest = f"{max(LEAST_TRAINER_SHARE, 1 - sum(map(float, utilizations))):.3f}"
        trainer = common[TRAINER_SHARE] = os.environ.get(TRAINER_SHARE) or rest
        return GpuSettings(common, tuple(replicas), float(trainer))
    *others, last = _names(len(gpus))
    common["CUDA_VISIBLE_DEVICES"] = ",".join(others)
    return GpuSettings(common, tuple({**replica, "CUDA_VISIBLE_DEVICES": last} for replica in replicas))


def roundings(settings: Settings, bases: Sequence[str], memory: int) -> list[str | None]:
    """Return how the weights of each base are rounded on a GPU: as the operator chose, else the largest bases are
    rounded if not all fit in 16 bit. Twins are never rounded, because their values must stay exact.
    """
    entries = {entry.name: entry for entry in load_catalog(settings.catalog_path).bases}
    if chosen := os.environ.get(QUANTIZATION):
        return [chosen] * len(bases)
    ways: list[str | None] = [None] * len(bases)
    weights = [_weight_bytes(settings, entries.get(name), None, on_gpu=True) for name in bases]
    for place in sorted(range(len(bases)), key=lambda place: -weights[place]):
        entry = entries.get(bases[place])
        if sum(weights) + OVERHEAD_BYTES * len(bases) <= MOST_SHARE * memory:
            break
        if entry and not entry.twin_of:
            ways[place] = ROUNDING
            weights[place] = _weight_bytes(settings, entry, ROUNDING, on_gpu=True)
    return ways


def _names(number: int) -> list[str]:
    """Return the names of the first visible GPUs for ``CUDA_VISIBLE_DEVICES``."""
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    return [str(index) for index in range(number)] if named is None else visible_names(named)[:number]


def memory_shares(
    settings: Settings,
    bases: Sequence[str],
    memory: int,
    rounding: Sequence[str | None] | None = None,
    share: float = SERVING_SHARE,
) -> list[int]:
    """Return bytes for each replica: its weights, and an equal part of the remaining memory.

    Args:
        settings: settings of the installation; its catalogue gives the sizes of the bases.
        bases: bases that the replicas serve, in their order.
        memory: memory of this machine, container or GPU in bytes.
        rounding: see :func:`roundings`; None: the memory is not a GPU's.
        share: share of the memory for all replicas together, unless the weights need more.
    """
    entries = {entry.name: entry for entry in load_catalog(settings.catalog_path).bases}
    ways = rounding or [None] * len(bases)
    weights = [
        _weight_bytes(settings, entries.get(name), way, on_gpu=rounding is not None)
        for name, way in zip(bases, ways, strict=True)
    ]
    needed = sum(weights) + OVERHEAD_BYTES * len(bases)
    room = max(int(share * memory), min(int(MOST_SHARE * memory), needed))
    left = max(0, room - sum(weights)) // len(bases)
    return [weight + left for weight in weights]


def _weight_bytes(settings: Settings, entry: BaseModelEntry | None, way: str | None, *, on_gpu: bool) -> int:
    """Return the bytes of a base's weights; 0 if its config is not on this machine yet."""
    if entry is None or not isinstance(entry.source, LocalSource):
        return 0
    path = settings.catalog_path.parent / entry.source.path / "config.json"
    # The base's replica reports the fault.
    with suppress(OSError, ValueError, MensError):
        config = parse_model_config(json.loads(path.read_bytes()))
        half = on_gpu or config.spec.hybrid or os.environ.get("MENS_SERVING_DTYPE") == "bfloat16"
        whole = parameter_count(expected_tensors(config)) * (2 if half else 4)
        linear = sum(math.prod(shape) for shape in linear_layers(config).values())
        return int(whole - (2 - LINEAR_BYTES.get(way, 1)) * linear) if way else whole
    return 0
