"""flash-linear-attention's kernel for the gated delta rule: used on a GPU on which it agrees with `delta_rule.py`."""

from __future__ import annotations

import importlib
import logging
from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor

from worker.training.model.delta_rule import gated_delta_rule
from worker.training.model.kernels.choice import TOLERANCE

BOUNDARIES = (0, 37, 101)
"""Two documents, the second of which begins in the middle of a chunk and ends in another."""
HEADS = 2
FlashKernel = Callable[..., Any]
logger = logging.getLogger(__name__)


@cache
def installed_kernel() -> FlashKernel | None:
    """Return the chunked kernel; None where it cannot be imported."""
    try:
        module = importlib.import_module("fla.ops.gated_delta_rule")
    except ImportError:
        return None
    kernel: FlashKernel = module.chunk_gated_delta_rule
    return kernel


@cache
def flash_kernel(device: torch.device, key_size: int, value_size: int) -> FlashKernel | None:
    """Try the kernel once for heads of these sizes, forward and backward; None where it is missing, fails or differs.

    On some GPUs the kernel refuses some versions of Triton, but only in its backward pass; with other versions it has
    computed wrong gradients.
    """
    kernel = installed_kernel()
    if kernel is None:
        return None
    try:
        # The first caller may compute without gradients.
        with torch.inference_mode(mode=False), torch.enable_grad():
            distance = largest_distance(kernel, device, key_size, value_size)
    except Exception:
        logger.warning("flash-linear-attention does not run here; torch is used instead", exc_info=True)
        return None
    if not distance < TOLERANCE:  # also if it is not a number
        logger.warning("flash-linear-attention differs by %.3g from torch, which is used instead", distance)
        return None
    return kernel


def flash_scan(
    kernel: FlashKernel,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    decay: Tensor,
    beta: Tensor,
    boundaries: Tensor | None,
) -> Tensor:
    """Compute the gated delta rule by the kernel, with the arguments of `gated_delta_rule`."""
    output, _ = kernel(query, key, value, g=decay, beta=beta, use_qk_l2norm_in_kernel=True, cu_seqlens=boundaries)
    result: Tensor = output
    return result


def largest_distance(kernel: FlashKernel, device: torch.device, key_size: int, value_size: int) -> float:
    """Return the largest distance of the kernel's values or gradients in bfloat16 from torch's in float32, relative to their norm."""
    generator = torch.Generator().manual_seed(0)
    tokens = BOUNDARIES[-1]
    sizes = ((HEADS, key_size), (HEADS, key_size), (HEADS, value_size), (HEADS,), (HEADS,))
    query, key, value, decay, beta = (torch.randn(1, tokens, *size, generator=generator) for size in sizes)
    inputs = [query.bfloat16(), key.bfloat16(), value.bfloat16(), -decay.abs(), beta.sigmoid()]
    edges = torch.tensor(BOUNDARIES, dtype=torch.int32, device=device)

    def computed(scan: Callable[..., Tensor], leaves: list[Tensor]) -> list[Tensor]:
        output = scan(*(leaf.requires_grad_() for leaf in leaves), edges)
        seed = torch.linspace(-1, 1, output.numel(), device=device).view_as(output).to(output.dtype)
        return [output, *torch.autograd.grad(output, leaves, seed)]

    ours = computed(lambda *arguments: flash_scan(kernel, *arguments), [leaf.to(device) for leaf in inputs])
    exact = computed(gated_delta_rule, [leaf.to(device, torch.float32) for leaf in inputs])
    distances = [(values.float() - other).norm() / other.norm() for values, other in zip(ours, exact, strict=True)]
    return float(torch.stack(distances).max().item())
