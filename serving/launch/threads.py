"""How many threads compute on a CPU.

A thread more is worth its while where a layer computes much longer than it takes to hand the work out and wait for all. With a tiny
base it does not, and on busy cores each of the many small waits lasts until the other thread gets its turn: steps become many times
slower. A larger base reads its weights once a token, and the cores read them together.
"""

from __future__ import annotations

from serving.settings import ServingSettings
from shared.base_models.config import ModelConfig
from shared.base_models.tensors import linear_layers

SMALL_LAYER = 250_000
"""Weights of a linear layer, in the mean, below which one thread computes."""
MOST_THREADS = 32
"""More wait for memory, which all share."""


def choose_threads(settings: ServingSettings, config: ModelConfig, cores: int) -> int:
    """Threads of the setting, or by the size of the base's layers and the cores that this process may use."""
    if settings.serving_cpu_threads is not None:
        return settings.serving_cpu_threads
    layers = linear_layers(config).values()
    mean = sum(inputs * outputs for inputs, outputs in layers) / max(1, len(layers))
    return 1 if mean < SMALL_LAYER else min(cores, MOST_THREADS)
