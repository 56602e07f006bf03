"""A model of one micro-batch of the trainer's own code: counted on tensors without memory, as it would run on a GPU."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bench.training.counted_model import META, as_on_a_gpu, counted_model, micro_batch
from bench.training.step_counter import Card, StepCounter
from shared.preflight.activations import Recompute
from worker.training.supervised import SupervisedMethod

CARDS = {
    "h100": Card(bandwidth=2.6e12, products=600e12, products_fp32=50e12, attention=350e12),
    "a100": Card(bandwidth=1.6e12, products=240e12, products_fp32=16e12, attention=160e12),
    "rtx4090": Card(bandwidth=0.85e12, products=140e12, products_fp32=60e12, attention=110e12),
}
"""Assumed rates: about four fifths of the published bandwidth and three fifths of the published FLOP/s."""
NOW, TORCH, REFERENCE = "now", "torch", "reference"
RECOMPUTED = {f"recompute {level}": level for level in (Recompute.MLPS, Recompute.BLOCKS)}
DIVISOR = 100.0
"""Divisor of the loss; any number will do."""


def count_step(
    config: Mapping[str, Any], card: Card, rows: int, tokens: int, variant: str = NOW, *, passes: int = 1
) -> StepCounter:
    """Return the counted cost of micro-batches of a variant.

    Args:
        config: the keys of the model's config.json.
        tokens: number of tokens per row.
        variant: ``now``: the trainer as it is; ``recompute mlps`` and ``recompute blocks``; ``torch``: without
            Triton's kernels; ``reference``: with transformers' linear attention, and without kernels.
        passes: number of micro-batches; from the second on, gradients already exist.
    """
    counter, packed = StepCounter(card), variant != REFERENCE
    with as_on_a_gpu(kernels=variant == NOW or variant in RECOMPUTED):
        model = counted_model(config, recompute=RECOMPUTED.get(variant, Recompute.NONE), own_scan=packed)
        batch = micro_batch(rows, tokens, packed=packed)
        with counter:
            for _ in range(passes):
                SupervisedMethod().loss(model, batch, META, DIVISOR).loss.backward()
    return counter
