"""Memory that each replica of `mens up` may use on this machine: the trainer and the other programs need the rest."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from contextlib import suppress

from shared.base_models.catalog import BaseModelEntry, LocalSource, load_catalog
from shared.base_models.config import parse_model_config
from shared.base_models.tensors import expected_tensors, parameter_count
from shared.errors import MensError
from shared.settings import Settings

SERVING_SHARE, MOST_SHARE = 0.6, 0.9
"""Share of the memory for all replicas together: by default, and if the weights need more than that."""
BESIDE_WEIGHTS = 2 << 30
"""Memory of a replica in addition to its weights: the engine, adapters, and the KV cache of a few sequences."""


def memory_shares(settings: Settings, bases: Sequence[str], memory: int) -> list[int]:
    """Return bytes for each replica: its weights, and an equal part of the remaining memory.

    Args:
        settings: settings of the installation; its catalogue gives the sizes of the bases.
        bases: bases that the replicas serve, in their order.
        memory: memory of this machine or container in bytes.
    """
    entries = {entry.name: entry for entry in load_catalog(settings.catalog_path).bases}
    weights = [_weight_bytes(settings, entries.get(name)) for name in bases]
    needed = sum(weights) + BESIDE_WEIGHTS * len(bases)
    room = max(int(SERVING_SHARE * memory), min(int(MOST_SHARE * memory), needed))
    left = max(0, room - sum(weights)) // len(bases)
    return [weight + left for weight in weights]


def _weight_bytes(settings: Settings, entry: BaseModelEntry | None) -> int:
    """Return the bytes of a base's weights as a replica on a CPU holds them; 0 if its config is not on this machine
    yet.
    """
    if entry is None or not isinstance(entry.source, LocalSource):
        return 0
    path = settings.catalog_path.parent / entry.source.path / "config.json"
    # A base's replica reports what is wrong with it.
    with suppress(OSError, ValueError, MensError):
        config = parse_model_config(json.loads(path.read_bytes()))
        half = config.spec.hybrid or os.environ.get("MENS_SERVING_DTYPE") == "bfloat16"
        return parameter_count(expected_tensors(config)) * (2 if half else 4)
    return 0
