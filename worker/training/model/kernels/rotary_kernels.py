"""Rotary embeddings of queries and keys: one kernel, and how it is launched."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def _turn(
    x_at,
    turned_at,
    cos_at,
    sin_at,
    tokens,
    heads,
    size,
    half,
    x_row,
    x_head,
    x_token,
    turned_row,
    turned_head,
    turned_token,
    angle_row,
    angle_token,
    BACK: tl.constexpr,
    HEADS: tl.constexpr,
    HALF: tl.constexpr,
    REST: tl.constexpr,
):
    """Rotate all heads of one token; BACK rotates by the negative angle, which gives the gradient."""
    row = (tl.program_id(0) // tokens).to(tl.int64)
    token = (tl.program_id(0) % tokens).to(tl.int64)
    dtype = turned_at.dtype.element_ty
    head = tl.arange(0, HEADS)[:, None]
    column = tl.arange(0, HALF)[None, :]
    angle = row * angle_row + token * angle_token + column
    cos_first = tl.load(cos_at + angle, mask=column < half, other=0.0).to(tl.float32)
    cos_second = tl.load(cos_at + angle + half, mask=column < half, other=0.0).to(tl.float32)
    sin_first = tl.load(sin_at + angle, mask=column < half, other=0.0).to(tl.float32)
    sin_second = tl.load(sin_at + angle + half, mask=column < half, other=0.0).to(tl.float32)
    inside = (head < heads) & (column < half)
    source = x_at + row * x_row + token * x_token + head * x_head
    target = turned_at + row * turned_row + token * turned_token + head * turned_head
    first = tl.load(source + column, mask=inside, other=0.0).to(tl.float32)
    second = tl.load(source + column + half, mask=inside, other=0.0).to(tl.float32)
    # Each product is rounded before they are added, as torch does it with two tensors.
    if BACK:
        crossed_first = second * sin_second
        crossed_second = -first * sin_first
    else:
        crossed_first = -second * sin_first
        crossed_second = first * sin_second
    first = (first * cos_first).to(dtype).to(tl.float32) + crossed_first.to(dtype).to(tl.float32)
    second = (second * cos_second).to(dtype).to(tl.float32) + crossed_second.to(dtype).to(tl.float32)
    tl.store(target + column, first.to(dtype), mask=inside)
    tl.store(target + column + half, second.to(dtype), mask=inside)
    if REST > 0:
        column = 2 * half + tl.arange(0, REST)[None, :]
        inside = (head < heads) & (column < size)
        tl.store(target + column, tl.load(source + column, mask=inside, other=0.0), mask=inside)


def turn(query: Tensor, key: Tensor, cos: Tensor, sin: Tensor, back: bool) -> tuple[Tensor, Tensor]:
    """Return both, (rows, heads, tokens, size), turned by the angles; ``back`` by their negatives."""
    return _turned(query, cos, sin, back), _turned(key, cos, sin, back)


def _turned(x: Tensor, cos: Tensor, sin: Tensor, back: bool) -> Tensor:
    x, cos, sin = (tensor if tensor.stride(-1) == 1 else tensor.contiguous() for tensor in (x, cos, sin))
    if cos.stride() != sin.stride():
        cos, sin = cos.contiguous(), sin.contiguous()
    rows, heads, tokens, size = x.shape
    half = cos.shape[-1] // 2
    turned = torch.empty_like(x)
    rest = size - 2 * half
    with torch.cuda.device_of(x):
        _turn[(rows * tokens,)](
            x,
            turned,
            cos,
            sin,
            tokens,
            heads,
            size,
            half,
            *x.stride()[:3],
            *turned.stride()[:3],
            cos.stride(0) if len(cos) > 1 else 0,
            cos.stride(1),
            BACK=back,
            HEADS=triton.next_power_of_2(heads),
            HALF=triton.next_power_of_2(half),
            REST=triton.next_power_of_2(rest) if rest else 0,
        )
    return turned
