"""Triton's kernels as functions; on a CPU, where they cannot run, torch's formulas instead, so that a stage's own code
runs there too.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from worker.training.model.convolution import convolved
from worker.training.model.delta_rule import gated_delta_rule
from worker.training.model.kernels import reference
from worker.training.model.kernels.delta_rule.functions import DeltaRule, HeadSizes
from worker.training.model.kernels.functions import Convolved, Gated, NormedSum, Rotation


def normed_sum(x: Tensor, delta: Tensor | None, weight: Tensor, eps: float, centred: bool) -> tuple[Tensor, Tensor]:
    """Return the result of :class:`NormedSum`."""
    total = x if delta is None else x + delta
    return total, reference.rms_norm(total, weight, eps, centred=centred)


def rotated(query: Tensor, key: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    """Return the result of :class:`Rotation`."""
    return reference.rotate(query, cos, sin), reference.rotate(key, cos, sin)


def convolution(x: Tensor, weight: Tensor, first: Tensor | None) -> Tensor:
    """Return the result of :class:`Convolved`."""
    return convolved(x, weight, _boundaries(first))


def delta_rule(mixed: Tensor, decay: Tensor, beta: Tensor, first: Tensor | None, sizes: HeadSizes) -> Tensor:
    """Return the result of :class:`DeltaRule`."""
    query, key, value = sizes.split(mixed)
    query, key = (heads.repeat_interleave(sizes.value_heads // sizes.key_heads, 2) for heads in (query, key))
    return gated_delta_rule(query, key, value, decay, beta, _boundaries(first))


def _boundaries(first: Tensor | None) -> Tensor | None:
    """Return the boundaries of documents, for the position at which each position's document starts."""
    return None if first is None else torch.cat([first.unique_consecutive(), first.new_tensor([len(first)])])


IN_PLACE: dict[str, Callable[..., Any]] = {
    "NormedSum": normed_sum,
    "Rotation": rotated,
    "Gated": reference.gated,
    "Convolved": convolution,
    "DeltaRule": delta_rule,
}
KERNELS = {
    "NormedSum": NormedSum,
    "Rotation": Rotation,
    "Gated": Gated,
    "Convolved": Convolved,
    "DeltaRule": DeltaRule,
}


@dataclass(frozen=True)
class KernelFunctions:
    """The functions by name, each with its ``apply``, and the name of their implementation: ``Triton`` or ``torch``."""

    computed_by: str
    functions: dict[str, Any]

    @classmethod
    def of(cls, device: str) -> KernelFunctions:
        """Return the kernel functions that run on a device."""
        if device == "cpu":
            return cls("torch", {name: SimpleNamespace(apply=in_place) for name, in_place in IN_PLACE.items()})
        return cls("Triton", dict(KERNELS))

    def apply(self, name: str) -> Callable[..., Any]:
        """Return one of them."""
        function: Callable[..., Any] = self.functions[name].apply
        return function
