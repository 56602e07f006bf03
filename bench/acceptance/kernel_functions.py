"""Triton's kernels as functions; on a CPU, where they cannot run, torch's formulas instead, so that a stage's own code
runs there too.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from torch import Tensor

from worker.training.model.kernels import reference
from worker.training.model.kernels.functions import Gated, NormedSum, Rotation


def normed_sum(x: Tensor, delta: Tensor | None, weight: Tensor, eps: float, centred: bool) -> tuple[Tensor, Tensor]:
    """Return the result of :class:`NormedSum`."""
    total = x if delta is None else x + delta
    return total, reference.rms_norm(total, weight, eps, centred=centred)


def rotated(query: Tensor, key: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    """Return the result of :class:`Rotation`."""
    return reference.rotate(query, cos, sin), reference.rotate(key, cos, sin)


IN_PLACE: dict[str, Callable[..., Any]] = {"NormedSum": normed_sum, "Rotation": rotated, "Gated": reference.gated}
KERNELS = {"NormedSum": NormedSum, "Rotation": Rotation, "Gated": Gated}


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
