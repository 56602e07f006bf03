"""Number of threads that compute with a base on a CPU, in serving and in training.

Another thread pays off where a layer computes much longer than it takes to distribute the work and wait for all
threads. With a tiny base it does not, and on busy cores each of the many small waits lasts until the other thread gets
its turn: steps become many times slower. A larger base reads its weights once a token, and the cores read them
together.
"""

from __future__ import annotations

from shared.base_models.config import ModelConfig
from shared.base_models.tensors import linear_layers

SMALL_LAYER = 250_000
"""Mean number of weights of a linear layer below which one thread computes."""
MOST_THREADS = 32
"""Most threads: more of them only wait for memory, which all share."""


def cpu_threads(config: ModelConfig, cores: int) -> int:
    """Return the number of threads, by the size of the base's layers and the cores that the process may use."""
    layers = linear_layers(config).values()
    mean = sum(inputs * outputs for inputs, outputs in layers) / max(1, len(layers))
    return 1 if mean < SMALL_LAYER else min(cores, MOST_THREADS)
