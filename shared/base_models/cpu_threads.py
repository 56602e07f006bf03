"""Number of threads that compute with a base on a CPU, in serving and in training.

More threads pay off if a layer computes much longer than it takes to distribute the work and wait for all threads. With
a tiny base they do not: on busy cores, each of the many short waits lasts until the other thread is scheduled, and
steps become many times slower. A larger base reads its weights once per token, and the cores share that work.
"""

from __future__ import annotations

from shared.base_models.config import ModelConfig
from shared.base_models.tensors import linear_layers

SMALL_LAYER = 250_000
"""Mean number of weights of a linear layer below which one thread computes."""
MOST_THREADS = 32
"""Largest number of threads: more would only wait for the shared memory."""


def cpu_threads(config: ModelConfig, cores: int) -> int:
    """Return the number of threads, by the size of the base's layers and the cores that the process may use."""
    layers = linear_layers(config).values()
    mean = sum(inputs * outputs for inputs, outputs in layers) / max(1, len(layers))
    return 1 if mean < SMALL_LAYER else min(cores, MOST_THREADS)
