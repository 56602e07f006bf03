"""Decides where the kernels run: on a GPU on which they agree with torch. No other module decides this."""

from __future__ import annotations

import logging
from functools import cache
from typing import Any

import torch
from torch import Tensor

from worker.training.model.kernels import reference
from worker.training.model.kernels.functions import Gated, NormedSum, Rotation

TOLERANCE = 0.02
"""Largest relative distance from torch's results, in bfloat16: a few times its rounding error."""
SIZE, TOKENS, HEADS, EPS = 96, 5, 3, 1e-6
logger = logging.getLogger(__name__)


def runs_kernels(x: Tensor) -> bool:
    """Return whether norms, rotary embeddings and SwiGLU of this tensor are computed by kernels."""
    return x.is_cuda and kernels_agree(x.device)


@cache
def kernels_agree(device: torch.device) -> bool:
    """Try every kernel once on the device, forward and backward; return whether all agree with torch.

    A machine without a C compiler, which Triton needs, and a GPU that Triton does not know then train without kernels.
    """
    try:
        # The first caller may compute without gradients.
        with torch.inference_mode(mode=False), torch.enable_grad():
            distance = largest_distance(device, torch.bfloat16)
    except Exception:
        logger.warning("Triton's kernels do not run here; torch is used instead", exc_info=True)
        return False
    if not distance < TOLERANCE:  # also if it is not a number
        logger.warning("Triton's kernels differ by %.3g from torch, which is used instead", distance)
        return False
    return True


def largest_distance(device: torch.device, dtype: torch.dtype) -> float:
    """Return the largest distance of a kernel's values or gradients from torch's, relative to their norm."""
    generator = torch.Generator().manual_seed(0)

    def random(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator).to(device, dtype).requires_grad_()

    x, delta, weight = random(TOKENS, SIZE), random(TOKENS, SIZE), random(SIZE)
    query, key = random(1, HEADS, TOKENS, SIZE), random(1, 1, TOKENS, SIZE)
    cos, sin = (angle.detach() for angle in (random(1, TOKENS, SIZE // 2), random(1, TOKENS, SIZE // 2)))
    pairs: list[tuple[Any, tuple[Tensor, ...], tuple[Tensor, ...]]] = [
        (
            NormedSum.apply(x, delta, weight, EPS, centred),  # type: ignore[no-untyped-call]
            (x + delta, reference.rms_norm(x + delta, weight, EPS, centred=centred)),
            (x, delta, weight),
        )
        for centred in (False, True)
    ]
    pairs += [
        (
            Rotation.apply(query, key, cos, sin),  # type: ignore[no-untyped-call]
            (reference.rotate(query, cos, sin), reference.rotate(key, cos, sin)),
            (query, key),
        ),
        ((Gated.apply(x, delta),), (reference.gated(x, delta),), (x, delta)),  # type: ignore[no-untyped-call]
    ]
    # With torch's maximum and not Python's, because torch's is NaN if one of the distances is.
    return float(torch.cat([_distances(ours, theirs, inputs) for ours, theirs, inputs in pairs]).max().item())


def _distances(ours: tuple[Tensor, ...], theirs: tuple[Tensor, ...], inputs: tuple[Tensor, ...]) -> Tensor:
    seeds = [
        torch.linspace(-1, 1, values.numel(), device=values.device).view_as(values).to(values.dtype) for values in ours
    ]
    values, other = ((*outputs, *torch.autograd.grad(outputs, inputs, seeds)) for outputs in (ours, theirs))
    return torch.stack([_distance(a.detach().float(), b.detach().float()) for a, b in zip(values, other, strict=True)])


def _distance(ours: Tensor, theirs: Tensor) -> Tensor:
    distance: Tensor = (ours - theirs).norm() / theirs.norm()
    return distance
