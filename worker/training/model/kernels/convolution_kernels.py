"""The short causal convolution of linear attention with SiLU: kernels and how they are launched."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

TOKENS, CHANNELS = 16, 64
"""Tile of one program. Its tokens read the same earlier tokens, which stay in the cache."""


@triton.jit
def _sum_before(x_at, weight_at, row, token, first, channel, channels, mask, SIZE: tl.constexpr):
    """Return the weighted sum of each position and those before it in its document, fp32."""
    total = tl.zeros(mask.shape, tl.float32)
    for distance in tl.static_range(SIZE):
        weight = tl.load(weight_at + channel * SIZE + SIZE - 1 - distance, mask=channel < channels, other=0.0)
        seen = mask & (token - distance >= first)[:, None]
        place = (row + token - distance).to(tl.int64)[:, None] * channels + channel[None, :]
        total += tl.load(x_at + place, mask=seen, other=0.0).to(tl.float32) * weight.to(tl.float32)[None, :]
    return total


@triton.jit
def _convolved(
    x_at,
    weight_at,
    first_at,
    y_at,
    tokens,
    channels,
    DOCUMENTS: tl.constexpr,
    SIZE: tl.constexpr,
    TOKENS: tl.constexpr,
    CHANNELS: tl.constexpr,
):
    channel = tl.program_id(0) * CHANNELS + tl.arange(0, CHANNELS)
    token = tl.program_id(1) * TOKENS + tl.arange(0, TOKENS)
    row = tl.program_id(2).to(tl.int64) * tokens
    first = tl.load(first_at + token, mask=token < tokens, other=0) if DOCUMENTS else token * 0
    mask = (token < tokens)[:, None] & (channel < channels)[None, :]
    dtype = y_at.dtype.element_ty
    total = _sum_before(x_at, weight_at, row, token, first, channel, channels, mask, SIZE).to(dtype).to(tl.float32)
    place = (row + token).to(tl.int64)[:, None] * channels + channel[None, :]
    tl.store(y_at + place, (total / (1.0 + tl.exp(-total))).to(dtype), mask=mask)


@triton.jit
def _convolved_gradient(
    d_y_at,
    x_at,
    weight_at,
    first_at,
    d_x_at,
    tokens,
    channels,
    DOCUMENTS: tl.constexpr,
    SIZE: tl.constexpr,
    TOKENS: tl.constexpr,
    CHANNELS: tl.constexpr,
):
    """Store the sum over the position itself and those after it in its document of their sums' gradients."""
    channel = tl.program_id(0) * CHANNELS + tl.arange(0, CHANNELS)
    token = tl.program_id(1) * TOKENS + tl.arange(0, TOKENS)
    row = tl.program_id(2).to(tl.int64) * tokens
    dtype = d_x_at.dtype.element_ty
    mask = (token < tokens)[:, None] & (channel < channels)[None, :]
    d_x = tl.zeros([TOKENS, CHANNELS], tl.float32)
    for distance in tl.static_range(SIZE):
        later = token + distance
        exists = later < tokens
        first = tl.load(first_at + later, mask=exists, other=0) if DOCUMENTS else later * 0
        inside = (exists & (first <= token))[:, None] & mask
        total = _sum_before(x_at, weight_at, row, later, first, channel, channels, inside, SIZE)
        total = total.to(dtype).to(tl.float32)
        place = (row + later).to(tl.int64)[:, None] * channels + channel[None, :]
        gradient = tl.load(d_y_at + place, mask=inside, other=0.0).to(tl.float32)
        share = 1.0 / (1.0 + tl.exp(-total))
        gradient = (gradient * share * (1.0 + total * (1.0 - share))).to(dtype).to(tl.float32)
        weight = tl.load(weight_at + channel * SIZE + SIZE - 1 - distance, mask=channel < channels, other=0.0)
        d_x += gradient * weight.to(tl.float32)[None, :]
    place = (row + token).to(tl.int64)[:, None] * channels + channel[None, :]
    tl.store(d_x_at + place, d_x.to(dtype), mask=mask)


def convolved(x: Tensor, weight: Tensor, first: Tensor | None) -> Tensor:
    """Return the activated sums, in new memory."""
    x = x.contiguous()
    y = torch.empty_like(x)
    with torch.cuda.device_of(x):
        _convolved[_grid(x)](
            x,
            weight.contiguous(),
            first,
            y,
            *x.shape[1:],
            DOCUMENTS=first is not None,
            SIZE=weight.shape[1],
            TOKENS=TOKENS,
            CHANNELS=CHANNELS,
        )
    return y


def convolved_gradient(gradient: Tensor, x: Tensor, weight: Tensor, first: Tensor | None) -> Tensor:
    """Return the gradient of x, in new memory."""
    gradient, x = gradient.contiguous(), x.contiguous()
    d_x = torch.empty_like(x)
    with torch.cuda.device_of(x):
        _convolved_gradient[_grid(x)](
            gradient,
            x,
            weight.contiguous(),
            first,
            d_x,
            *x.shape[1:],
            DOCUMENTS=first is not None,
            SIZE=weight.shape[1],
            TOKENS=TOKENS,
            CHANNELS=CHANNELS,
        )
    return d_x


def _grid(x: Tensor) -> tuple[int, int, int]:
    rows, tokens, channels = x.shape
    return triton.cdiv(channels, CHANNELS), triton.cdiv(tokens, TOKENS), rows
