"""The short causal convolution of linear attention, within documents that share a sequence."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import silu


def convolved(x: Tensor, weight: Tensor, boundaries: Tensor | None) -> Tensor:
    """Return SiLU of the causal convolution of each channel with its own frozen kernel, within the documents.

    Args:
        x: (rows, tokens, channels).
        weight: (channels, kernel size); its last column is for the position itself.
        boundaries: see :func:`worker.training.model.delta_rule.gated_delta_rule`.
    """
    gap = weight.shape[1] - 1
    places, added = (
        (None, 0) if boundaries is None else (_gaps(boundaries, x.shape[1], gap), gap * (len(boundaries) - 2))
    )
    output: Tensor = _Convolution.apply(x, weight, places, added)  # type: ignore[no-untyped-call]
    return silu(output)


class _Convolution(torch.autograd.Function):
    """Sums of shifted rows; its gradient is the same with the shifts reversed, so nothing but the kernel is kept."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, places: Tensor | None, added: int) -> Tensor:
        ctx.added = added
        ctx.save_for_backward(weight, places)
        return _sum_of_shifts(x, weight, places, added, ahead=False)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None]:
        weight, places = ctx.saved_tensors
        return _sum_of_shifts(gradient, weight, places, ctx.added, ahead=True), None, None, None


def _sum_of_shifts(x: Tensor, weight: Tensor, places: Tensor | None, added: int, *, ahead: bool) -> Tensor:
    """Return, for each position, the weighted sum of it and the positions before (or after) it, computed in fp32."""
    spaced, kernel = _spaced(x.float(), places, added), weight.float()
    total = spaced * kernel[:, -1]
    for distance in range(1, min(kernel.shape[1], spaced.shape[1])):
        early, late = slice(None, -distance), slice(distance, None)
        to, of = (early, late) if ahead else (late, early)
        total[:, to].addcmul_(spaced[:, of], kernel[:, -1 - distance])
    return (total if places is None else total.index_select(1, places)).to(x.dtype)


def _gaps(boundaries: Tensor, tokens: int, gap: int) -> Tensor | None:
    """Return the new place of each token when ``gap`` places are left free before each document except the first; None
    for one document.
    """
    if len(boundaries) == 2:
        return None
    positions = torch.arange(tokens, device=boundaries.device, dtype=boundaries.dtype)
    return positions + gap * torch.searchsorted(boundaries[1:-1], positions, right=True)


def _spaced(x: Tensor, places: Tensor | None, added: int) -> Tensor:
    """Return the tokens at these places, with zeros between them; ``added`` is the number of zeros."""
    if places is None:
        return x
    room = x.new_zeros(x.shape[0], x.shape[1] + added, x.shape[2])
    return room.index_copy_(1, places, x)
