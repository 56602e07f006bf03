"""Memory, or GPU, that each replica of `mens up` may use on this machine: the trainer and the other programs need the
rest.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from shared.base_models.catalog import BaseModelEntry, LocalSource, load_catalog
from shared.base_models.config import parse_model_config
from shared.base_models.tensors import expected_tensors, parameter_count
from shared.errors import MensError
from shared.gpus.driver import visible_names
from shared.gpus.torch_report import TorchGpu
from shared.settings import Settings

SERVING_SHARE, MOST_SHARE = 0.6, 0.9
"""Share of the memory for all replicas together: by default, and if the weights need more than that."""
UTILIZATION = "MENS_SERVING_GPU_MEMORY_UTILIZATION"
BESIDE_WEIGHTS = 2 << 30
"""Memory of a replica in addition to its weights: the engine, adapters, and the KV cache of a few sequences."""


@dataclass(frozen=True, slots=True)
class GpuSettings:
    """Settings of all programs for the machine's GPUs, and in addition of each replica, in their order."""

    common: dict[str, str] = field(default_factory=dict)
    replicas: tuple[dict[str, str], ...] = ()


def gpu_settings(settings: Settings, bases: Sequence[str], gpus: Sequence[TorchGpu]) -> GpuSettings:
    """Return how trainer and replicas share the GPUs: with several, the replicas get the last one, which the trainer does
    not use; a single one is shared like main memory.

    Args:
        settings: settings of the installation. bases: bases that the replicas serve, in their order.
        gpus: usable GPUs, in CUDA's order.
    """
    if not gpus:
        return GpuSettings()
    memory, alone = gpus[-1].memory_bytes, len(gpus) > 1
    shares = memory_shares(settings, bases, memory, dtype_bytes=2, share=MOST_SHARE if alone else SERVING_SHARE)
    replicas = [{UTILIZATION: os.environ.get(UTILIZATION) or f"{part / memory:.3f}"} for part in shares]
    common = {"MENS_SERVING_DEVICE": "cuda"}
    if not alone:
        return GpuSettings(common, tuple(replicas))
    *others, last = _names(len(gpus))
    common["CUDA_VISIBLE_DEVICES"] = ",".join(others)
    return GpuSettings(common, tuple({**replica, "CUDA_VISIBLE_DEVICES": last} for replica in replicas))


def _names(number: int) -> list[str]:
    """Return the names of the first visible GPUs for ``CUDA_VISIBLE_DEVICES``."""
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    return [str(index) for index in range(number)] if named is None else visible_names(named)[:number]


def memory_shares(
    settings: Settings,
    bases: Sequence[str],
    memory: int,
    dtype_bytes: int | None = None,
    share: float = SERVING_SHARE,
) -> list[int]:
    """Return bytes for each replica: its weights, and an equal part of the remaining memory.

    Args:
        settings: settings of the installation; its catalogue gives the sizes of the bases.
        bases: bases that the replicas serve, in their order.
        memory: memory of this machine, container or GPU in bytes.
        dtype_bytes: bytes of a weight; None: as a replica on a CPU holds it.
        share: share of the memory for all replicas together, unless the weights need more.
    """
    entries = {entry.name: entry for entry in load_catalog(settings.catalog_path).bases}
    weights = [_weight_bytes(settings, entries.get(name), dtype_bytes) for name in bases]
    needed = sum(weights) + BESIDE_WEIGHTS * len(bases)
    room = max(int(share * memory), min(int(MOST_SHARE * memory), needed))
    left = max(0, room - sum(weights)) // len(bases)
    return [weight + left for weight in weights]


def _weight_bytes(settings: Settings, entry: BaseModelEntry | None, dtype_bytes: int | None) -> int:
    """Return the bytes of a base's weights; 0 if its config is not on this machine yet."""
    if entry is None or not isinstance(entry.source, LocalSource):
        return 0
    path = settings.catalog_path.parent / entry.source.path / "config.json"
    # A base's replica reports what is wrong with it.
    with suppress(OSError, ValueError, MensError):
        config = parse_model_config(json.loads(path.read_bytes()))
        half = config.spec.hybrid or os.environ.get("MENS_SERVING_DTYPE") == "bfloat16"
        return parameter_count(expected_tensors(config)) * (dtype_bytes or (2 if half else 4))
    return 0
