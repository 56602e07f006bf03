"""Layers of linear attention (Qwen3.5's gated delta net) that train on packed rows.

Each layer gets a forward of its own; weights, names and LoRA stay as they are. On a GPU on which flash-linear-attention
is installed and agrees with `delta_rule.py`, it computes the delta rule instead. Generation with a cache uses
transformers' forward.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import silu, softplus
from transformers.models.qwen3_5.modeling_qwen3_5 import Qwen3_5GatedDeltaNet

from worker.training.model.delta_rule import gated_delta_rule
from worker.training.model.kernels.flash_delta_rule import flash_kernel, flash_scan


def linear_layers(model: torch.nn.Module) -> list[torch.nn.Module]:
    """Return the model's layers of linear attention."""
    return [module for module in model.modules() if isinstance(module, Qwen3_5GatedDeltaNet)]


def use_own_scan(model: torch.nn.Module) -> None:
    """Give every layer of linear attention the forward that keeps documents apart."""
    for layer in linear_layers(model):
        layer.forward = DocumentScan(layer).forward


def keeps_documents_apart(model: torch.nn.Module) -> bool:
    """Return whether every layer of linear attention has the forward that keeps documents apart."""
    return all("forward" in vars(layer) for layer in linear_layers(model))


class DocumentScan:
    """Replaces the forward of one layer."""

    def __init__(self, layer: Any) -> None:
        self.layer = layer
        self.original: Callable[..., Tensor] = layer.forward

    def forward(
        self,
        hidden_states: Tensor,
        cache_params: Any = None,
        attention_mask: Tensor | None = None,
        cu_seq_lens_q: Tensor | None = None,
        **others: Any,
    ) -> Tensor:
        """Compute the layer.

        Args:
            hidden_states: (rows, tokens, hidden).
            attention_mask: (rows, tokens), zero where a row is padded.
            cu_seq_lens_q: boundaries of the documents in the one row; None: each row is a document.
        """
        if cache_params is not None:
            return self.original(hidden_states, cache_params, attention_mask, **others)
        layer = self.layer
        if attention_mask is not None:
            hidden_states = hidden_states * attention_mask[..., None].to(hidden_states.dtype)
        mixed = convolved(layer.in_proj_qkv(hidden_states), layer.conv1d.weight[:, 0], cu_seq_lens_q)
        gate, rate, step = (
            layer.in_proj_z(hidden_states),
            layer.in_proj_b(hidden_states),
            layer.in_proj_a(hidden_states),
        )
        query, key, value = mixed.split([layer.key_dim, layer.key_dim, layer.value_dim], dim=-1)
        repeats = layer.num_v_heads // layer.num_k_heads
        query, key = (_heads(tensor, layer.head_k_dim).repeat_interleave(repeats, 2) for tensor in (query, key))
        decay = -layer.A_log.float().exp() * softplus(step.float() + layer.dt_bias)
        attended = scan(query, key, _heads(value, layer.head_v_dim), decay, rate.sigmoid(), cu_seq_lens_q)
        normed = layer.norm(attended.reshape(-1, layer.head_v_dim), gate.reshape(-1, layer.head_v_dim))
        output: Tensor = layer.out_proj(normed.view(*hidden_states.shape[:2], -1))
        return output


def scan(query: Tensor, key: Tensor, value: Tensor, decay: Tensor, beta: Tensor, boundaries: Tensor | None) -> Tensor:
    """Compute the gated delta rule by flash-linear-attention on a GPU on which it agrees, else by `gated_delta_rule`."""
    kernel = flash_kernel(query.device, query.shape[-1], value.shape[-1]) if query.is_cuda else None
    if kernel is None:
        return gated_delta_rule(query, key, value, decay, beta, boundaries)
    return flash_scan(kernel, query, key, value, decay, beta, boundaries)


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


def _heads(x: Tensor, size: int) -> Tensor:
    return x.view(*x.shape[:-1], -1, size)
