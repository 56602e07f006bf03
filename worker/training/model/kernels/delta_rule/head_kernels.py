"""Gradients of queries and keys from those of the value heads that share them."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from worker.training.model.delta_rule import EPSILON
from worker.training.model.kernels.delta_rule.tiles import columns, factor, store_tile, tile

TOKENS = 32


@triton.jit
def _head_gradient(
    x_at,
    d_normal_at,
    d_x_at,
    tokens,
    key_heads,
    keys,
    x_stride,
    d_x_stride,
    REPEATS: tl.constexpr,
    EPSILON: tl.constexpr,
    TOKENS: tl.constexpr,
    KEYS: tl.constexpr,
):
    """Store ``scale ⊙ (g - n ⊙ (g·n))`` for the norm n of a vector, its factor, and the sum g of the heads' gradients."""
    token = tl.program_id(0).to(tl.int64) * TOKENS + tl.arange(0, TOKENS)
    head, inside = tl.program_id(1), token < tokens
    x = tile(x_at, token, inside, x_stride, head * keys, keys, KEYS)
    scale = factor(x, EPSILON)
    gradient = tl.zeros([TOKENS, KEYS], tl.float32)
    for repeat in tl.static_range(REPEATS):
        at = (head * REPEATS + repeat) * keys
        gradient += tile(d_normal_at, token, inside, key_heads * REPEATS * keys, at, keys, KEYS).to(tl.float32)
    normal = x.to(tl.float32) * scale[:, None]
    gradient = scale[:, None] * (gradient - normal * tl.sum(normal * gradient, 1)[:, None])
    store_tile(d_x_at, gradient, token, inside, d_x_stride, head * keys, keys, KEYS)


def delta_head_gradient(x: Tensor, d_normal: Tensor, d_x: Tensor) -> None:
    """Store the gradient of queries or keys, for that of their normalised values by value head."""
    rows, tokens, key_heads, keys = x.shape
    with torch.cuda.device_of(x):
        _head_gradient[(triton.cdiv(rows * tokens, TOKENS), key_heads)](
            x,
            d_normal,
            d_x,
            rows * tokens,
            key_heads,
            keys,
            x.stride(1),
            d_x.stride(1),
            REPEATS=d_normal.shape[2] // key_heads,
            EPSILON=EPSILON,
            TOKENS=TOKENS,
            KEYS=columns(keys),
        )
