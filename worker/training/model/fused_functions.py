"""Frozen linear layers with LoRA, several in one autograd function.

Notation: ``W`` (out, in) is frozen, ``A`` (r, in) and ``B`` (out, r) are learnt, ``s`` is the adapter's scale, rows of
``x`` are tokens. A projection is ``y = x Wᵀ + b + s (x Aᵀ) Bᵀ`` (arXiv 2106.09685 §4.1); with ``g`` = dL/dy its gradients are

    u  = s g B          (tokens, r)
    dx = g W + u A      dA = uᵀ x      dB = s gᵀ (x Aᵀ)

so only the thin ``x Aᵀ`` must be kept in addition to ``x``. Projections of the same ``x`` share the products with it:
their A's are stacked, one matrix product takes ``x`` down to all ranks, and their parts of ``dx`` are added up in one
buffer.

Low-rank products are taken in the dtype of the activations, where matrix units are fast and no second copy of ``x`` is
needed; sums inside them are fp32. dA and dB leave them as fp32, never rounded to bf16: they are summed over a step's
micro-batches and then over steps by the optimizer, where rounding errors would accumulate. On fp32 activations all of
this is peft's own arithmetic, up to the order of sums.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn.functional import linear, silu

from worker.training.model.kernels import choice, operators

Grads = Sequence[Tensor | None]  # dL/dy of each projection; None if the loss does not depend on it


class Frozen(Protocol):
    """A linear layer that is not trained."""

    @property
    def bias(self) -> Tensor | None:
        """Bias (out,), or None."""
        ...

    def weight(self) -> Tensor:
        """Return the weight (out, in) in the dtype of the activations; it may be a new tensor at each call."""
        ...


@dataclass(frozen=True, slots=True)
class ProjectionLora:
    """LoRA of one projection: scale s, A and B; A and B are None for a projection without LoRA."""

    scale: float
    down: Tensor | None
    up: Tensor | None

    @property
    def rank(self) -> int:
        return 0 if self.down is None else len(self.down)


def pair_up(scales: Sequence[float], lora: Sequence[Tensor | None]) -> list[ProjectionLora]:
    """Return the adapters of projections whose tensors are given as A₀, B₀, A₁, B₁, …"""
    return [ProjectionLora(*three) for three in zip(scales, lora[::2], lora[1::2], strict=True)]


def project(
    x: Tensor, frozen: Sequence[Frozen], adapters: Sequence[ProjectionLora], thin: Tensor | None = None
) -> tuple[list[Tensor], Tensor]:
    """Return the outputs (..., out) of projections of the same x (..., in), and their ``x Aᵀ`` side by side, (tokens,
    ranks), which the caller may pass if it is already known.
    """
    thin = _all_thin(_rows(x), adapters) if thin is None else thin
    outputs = []
    for layer, adapter, part in zip(frozen, adapters, _per_adapter(thin, adapters, 1), strict=True):
        y = linear(x, layer.weight(), layer.bias)
        if adapter.up is not None:
            y.view(-1, y.shape[-1]).addmm_(part, adapter.up.to(y.dtype).t(), alpha=adapter.scale)
        outputs.append(y)
    return outputs, thin


def input_gradient(
    grads: Grads, x: Tensor, slim: Tensor, frozen: Sequence[Frozen], adapters: Sequence[ProjectionLora]
) -> Tensor:
    """Return dx, the sum over all projections; `slim` holds their u's side by side, from `slim_gradients`."""
    stacked = _stacked_downs(adapters, x.dtype)
    dx = None if stacked is None else slim @ stacked
    for grad, layer in zip(grads, frozen, strict=True):
        if grad is not None:
            dx = _rows(grad) @ layer.weight() if dx is None else dx.addmm_(_rows(grad), layer.weight())
    return torch.zeros_like(x) if dx is None else dx.view(x.shape)


def slim_gradients(grads: Grads, thin: Tensor, adapters: Sequence[ProjectionLora]) -> Tensor:
    """Return ``u = s g B`` of all projections side by side, like `thin`: (tokens, ranks)."""
    slim = torch.empty_like(thin)
    for grad, adapter, part in zip(grads, adapters, _per_adapter(slim, adapters, 1), strict=True):
        if grad is None or adapter.up is None:
            part.zero_()
        else:
            part.addmm_(_rows(grad), adapter.up.to(grad.dtype), beta=0, alpha=adapter.scale)
    return slim


def adapter_gradients(
    grads: Grads, x: Tensor, thin: Tensor, slim: Tensor, adapters: Sequence[ProjectionLora]
) -> list[Tensor | None]:
    """Return dA₀, dB₀, dA₁, dB₁, …; None without LoRA or if the loss does not depend on the output."""
    learnt = [adapter.down for adapter in adapters if adapter.down is not None]
    if not learnt:
        return [None, None] * len(adapters)
    downs = _per_adapter(_outer(slim, _rows(x), learnt[0].dtype), adapters, 0)
    gradients: list[Tensor | None] = []
    for grad, adapter, down, part in zip(grads, adapters, downs, _per_adapter(thin, adapters, 1), strict=True):
        if grad is None or adapter.up is None:
            gradients += [None, None]
        else:
            # As (part)ᵀ g and not gᵀ (part): with the few rows first the product is up to 1.5x faster on a CPU.
            gradients += [down, _outer(part, _rows(grad), adapter.up.dtype).mul_(adapter.scale).t()]
    return gradients


def _rows(x: Tensor) -> Tensor:
    return x.reshape(-1, x.shape[-1])


def _per_adapter(tensor: Tensor, adapters: Sequence[ProjectionLora], dim: int) -> tuple[Tensor, ...]:
    """Return views of the parts that belong to each adapter; empty ones for layers without LoRA."""
    views: tuple[Tensor, ...] = tensor.split([adapter.rank for adapter in adapters], dim)
    return views


def _stacked_downs(adapters: Sequence[ProjectionLora], dtype: torch.dtype) -> Tensor | None:
    """Return all A's, one below the other: (ranks, in); None without LoRA."""
    downs = [adapter.down for adapter in adapters if adapter.down is not None]
    if not downs:
        return None
    return (downs[0] if len(downs) == 1 else torch.cat(downs)).to(dtype)


def _all_thin(rows: Tensor, adapters: Sequence[ProjectionLora]) -> Tensor:
    stacked = _stacked_downs(adapters, rows.dtype)
    return rows.new_empty(len(rows), 0) if stacked is None else rows @ stacked.t()


def _outer(left: Tensor, other: Tensor, dtype: torch.dtype) -> Tensor:
    """Return ``leftᵀ other``, summed over tokens, directly in the dtype of a parameter."""
    if left.dtype == dtype:
        return left.t() @ other
    # Only the product on CUDA takes the dtype of its result.
    if left.is_cuda:
        return torch.mm(left.t(), other, out_dtype=dtype)
    return left.t().to(dtype) @ other.to(dtype)


class SharedInput(torch.autograd.Function):
    """One or more projections of the same input."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, frozen: Sequence[Frozen], scales: Sequence[float], *lora: Tensor | None
    ) -> tuple[Tensor, ...]:
        """Return outputs (..., out) of x (..., in), one per frozen layer; `lora`: A₀, B₀, A₁, B₁, … or None."""
        outputs, thin = project(x, frozen, pair_up(scales, lora))
        ctx.frozen, ctx.scales = frozen, scales
        ctx.save_for_backward(x, thin, *lora)
        # Otherwise autograd would allocate zeros for every output that the loss does not depend on.
        ctx.set_materialize_grads(False)
        return tuple(outputs)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        x, thin, *lora = ctx.saved_tensors
        adapters = pair_up(ctx.scales, lora)
        slim = slim_gradients(grads, thin, adapters)
        learnt = adapter_gradients(grads, x, thin, slim, adapters)
        dx = input_gradient(grads, x, slim, ctx.frozen, adapters) if ctx.needs_input_grad[0] else None
        return dx, None, None, *learnt


class SwiGlu(torch.autograd.Function):
    """``down(silu(gate(x)) ⊙ up(x))`` (arXiv 2002.05202 §2), each of the three a projection with or without LoRA.

    Only the outputs of gate and up are kept from its wide intermediates (tokens, inner), two of the four that autograd
    would keep; their product is recomputed in the backward pass, and if memory is scarce, so are the two outputs.
    """

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, frozen: Sequence[Frozen], scales: Sequence[float], recomputes: bool, *lora: Tensor | None
    ) -> Tensor:
        """Return y (..., out) of x (..., in); frozen layers, scales and pairs A, B are in the order gate, up, down."""
        adapters = pair_up(scales, lora)
        (gate, up), thin = project(x, frozen[:2], adapters[:2])
        (y,), inner_thin = project(gated(gate, up), frozen[2:], adapters[2:])
        ctx.frozen, ctx.scales = frozen, scales
        ctx.save_for_backward(x, thin, *((None, None) if recomputes else (gate, up)), inner_thin, *lora)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, thin, gate, up, inner_thin, *lora = ctx.saved_tensors
        adapters = pair_up(ctx.scales, lora)
        if gate is None:
            (gate, up), _ = project(x, ctx.frozen[:2], adapters[:2], thin)
        d_gate, d_up, learnt_down = _through_down(grad, gate, up, inner_thin, ctx.frozen[2:], adapters[2:])
        grads, outer = (d_gate, d_up), adapters[:2]
        slim = slim_gradients(grads, thin, outer)
        learnt = adapter_gradients(grads, x, thin, slim, outer)
        dx = input_gradient(grads, x, slim, ctx.frozen[:2], outer) if ctx.needs_input_grad[0] else None
        return dx, None, None, None, *learnt, *learnt_down


def gated(gate: Tensor, up: Tensor) -> Tensor:
    """Return ``silu(gate) ⊙ up``."""
    return operators.gated(gate, up) if choice.runs_kernels(gate) else silu(gate).mul_(up)


def _through_down(
    grad: Tensor, gate: Tensor, up: Tensor, thin: Tensor, frozen: Sequence[Frozen], adapters: Sequence[ProjectionLora]
) -> tuple[Tensor, Tensor, list[Tensor | None]]:
    """Return dL/dgate, dL/dup and the gradients of down's A and B; uses at most three wide temporaries."""
    slim = slim_gradients((grad,), thin, adapters)
    if choice.runs_kernels(gate):
        d_inner = input_gradient((grad,), gate, slim, frozen, adapters)
        inner, d_gate, d_up = operators.gated_gradients(d_inner, gate, up)
        return d_gate, d_up, adapter_gradients((grad,), inner, thin, slim, adapters)
    activated = silu(gate)
    inner = activated * up
    learnt = adapter_gradients((grad,), inner, thin, slim, adapters)
    d_inner = input_gradient((grad,), inner, slim, frozen, adapters)
    through_gate = torch.mul(d_inner, up, out=inner)
    d_gate = torch.ops.aten.silu_backward.grad_input(through_gate, gate, grad_input=through_gate)
    return d_gate, d_inner.mul_(activated), learnt
