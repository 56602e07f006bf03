"""The gated delta rule by the kernels, as a function that torch can differentiate (first derivatives only)."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from worker.training.model.kernels.delta_rule import operators


class HeadSizes(NamedTuple):
    """How the columns of a tensor are divided into queries, keys and values."""

    key_heads: int
    key_size: int
    value_heads: int
    value_size: int

    def split(self, mixed: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return views of queries, keys and values, (rows, tokens, heads, size)."""
        keys = self.key_heads * self.key_size
        query, key, value = mixed.split([keys, keys, self.value_heads * self.value_size], -1)
        by_head = (-1, (self.key_heads, self.key_size))
        return query.unflatten(*by_head), key.unflatten(*by_head), value.unflatten(-1, (-1, self.value_size))


class DeltaRule(torch.autograd.Function):
    """`delta_rule.py:gated_delta_rule` of queries, keys and values in one tensor, whose gradient is one tensor too."""

    @staticmethod
    def forward(ctx: Any, mixed: Tensor, decay: Tensor, beta: Tensor, first: Tensor | None, sizes: HeadSizes) -> Tensor:
        """Return (rows, tokens, value heads, value size).

        Args:
            mixed: (rows, tokens, queries + keys + values), with fewer heads of queries and keys than of values.
            decay, beta: (rows, tokens, value heads); the logarithms in fp32.
            first: (tokens,), int32, the position at which each position's document starts; None: each row is one.
        """
        mixed, decay, beta = mixed.contiguous(), decay.contiguous(), beta.contiguous()
        query, key, value = sizes.split(mixed)
        total, inverse = operators.inverse(decay, beta, key, first)
        fresh, old = operators.solved(key, value, beta, total, first, inverse)
        states, written = operators.states(key, fresh, old, total, first)
        ctx.sizes = sizes
        ctx.save_for_backward(mixed, beta, first, total, inverse, old, states, written)
        output: Tensor = operators.outputs(query, key, total, first, states, written)
        return output

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        mixed, beta, first, total, inverse, old, states, written = ctx.saved_tensors
        query, key, value = ctx.sizes.split(mixed)
        gradient, d_mixed = gradient.contiguous(), torch.empty_like(mixed)
        d_query, d_key, d_value = ctx.sizes.split(d_mixed)
        direct = operators.direct_gradient(query, key, total, first, gradient)
        d_states, d_written = operators.state_gradients(query, key, old, total, first, gradient, direct)
        del direct
        d_normal_query, d_read_key, d_old, d_totals = operators.output_gradients(
            query, key, total, first, states, written, gradient, d_states, d_written
        )
        del d_states
        operators.head_gradient(query, d_normal_query, d_query)
        del d_normal_query
        d_normal_key, d_decay, d_beta = operators.system_gradients(
            key, value, beta, total, first, inverse, d_written, d_old, d_read_key, d_totals, d_value
        )
        operators.head_gradient(key, d_normal_key, d_key)
        return d_mixed, d_decay, d_beta, None, None
