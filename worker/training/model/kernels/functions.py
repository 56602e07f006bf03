"""The kernels as functions that torch can differentiate (first derivatives only)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from worker.training.model.kernels import operators


class NormedSum(torch.autograd.Function):
    """``x + delta``, or x, and its norm. The gradients of both flow back in one pass, and are the same for x and delta."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, delta: Tensor | None, weight: Tensor, eps: float, centred: bool
    ) -> tuple[Tensor, Tensor]:
        """Return sum and norm, each (..., size); `centred` as in `reference.py:rms_norm`."""
        total, normed, scale = operators.norm(x, delta, weight, eps, centred=centred)
        if delta is None:
            total = x
        ctx.centred, ctx.adds = centred, delta is not None
        ctx.save_for_backward(total, weight, scale)
        ctx.set_materialize_grads(False)
        return total, normed

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_total: Tensor | None, d_normed: Tensor | None) -> tuple[Tensor | None, ...]:
        total, weight, scale = ctx.saved_tensors
        learns = ctx.needs_input_grad[2]
        dx, d_weight = d_total, None
        if d_normed is not None:
            dx, d_weight = operators.norm_gradient(
                d_normed, d_total, total, weight, scale, centred=ctx.centred, learns=learns
            )
        return dx, dx if ctx.adds else None, d_weight, None, None


class Rotation(torch.autograd.Function):
    """Rotary embeddings of queries and keys."""

    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
        """Return both rotated, (rows, heads, tokens, size); cos and sin are (rows or 1, tokens, turned)."""
        ctx.save_for_backward(cos, sin)
        return operators.turn(query, key, cos, sin, back=False)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, query: Tensor, key: Tensor) -> tuple[Tensor | None, ...]:
        return *operators.turn(query, key, *ctx.saved_tensors, back=True), None, None


class Gated(torch.autograd.Function):
    """``silu(gate) ⊙ up`` of an MLP whose products are not fused."""

    @staticmethod
    def forward(ctx: Any, gate: Tensor, up: Tensor) -> Tensor:
        """Return the product, (..., inner)."""
        ctx.save_for_backward(gate, up)
        return operators.gated(gate, up)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:
        # A copy, because others may hold the gradient.
        own = gradient.clone(memory_format=torch.contiguous_format)
        _, d_gate, d_up = operators.gated_gradients(own, *ctx.saved_tensors)
        return d_gate, d_up


class Convolved(torch.autograd.Function):
    """SiLU of the causal convolution of each channel with its own frozen kernel, within documents."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, first: Tensor | None) -> Tensor:
        """Return (rows, tokens, channels); arguments as in `operators.py:convolved`."""
        ctx.save_for_backward(x, weight, first)
        return operators.convolved(x, weight, first)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        return operators.convolved_gradient(gradient, *ctx.saved_tensors), None, None
