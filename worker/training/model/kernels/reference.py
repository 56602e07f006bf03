"""The formulas of the kernels, in torch, rounded at the same places as in transformers' modules.

Kernels are compared with these functions by the tests, and on each GPU before they are used (`choice.py`).
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import silu


def rms_norm(x: Tensor, weight: Tensor, eps: float, *, centred: bool) -> Tensor:
    """Return x (..., size) over the root of its mean square, times the weight (arXiv 1910.07467 §4).

    Args:
        centred: the weight is stored as its distance from one, and multiplies before the result is rounded (Qwen3.5).
    """
    values = x.float()
    normed = values * torch.rsqrt(values.square().mean(-1, keepdim=True) + eps)
    if centred:
        return (normed * (1.0 + weight.float())).to(x.dtype)
    return weight * normed.to(x.dtype)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Return the vectors (rows, heads, tokens, size) turned by their positions' angles (arXiv 2104.09864 §3.4.2).

    Args:
        cos, sin: (rows, tokens, turned); features beyond ``turned`` stay as they are.
    """
    turned = cos.shape[-1]
    part, rest = x[..., :turned], x[..., turned:]
    first, second = part.chunk(2, -1)
    part = part * cos[:, None] + torch.cat([-second, first], -1) * sin[:, None]
    return torch.cat([part, rest], -1)


def gated(gate: Tensor, up: Tensor) -> Tensor:
    """Return ``silu(gate) ⊙ up``."""
    return silu(gate) * up
