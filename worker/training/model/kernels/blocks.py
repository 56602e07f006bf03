"""Gives the kernels to a model of transformers: its modules get a new forward, which computes as before where
`choice.py` chooses no kernel. Weights and names are unchanged.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from transformers.activations import SiLUActivation
from transformers.models.llama.modeling_llama import LlamaDecoderLayer, LlamaMLP, LlamaRMSNorm
from transformers.models.mistral.modeling_mistral import MistralDecoderLayer, MistralMLP, MistralRMSNorm
from transformers.models.qwen2.modeling_qwen2 import Qwen2DecoderLayer, Qwen2MLP, Qwen2RMSNorm
from transformers.models.qwen3.modeling_qwen3 import Qwen3DecoderLayer, Qwen3MLP, Qwen3RMSNorm
from transformers.models.qwen3_5.modeling_qwen3_5 import Qwen3_5DecoderLayer, Qwen3_5MLP, Qwen3_5RMSNorm

from worker.training.model.kernels import choice
from worker.training.model.kernels.functions import Gated, NormedSum, Rotation

NORMS = (LlamaRMSNorm, MistralRMSNorm, Qwen2RMSNorm, Qwen3RMSNorm, Qwen3_5RMSNorm)
BLOCKS = (LlamaDecoderLayer, MistralDecoderLayer, Qwen2DecoderLayer, Qwen3DecoderLayer, Qwen3_5DecoderLayer)
MLPS = (LlamaMLP, MistralMLP, Qwen2MLP, Qwen3MLP, Qwen3_5MLP)
ATTENTION_ALONE = ("position_ids", "position_embeddings", "past_key_values")
"""Arguments of a block that are not passed to its linear attention."""


def use_kernels(model: nn.Module) -> None:
    """Replace the forward of norms, blocks and MLPs, and the family's function of rotary embeddings, by ones with
    kernels.
    """
    for module in model.modules():
        if type(module) in NORMS:
            module.forward = Norm(module).forward
        elif type(module) in BLOCKS:
            module.forward = Block(module).forward
        elif type(module) in MLPS and isinstance(module.act_fn, nn.SiLU | SiLUActivation):
            module.forward = Mlp(module).forward
    family: Any = sys.modules[type(model).__module__]
    rotate = getattr(family, "apply_rotary_pos_emb", None)
    # The function belongs to transformers' module, so to all models of the family.
    if rotate is not None and not isinstance(rotate, Rotary):
        family.apply_rotary_pos_emb = Rotary(rotate)


class Norm:
    """Replaces the forward of an RMSNorm."""

    def __init__(self, norm: Any) -> None:
        self.norm = norm
        self.original: Callable[[Tensor], Tensor] = norm.forward

    def forward(self, hidden_states: Tensor) -> Tensor:
        """Return the normalised states, (..., size)."""
        if can_norm(self.norm, hidden_states):
            return normed_sum(self.norm, hidden_states)[1]
        return self.original(hidden_states)


def can_norm(norm: Any, x: Tensor) -> bool:
    """Return whether a kernel computes this norm; weights of a different dtype would change the dtype of the result."""
    return bool(norm.weight.dtype == x.dtype and choice.runs_kernels(x))


def normed_sum(norm: Any, x: Tensor, delta: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Return the sum, or x alone, and its norm."""
    centred = isinstance(norm, Qwen3_5RMSNorm)
    eps = norm.eps if centred else norm.variance_epsilon
    pair: tuple[Tensor, Tensor] = NormedSum.apply(x, delta, norm.weight, eps, centred)  # type: ignore[no-untyped-call]
    return pair


def plain_sum(norm: Any, x: Tensor, delta: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Return the sum, or x alone, and its norm, as a family's block computes them in torch."""
    total = x if delta is None else x + delta
    return total, norm(total)


def forgotten(normed: Tensor, total: Tensor, norm: Any) -> saved_tensors_hooks:
    """Return a context in which the norm's input is kept for the backward pass instead of the norm, which is then
    recomputed.
    """
    memory = normed.untyped_storage()._cdata  # noqa: SLF001  # its address would be none on meta tensors
    total = total.detach()

    def pack(saved: Tensor) -> Tensor | Callable[[], Tensor]:
        # The memory alone does not identify a tensor: a transpose or a part of the norm is kept unchanged.
        is_norm = saved.untyped_storage()._cdata == memory and layout_of(saved) == layout  # noqa: SLF001
        return again if is_norm else saved

    @torch.no_grad()
    def again() -> Tensor:
        return norm(total)  # type: ignore[no-any-return]

    def layout_of(tensor: Tensor) -> tuple[object, ...]:
        return tensor.shape, tensor.stride(), tensor.storage_offset()

    layout = layout_of(normed)
    return saved_tensors_hooks(pack, lambda packed: packed() if callable(packed) else packed)


class Block:
    """Replaces the forward of a decoder's block: its sums and norms are one kernel each, forward and backward.

    Attributes:
        recomputes: norms are computed again in the backward pass.
    """

    def __init__(self, block: Any) -> None:
        self.block, self.recomputes = block, False
        self.original: Callable[..., Tensor] = block.forward

    def forward(self, hidden_states: Tensor, **named: Any) -> Tensor:
        """Return the block's output, (rows, tokens, hidden)."""
        block = self.block
        has_kernels = can_norm(block.input_layernorm, hidden_states)
        if not (has_kernels or self.recomputes):
            return self.original(hidden_states, **named)
        add_up = normed_sum if has_kernels else plain_sum
        # Below fp32, torch's norm keeps its input in fp32. Keeping the input again, to recompute the norm, would save
        # nothing.
        recomputes = self.recomputes and (has_kernels or hidden_states.dtype == torch.float32)
        stream, normed = add_up(block.input_layernorm, hidden_states)
        with forgotten(normed, stream, block.input_layernorm) if recomputes else nullcontext():
            mixed = self._mix(normed, named)
        stream, normed = add_up(block.post_attention_layernorm, stream, mixed)
        with forgotten(normed, stream, block.post_attention_layernorm) if recomputes else nullcontext():
            output: Tensor = stream + block.mlp(normed)
        return output

    def _mix(self, normed: Tensor, named: dict[str, Any]) -> Tensor:
        if hasattr(self.block, "linear_attn"):
            others = {name: value for name, value in named.items() if name not in ATTENTION_ALONE}
            past = named.get("past_key_values")
            mixed: Tensor = self.block.linear_attn(hidden_states=normed, cache_params=past, **others)
            return mixed
        mixed, _ = self.block.self_attn(hidden_states=normed, **named)
        return mixed


class Mlp:
    """Replaces the forward of a SwiGLU MLP; `lora_fusion.py` replaces it once more where its products are fused."""

    def __init__(self, mlp: Any) -> None:
        self.mlp = mlp
        self.original: Callable[[Tensor], Tensor] = mlp.forward

    def forward(self, x: Tensor) -> Tensor:
        """Return the MLP's output, (..., hidden)."""
        if not choice.runs_kernels(x):
            return self.original(x)
        mlp = self.mlp
        inner = Gated.apply(mlp.gate_proj(x), mlp.up_proj(x))  # type: ignore[no-untyped-call]
        output: Tensor = mlp.down_proj(inner)
        return output


class Rotary:
    """Replaces a family's function of rotary embeddings."""

    def __init__(self, original: Callable[..., tuple[Tensor, Tensor]]) -> None:
        self.original = original

    def __call__(self, q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, unsqueeze_dim: int = 1) -> tuple[Tensor, Tensor]:
        """Turn both, (rows, heads, tokens, size)."""
        if unsqueeze_dim != 1 or not (q.dtype == k.dtype == cos.dtype and choice.runs_kernels(q)):
            return self.original(q, k, cos, sin, unsqueeze_dim)
        pair: tuple[Tensor, Tensor] = Rotation.apply(q, k, cos, sin)  # type: ignore[no-untyped-call]
        return pair
