"""Lower bounds on the cost of a QLoRA step, computed from shapes and rows (arXiv 2305.14314 for the bytes of NF4)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bench.training.recipe import Recipe
from bench.training.shapes import Shape
from shared.preflight.activations import Recompute

NF4_BYTES_PER_WEIGHT = 0.5 + 1 / 64 + 4 / (64 * 256)
LORA_STATE_BYTES = 16
"""Weight, gradient and two moments of a LoRA parameter, fp32."""


class Roofline:
    """The minimum time and memory of a recipe on a device.

    Args:
        shape: the base's shape.
        recipe: rows and rank.
        device: the probed ``flops`` and ``bytes_per_second``.
    """

    def __init__(self, shape: Shape, recipe: Recipe, device: dict[str, float]) -> None:
        self.shape, self.recipe, self.device = shape, recipe, device
        lengths = [len(row["input_ids"]) for row in recipe.rows]
        self.tokens = sum(lengths)
        self.keys = sum(length * (length + 1) / 2 for length in lengths) / self.tokens
        self.supervised = sum(recipe.targets(step) for step in range(len(recipe.rates))) / self.tokens

    @property
    def weights(self) -> int:
        """Weights of the linear layers in the blocks."""
        return self.shape.layers * sum(inputs * outputs for inputs, outputs in self._linears())

    @property
    def lora(self) -> int:
        """Parameters of the adapter."""
        return self.shape.layers * self.recipe.rank * sum(inputs + outputs for inputs, outputs in self._linears())

    @property
    def flops_per_token(self) -> float:
        """FLOPs of forward and backward: no weight gradients of the base, the head only on supervised tokens."""
        s = self.shape
        attention = 3 * 4 * s.heads * s.head_dim * s.layers * self.keys
        return 4 * self.weights + 6 * self.lora + attention + 4 * s.hidden * s.vocabulary * self.supervised

    @property
    def tokens_per_second(self) -> float:
        """Rate at the measured peak. Each step also reads the NF4 weights once and dequantises them twice, without
        overlap.
        """
        moved = 2 * len(self.recipe.rates) * self.weights * (NF4_BYTES_PER_WEIGHT + 2)
        seconds = self.tokens * self.flops_per_token / self.device["flops"] + moved / self.device["bytes_per_second"]
        return self.tokens / seconds

    def memory_floor(self, budget: Mapping[str, Any]) -> int:
        """Return the total bytes of the NF4 weights, bf16 embeddings, the adapter with its optimizer state, and the
        minimal activations of a micro-batch.

        Args:
            budget: the trainer's reported budget: ``tokens``, ``recompute``, ``cache_dequantised``.
        """
        s = self.shape
        embeddings = 2 * s.hidden * s.vocabulary * (1 if s.tied else 2)
        tokens: int = min(budget.get("tokens", self.recipe.seq_len), self.tokens // len(self.recipe.rates))
        # Bytes per token and layer that are saved for the backward pass, bf16: recomputing keeps only a layer's input.
        minimal = 4 * (s.hidden + s.heads * s.head_dim + s.kv_heads * s.head_dim + s.intermediate)
        per_layer: int = 2 * s.hidden if budget.get("recompute") == Recompute.BLOCKS else minimal
        cache = 2 * self.weights if budget.get("cache_dequantised") else 0
        fixed = self.weights * NF4_BYTES_PER_WEIGHT + embeddings + LORA_STATE_BYTES * self.lora + cache
        return round(fixed + tokens * s.layers * per_layer)

    def _linears(self) -> list[tuple[int, int]]:
        s = self.shape
        queries, keys = s.heads * s.head_dim, s.kv_heads * s.head_dim
        mlp = [(s.hidden, s.intermediate)] * 3
        return [(s.hidden, queries), (s.hidden, keys), (s.hidden, keys), (queries, s.hidden), *mlp]

    def __str__(self) -> str:
        return (
            f"{self.device['flops'] / 1e12:.1f} TFLOP/s, {self.device['bytes_per_second'] / 1e12:.2f} TB/s, "
            f"roofline {self.tokens_per_second:.0f} tokens/s"
        )
