"""``silu(gate) ⊙ up`` and its gradients: kernels and how they are launched."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK = 1024


@triton.jit
def _gated(gate_at, up_at, inner_at, count, BLOCK: tl.constexpr):
    place = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    dtype = inner_at.dtype.element_ty
    gate = tl.load(gate_at + place, mask=place < count, other=0.0).to(tl.float32)
    up = tl.load(up_at + place, mask=place < count, other=0.0).to(tl.float32)
    activated = (gate / (1.0 + tl.exp(-gate))).to(dtype).to(tl.float32)
    tl.store(inner_at + place, (activated * up).to(dtype), mask=place < count)


@triton.jit
def _gated_gradients(d_inner_at, gate_at, up_at, inner_at, d_gate_at, count, BLOCK: tl.constexpr):
    """Store the product again, the gradient of gate and, in place of the product's gradient, the gradient of up."""
    place = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = place < count
    dtype = inner_at.dtype.element_ty
    d_inner = tl.load(d_inner_at + place, mask=inside, other=0.0).to(tl.float32)
    gate = tl.load(gate_at + place, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(up_at + place, mask=inside, other=0.0).to(tl.float32)
    share = 1.0 / (1.0 + tl.exp(-gate))
    activated = (gate * share).to(dtype).to(tl.float32)
    through_gate = (d_inner * up).to(dtype).to(tl.float32)
    tl.store(inner_at + place, (activated * up).to(dtype), mask=inside)
    tl.store(d_gate_at + place, (through_gate * share * (1.0 + gate * (1.0 - share))).to(dtype), mask=inside)
    tl.store(d_inner_at + place, (d_inner * activated).to(dtype), mask=inside)


def gated(gate: Tensor, up: Tensor) -> Tensor:
    """Return the product, in new memory."""
    gate, up = gate.contiguous(), up.contiguous()
    inner = torch.empty_like(up)
    with torch.cuda.device_of(up):
        _gated[(triton.cdiv(up.numel(), BLOCK),)](gate, up, inner, up.numel(), BLOCK=BLOCK)
    return inner


def gated_gradients(d_inner: Tensor, gate: Tensor, up: Tensor) -> tuple[Tensor, Tensor]:
    """Return the product and gate's gradient; up's gradient takes the place of ``d_inner``, which is contiguous."""
    assert d_inner.is_contiguous()
    gate, up = gate.contiguous(), up.contiguous()
    inner, d_gate = torch.empty_like(up), torch.empty_like(up)
    with torch.cuda.device_of(up):
        _gated_gradients[(triton.cdiv(up.numel(), BLOCK),)](d_inner, gate, up, inner, d_gate, up.numel(), BLOCK=BLOCK)
    return inner, d_gate
