"""The contents of a fused module, and when its function replaces the module's own forward."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from bitsandbytes.functional import dequantize_4bit
from bitsandbytes.nn import Linear4bit
from torch import Tensor, nn

from worker.training.model.fused_functions import SharedInput, SwiGlu

SWIGLU = ("gate_proj", "up_proj", "down_proj")
PROBE_TOKENS = 4


def compute_dtype_of(base: nn.Module) -> torch.dtype:
    """Return the dtype of the activations that a frozen linear layer takes."""
    weight: Any = base.weight
    dtype: torch.dtype = weight.quant_state.dtype if isinstance(base, Linear4bit) else weight.dtype
    return dtype


class Projection:
    """A frozen linear layer, quantised or not, and its LoRA if it has one."""

    def __init__(self, module: nn.Module, base: nn.Linear, adapter: str | None) -> None:
        self.module, self.base, self.adapter = module, base, adapter
        self.dtype = compute_dtype_of(base)
        self._cached: Tensor | None = None
        self._cached_from: Tensor | None = None
        if isinstance(base, Linear4bit):
            # bitsandbytes' inference layout for CPUs needs its own kernel; dequantised as NF4 it would be noise.
            base.support_avx512bf16_for_cpu = False

    @property
    def bias(self) -> Tensor | None:
        """Bias (out,), or None."""
        return self.base.bias

    def weight(self) -> Tensor:
        """Return the weight (out, in) in the compute dtype."""
        weight = self.base.weight
        if not isinstance(self.base, Linear4bit):
            return weight
        if self._cached is not None and self._cached_from is weight:  # peft's merge replaces the weight here
            return self._cached
        # A weight that is gathered from its shards is a plain tensor; the layer has the state as well.
        state = getattr(weight, "quant_state", None) or self.base.quant_state
        return dequantize_4bit(weight.data, state)  # type: ignore[no-any-return]

    def keep_dequantised(self) -> None:
        """Dequantise the weight now and keep the result; do nothing for a weight that is not quantised."""
        if isinstance(self.base, Linear4bit):
            self._cached, self._cached_from = self.weight(), self.base.weight

    @property
    def cached_bytes(self) -> int:
        return 0 if self._cached is None else self._cached.nbytes

    @property
    def has_adapter(self) -> bool:
        """Return true if the projection has an adapter, and it is switched on."""
        return self.adapter is not None and not self.module.disable_adapters

    @property
    def scale(self) -> float:
        return float(self.module.scaling[self.adapter]) if self.has_adapter else 0.0  # type: ignore[index]

    @property
    def lora(self) -> tuple[Tensor | None, Tensor | None]:
        """A (r, in) and B (out, r); None while the adapter is switched off."""
        if not self.has_adapter:
            return None, None
        layer: Any = self.module
        return layer.lora_A[self.adapter].weight, layer.lora_B[self.adapter].weight

    def is_as_fused(self) -> bool:
        """Return whether peft would now compute the fused formula: at most this adapter is active, and it is not
        merged.
        """
        layer: Any = self.module
        if self.adapter is None:
            return True
        if layer.merged:  # peft unmerges it first
            return False
        return bool(layer.disable_adapters) or (
            list(layer.lora_A) == [self.adapter] and list(layer.active_adapters) == [self.adapter]
        )


def _can_fuse(projections: Iterable[Projection], x: Tensor) -> bool:
    """Return whether x can take the fused path: autocast would cast inside a fused function, and tensors of inference
    mode do not track changes.
    """
    return (
        all(projection.is_as_fused() and projection.dtype == x.dtype for projection in projections)
        and not x.is_inference()
        and not torch.is_autocast_enabled(x.device.type)
    )


def _flat_lora(projections: Iterable[Projection]) -> list[Tensor | None]:
    return [tensor for projection in projections for tensor in projection.lora]


class InputGroup:
    """Projections that are called in succession on the same tensor; a group of one is a single projection.

    A call of the first one computes all, and the others then return their waiting outputs, but only for the identical
    tensor; any other call computes only its own projection. No output waits beyond the forward of the parent module.
    """

    def __init__(self, projections: Sequence[Projection]) -> None:
        self.projections = projections
        self._waiting: dict[int, Tensor] = {}
        self._waiting_for: tuple[Any, int, bool] | None = None
        for place, projection in enumerate(projections):
            projection.module.forward = _Member(self, place, projection.module.forward).forward

    def output(self, place: int, x: Tensor) -> Tensor:
        """Return the output of one projection, computed now or waiting."""
        if place and self._is_waiting_for(x) and place in self._waiting:
            return self._waiting.pop(place)
        if place or len(self.projections) == 1:
            return self._compute(x, self.projections[place : place + 1])[0]
        first, *others = self._compute(x, self.projections)
        self._waiting = dict(enumerate(others, start=1))
        self._waiting_for = weakref.ref(x), x._version, torch.is_grad_enabled()  # noqa: SLF001
        return first

    def forget(self, *_: object) -> None:
        """Drop waiting outputs; this is a forward hook of the parent, for calls that failed midway."""
        self._waiting, self._waiting_for = {}, None

    def _is_waiting_for(self, x: Tensor) -> bool:
        if self._waiting_for is None:
            return False
        awaited, version, with_gradient = self._waiting_for
        return awaited() is x and version == x._version and with_gradient == torch.is_grad_enabled()  # noqa: SLF001

    @staticmethod
    def _compute(x: Tensor, projections: Sequence[Projection]) -> tuple[Tensor, ...]:
        scales = [projection.scale for projection in projections]
        return SharedInput.apply(x, projections, scales, *_flat_lora(projections))  # type: ignore[no-any-return, no-untyped-call]


class _Member:
    """Replaces the forward of one module of a group."""

    def __init__(self, group: InputGroup, place: int, original: Callable[..., Tensor]) -> None:
        self.group, self.place, self.original = group, place, original

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        if len(args) != 1 or kwargs or not _can_fuse(self.group.projections, args[0]):
            return self.original(*args, **kwargs)
        return self.group.output(self.place, args[0])


class FusedMlp:
    """A SwiGLU MLP as one function.

    Attributes:
        recomputes: the outputs of gate and up are computed again in the backward pass.
    """

    def __init__(self, mlp: nn.Module, projections: Sequence[Projection]) -> None:
        self.mlp, self.projections = mlp, projections
        self.recomputes = False
        self.original: Callable[..., Tensor] = mlp.forward

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        """Replace the MLP's forward: fused if it applies to the input, otherwise the original."""
        if len(args) != 1 or kwargs or not self._is_as_fused(args[0]):
            return self.original(*args, **kwargs)
        return self.compute(args[0])

    def install(self) -> None:
        self.mlp.forward = self.forward

    def compute(self, x: Tensor) -> Tensor:
        scales = [projection.scale for projection in self.projections]
        return SwiGlu.apply(x, self.projections, scales, self.recomputes, *_flat_lora(self.projections))  # type: ignore[no-any-return, no-untyped-call]

    def _is_as_fused(self, x: Tensor) -> bool:
        """Return whether the MLP still has the modules that were fused: unloading the adapter replaces all three."""
        return _can_fuse(self.projections, x) and all(
            getattr(self.mlp, name) is projection.module
            for name, projection in zip(SWIGLU, self.projections, strict=True)
        )

    @torch.no_grad()
    def agrees_with_original(self) -> bool:
        """Return whether the MLP's own forward is the plain formula; families differ in ways that names do not show."""
        first = self.projections[0]
        width = first.base.in_features
        x = torch.linspace(-1, 1, PROBE_TOKENS * width, dtype=first.dtype, device=first.base.weight.device)
        x = x.view(1, PROBE_TOKENS, width)
        expected = self.original(x)
        error = ((self.compute(x) - expected).norm() / expected.norm()).item()
        return bool(error < torch.finfo(x.dtype).eps ** 0.5)
