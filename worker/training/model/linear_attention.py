"""Layers of linear attention (Qwen3.5's gated delta net) that train on packed rows.

Each layer gets a forward of its own; weights, names and LoRA stay as they are. On a GPU, Triton's kernels compute the
convolution and the delta rule where they agree with `convolution.py` and `delta_rule.py`; elsewhere
flash-linear-attention computes the delta rule, if it is installed and agrees. Generation with a cache uses transformers'
forward.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import softplus
from transformers.models.qwen3_5.modeling_qwen3_5 import Qwen3_5GatedDeltaNet

from worker.training.model.convolution import convolved
from worker.training.model.delta_rule import document_starts, gated_delta_rule
from worker.training.model.kernels import choice
from worker.training.model.kernels.delta_rule.functions import DeltaRule, HeadSizes
from worker.training.model.kernels.flash_delta_rule import flash_kernel, flash_scan
from worker.training.model.kernels.functions import Convolved


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
        mixed = layer.in_proj_qkv(hidden_states)
        gate, rate, step = (
            layer.in_proj_z(hidden_states),
            layer.in_proj_b(hidden_states),
            layer.in_proj_a(hidden_states),
        )
        decay = -layer.A_log.float().exp() * softplus(step.float() + layer.dt_bias)
        attended = attend(mixed, layer.conv1d.weight[:, 0], decay, rate.sigmoid(), cu_seq_lens_q, head_sizes(layer))
        normed = layer.norm(attended.reshape(-1, layer.head_v_dim), gate.reshape(-1, layer.head_v_dim))
        output: Tensor = layer.out_proj(normed.view(*hidden_states.shape[:2], -1))
        return output


def head_sizes(layer: Any) -> HeadSizes:
    """Return how a layer's columns are divided."""
    return HeadSizes(layer.num_k_heads, layer.head_k_dim, layer.num_v_heads, layer.head_v_dim)


def attend(
    x: Tensor, weight: Tensor, decay: Tensor, beta: Tensor, boundaries: Tensor | None, sizes: HeadSizes
) -> Tensor:
    """Return the delta rule of the convolved queries, keys and values, (rows, tokens, value heads, value size).

    Args:
        x: queries, keys and values before the convolution, (rows, tokens, channels).
        weight: kernel of the convolution, (channels, kernel size).
        decay, beta, boundaries: see :func:`worker.training.model.delta_rule.gated_delta_rule`.
    """
    if choice.runs_delta_rule(x, sizes):
        first = document_starts(boundaries, x.shape[1])
        mixed = Convolved.apply(x, weight, first)  # type: ignore[no-untyped-call]
        output: Tensor = DeltaRule.apply(mixed, decay, beta, first, sizes)  # type: ignore[no-untyped-call]
        return output
    query, key, value = sizes.split(convolved(x, weight, boundaries))
    query, key = (tensor.repeat_interleave(sizes.value_heads // sizes.key_heads, 2) for tensor in (query, key))
    return scan(query, key, value, decay, beta, boundaries)


def scan(query: Tensor, key: Tensor, value: Tensor, decay: Tensor, beta: Tensor, boundaries: Tensor | None) -> Tensor:
    """Compute the gated delta rule by flash-linear-attention on a GPU on which it agrees, else by `gated_delta_rule`."""
    kernel = flash_kernel(query.device, query.shape[-1], value.shape[-1]) if query.is_cuda else None
    if kernel is None:
        return gated_delta_rule(query, key, value, decay, beta, boundaries)
    return flash_scan(kernel, query, key, value, decay, beta, boundaries)
