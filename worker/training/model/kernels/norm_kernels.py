"""RMSNorm, with the sum before it: kernels and how they are launched. Rows are reduced in fp32."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

ELEMENTS = 4096
"""Number of elements per program: short rows, such as heads, are processed together."""
PROGRAMS = 512
"""Number of programs that share the computation of a weight's gradient: each sums over its rows, then the sums are
added.
"""


@triton.jit
def _norm(
    x_at,
    delta_at,
    weight_at,
    total_at,
    normed_at,
    scale_at,
    rows,
    size,
    x_stride,
    delta_stride,
    eps,
    ADDS: tl.constexpr,
    CENTRED: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """Store ``x + delta`` if ADDS is set, its norm, and the factor that has scaled each row."""
    row = (tl.program_id(0) * ROWS + tl.arange(0, ROWS)).to(tl.int64)
    column = tl.arange(0, COLUMNS)
    inside = (row < rows)[:, None] & (column < size)[None, :]
    place = row[:, None] * size + column[None, :]
    dtype = normed_at.dtype.element_ty
    values = tl.load(x_at + row[:, None] * x_stride + column[None, :], mask=inside, other=0.0).to(tl.float32)
    if ADDS:
        delta = tl.load(delta_at + row[:, None] * delta_stride + column[None, :], mask=inside, other=0.0)
        total = (values + delta.to(tl.float32)).to(dtype)
        tl.store(total_at + place, total, mask=inside)
        values = total.to(tl.float32)
    scale = tl.math.rsqrt(tl.sum(values * values, 1) / size + eps)
    tl.store(scale_at + row, scale, mask=row < rows)
    weight = tl.load(weight_at + column, mask=column < size, other=0.0).to(tl.float32)[None, :]
    normed = values * scale[:, None]
    normed = normed * (1.0 + weight) if CENTRED else normed.to(dtype).to(tl.float32) * weight
    tl.store(normed_at + place, normed.to(dtype), mask=inside)


@triton.jit
def _norm_gradient(
    d_normed_at,
    d_total_at,
    x_at,
    weight_at,
    scale_at,
    dx_at,
    d_weight_at,
    rows,
    size,
    d_normed_stride,
    d_total_stride,
    x_stride,
    ADDS: tl.constexpr,
    CENTRED: tl.constexpr,
    LEARNS: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """Store ``scale · (g - n · mean(g ⊙ n))``, where n is the norm before the weight and g the gradient of n; plus the
    sum's own gradient if ADDS is set.
    """
    column = tl.arange(0, COLUMNS)
    dtype = dx_at.dtype.element_ty
    factor = tl.load(weight_at + column, mask=column < size, other=0.0).to(tl.float32)
    if CENTRED:
        factor = factor + 1.0
    learnt = tl.zeros([COLUMNS], tl.float32)
    for block in range(tl.program_id(0), tl.cdiv(rows, ROWS), tl.num_programs(0)):
        row = (block * ROWS + tl.arange(0, ROWS)).to(tl.int64)
        inside = (row < rows)[:, None] & (column < size)[None, :]
        gradient = tl.load(d_normed_at + row[:, None] * d_normed_stride + column[None, :], mask=inside, other=0.0)
        gradient = gradient.to(tl.float32)
        values = tl.load(x_at + row[:, None] * x_stride + column[None, :], mask=inside, other=0.0).to(tl.float32)
        scale = tl.load(scale_at + row, mask=row < rows, other=0.0)[:, None]
        normed = values * scale
        if LEARNS:
            multiplied = normed if CENTRED else normed.to(dtype).to(tl.float32)
            learnt += tl.sum(gradient * multiplied, 0)
        gradient = gradient * factor[None, :]
        dx = scale * (gradient - normed * (tl.sum(gradient * normed, 1) / size)[:, None])
        if ADDS:
            d_total = tl.load(d_total_at + row[:, None] * d_total_stride + column[None, :], mask=inside, other=0.0)
            dx += d_total.to(tl.float32)
        tl.store(dx_at + row[:, None] * size + column[None, :], dx.to(dtype), mask=inside)
    if LEARNS:
        tl.store(d_weight_at + tl.program_id(0) * size + column, learnt, mask=column < size)


def norm(x: Tensor, delta: Tensor | None, weight: Tensor, eps: float, centred: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Return ``x + delta``, empty without a delta; its norm, and the factor of each row, both in new memory."""
    rows, size = in_rows(x), x.shape[-1]
    normed = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    total = torch.empty_like(normed) if delta is not None else x.new_empty(0)
    scale = torch.empty(len(rows), dtype=torch.float32, device=x.device)
    added = rows if delta is None else in_rows(delta)
    layout = _layout(size)
    with torch.cuda.device_of(x):
        _norm[(triton.cdiv(len(rows), layout["ROWS"]),)](
            rows,
            added,
            weight,
            total,
            normed,
            scale,
            len(rows),
            size,
            rows.stride(0),
            added.stride(0),
            eps,
            ADDS=delta is not None,
            CENTRED=centred,
            **layout,
        )
    return total, normed, scale


def norm_gradient(
    d_normed: Tensor, d_total: Tensor | None, x: Tensor, weight: Tensor, scale: Tensor, centred: bool, learns: bool
) -> tuple[Tensor, Tensor]:
    """Return the gradients of x and of the weight; the latter is an empty tensor if the weight is frozen."""
    rows, size = in_rows(x), x.shape[-1]
    gradient = in_rows(d_normed)
    added = gradient if d_total is None else in_rows(d_total)
    dx = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    layout = _layout(size)
    blocks = triton.cdiv(len(rows), layout["ROWS"])
    programs = min(blocks, PROGRAMS) if learns else blocks
    sums = torch.empty(programs if learns else 0, size, dtype=torch.float32, device=x.device)
    with torch.cuda.device_of(x):
        _norm_gradient[(programs,)](
            gradient,
            added,
            rows,
            weight,
            scale,
            dx,
            sums,
            len(rows),
            size,
            gradient.stride(0),
            added.stride(0),
            rows.stride(0),
            ADDS=d_total is not None,
            CENTRED=centred,
            LEARNS=learns,
            **layout,
        )
    return dx, sums.sum(0).to(weight.dtype) if learns else weight.new_empty(0)


def in_rows(x: Tensor) -> Tensor:
    """Return (rows, size) with neighbouring elements side by side: a view where the layout allows it."""
    rows = x.reshape(-1, x.shape[-1])
    return rows if rows.stride(-1) == 1 else rows.contiguous()


def _layout(size: int) -> dict[str, int]:
    columns = triton.next_power_of_2(size)
    rows = max(1, ELEMENTS // columns)
    return {"ROWS": rows, "COLUMNS": columns, "num_warps": 4 if columns < 2048 else 8 if columns < 8192 else 16}
