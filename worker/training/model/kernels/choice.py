"""Decides where the kernels run: on a GPU on which they agree with torch. No other module decides this."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor

from worker.training.model.convolution import convolved
from worker.training.model.delta_rule import document_starts, gated_delta_rule
from worker.training.model.kernels import reference
from worker.training.model.kernels.delta_rule.functions import DeltaRule, HeadSizes
from worker.training.model.kernels.functions import Convolved, Gated, NormedSum, Rotation

TOLERANCE = 0.02
"""Largest relative distance from torch's results, in bfloat16: a few times its rounding error."""
SIZE, TOKENS, HEADS, EPS = 96, 5, 3, 1e-6
DOCUMENTS, KERNEL = (0, 37, 101), 4
"""Two documents, the second of which begins in the middle of a chunk and ends in another; positions of a convolution."""
logger = logging.getLogger(__name__)


def runs_kernels(x: Tensor) -> bool:
    """Return whether norms, rotary embeddings and SwiGLU of this tensor are computed by kernels."""
    return x.is_cuda and kernels_agree(x.device)


def runs_delta_rule(x: Tensor, sizes: HeadSizes) -> bool:
    """Return whether convolution and delta rule of linear attention are computed by kernels: only in bfloat16."""
    return x.is_cuda and x.dtype == torch.bfloat16 and delta_rule_agrees(x.device, sizes)


@cache
def kernels_agree(device: torch.device) -> bool:
    """Try every kernel once on the device, forward and backward, except those of linear attention; return whether all
    agree with torch.

    A machine without a C compiler, which Triton needs, and a GPU that Triton does not know then train without kernels.
    """
    return _agree("Triton's kernels", partial(largest_distance, device, torch.bfloat16))


@cache
def delta_rule_agrees(device: torch.device, sizes: HeadSizes) -> bool:
    """Try the kernels of linear attention once for heads of these sizes; return whether they agree with torch."""
    # Heads are independent of each other, so the example has those of one key head.
    sizes = HeadSizes(1, sizes.key_size, sizes.value_heads // sizes.key_heads, sizes.value_size)
    return _agree("Triton's kernels of linear attention", partial(delta_distance, device, torch.bfloat16, sizes))


def _agree(name: str, measure: Callable[[], float]) -> bool:
    try:
        # The first caller may compute without gradients.
        with torch.inference_mode(mode=False), torch.enable_grad():
            distance = measure()
    except Exception:
        logger.warning("%s do not run here; torch is used instead", name, exc_info=True)
        return False
    if not distance < TOLERANCE:  # also if it is not a number
        logger.warning("%s differ by %.3g from torch, which is used instead", name, distance)
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


def delta_distance(device: torch.device, dtype: torch.dtype, sizes: HeadSizes) -> float:
    """Return the largest distance of values or gradients of the convolution's and the delta rule's kernels from those
    that torch computes in fp32, relative to their norm.
    """
    generator = torch.Generator().manual_seed(0)

    def random(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator)

    tokens, channels = DOCUMENTS[-1], 2 * sizes.key_heads * sizes.key_size + sizes.value_heads * sizes.value_size
    edges = torch.tensor(DOCUMENTS, dtype=torch.int32, device=device)
    x, weight = random(1, tokens, channels).to(device, dtype), random(channels, KERNEL).to(device, dtype)
    decay = -random(1, tokens, sizes.value_heads).abs().to(device)
    beta = random(1, tokens, sizes.value_heads).sigmoid().to(device, dtype)

    def by_kernels(x: Tensor, decay: Tensor, beta: Tensor) -> Tensor:
        first = document_starts(edges, tokens)
        mixed = Convolved.apply(x, weight, first)  # type: ignore[no-untyped-call]
        return DeltaRule.apply(mixed, decay, beta, first, sizes)  # type: ignore[no-any-return, no-untyped-call]

    def by_torch(x: Tensor, decay: Tensor, beta: Tensor) -> Tensor:
        query, key, value = sizes.split(convolved(x, weight, edges))
        query, key = (heads.repeat_interleave(sizes.value_heads // sizes.key_heads, 2) for heads in (query, key))
        return gated_delta_rule(query, key, value, decay, beta, edges)

    def computed(compute: Callable[..., Tensor], *inputs: Tensor) -> list[Tensor]:
        leaves = [values.detach().requires_grad_() for values in inputs]
        output = compute(*leaves)
        seed = torch.linspace(-1, 1, output.numel(), device=device).view_as(output).to(output.dtype)
        return [output.detach(), *torch.autograd.grad(output, leaves, seed)]

    ours, exact = computed(by_kernels, x, decay, beta), computed(by_torch, x.float(), decay, beta.float())
    distances = [_distance(values.float(), other) for values, other in zip(ours, exact, strict=True)]
    return float(torch.stack(distances).max().item())
