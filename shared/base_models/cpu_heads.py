"""Sizes of attention heads that vLLM computes on a CPU. A base with others can be trained here, and served on a GPU."""

from __future__ import annotations

from typing import NamedTuple

from shared.base_models.config import ModelConfig

CPU_HEAD_SIZES = (32, 64, 80, 96, 112, 128, 160, 192, 224, 256, 512)
"""As vLLM's CPU backend states them. With any other size the engine ends at its first request."""
CPU_LINEAR_HEAD_SIZES = (64, 128)
"""Sizes that vLLM's kernel for linear attention accepts on a CPU."""


class UnservedHead(NamedTuple):
    """A size of heads for which vLLM has no kernel on a CPU: its key in the config, and the sizes with one."""

    key: str
    size: int
    served: tuple[int, ...]

    def __str__(self) -> str:
        return f"The base's {self.key} is {self.size}; on a CPU vLLM supports only {', '.join(map(str, self.served))}."


def unserved_head(config: ModelConfig) -> UnservedHead | None:
    """Return the first size of a base's heads that vLLM does not serve on a CPU; None if it serves all."""
    sizes = [UnservedHead("head_dim", config.head_dim, CPU_HEAD_SIZES)]
    if config.linear:
        sizes.append(UnservedHead("linear_key_head_dim", config.linear.key_head_dim, CPU_LINEAR_HEAD_SIZES))
        sizes.append(UnservedHead("linear_value_head_dim", config.linear.value_head_dim, CPU_LINEAR_HEAD_SIZES))
    return next((head for head in sizes if head.size not in head.served), None)
