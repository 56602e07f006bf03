"""Shapes of Qwen3 models: the numbers of a ``config.json`` that decide the cost of a training step."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Shape:
    """A dense Qwen3.

    Attributes:
        hidden: width of the residual stream.
        intermediate: width of the MLP.
        vocabulary: rows of the embedding.
        tied: whether the embedding is also the head.
    """

    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    vocabulary: int
    tied: bool

    @classmethod
    def of_width(cls, hidden: int, vocabulary: int) -> Shape:
        """Return a small shape with four layers; its other numbers follow from its width."""
        return cls(hidden, 4, hidden // 32, hidden // 64, 32, 3 * hidden, vocabulary, tied=True)


SHAPES = {  # from 0.6B on, as published by Qwen
    "tiny": Shape(128, 2, 4, 2, 32, 384, 4096, tied=True),
    "0.6B": Shape(1024, 28, 16, 8, 128, 3072, 151_936, tied=True),
    "1.7B": Shape(2048, 28, 16, 8, 128, 6144, 151_936, tied=True),
    "4B": Shape(2560, 36, 32, 8, 128, 9728, 151_936, tied=True),
    "8B": Shape(4096, 36, 32, 8, 128, 12_288, 151_936, tied=False),
}
