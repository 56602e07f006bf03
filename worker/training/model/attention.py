"""Attention within documents: many rows lie end to end in one sequence, and none attends to another.

Registered with transformers' attention interface, so the model code stays upstream's. The boundaries arrive as
``cu_seq_lens_q`` (the name transformers uses for them): cumulative lengths, int32, shape (documents + 1,). On CUDA one
variable-length kernel computes it (`torch.nn.attention.varlen`); elsewhere each document is one SDPA call.

A document may begin with the same tokens as the one before it. That prefix is then in the sequence only once. Here both
documents are put together again and computed like any others, and the second document's outputs for its prefix are
dropped.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import torch
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface, PreTrainedConfig
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from worker.training.model.linear_attention import keeps_documents_apart

DOCUMENTS = "mens_documents"
"""Name of this attention among transformers' attention implementations."""
PACKABLE_LAYERS = frozenset({"full_attention", "sliding_attention"})
VARLEN_DTYPES = (torch.bfloat16, torch.float16)


def can_pack(model: torch.nn.Module, config: PreTrainedConfig) -> bool:
    """Return whether rows of this model may share a sequence: every layer uses the attention interface, or is a
    linear-attention layer whose forward keeps documents apart (`worker/training/model/linear_attention.py`).
    """
    others = set(getattr(config.get_text_config(), "layer_types", None) or ()) - PACKABLE_LAYERS
    if others:
        return others == {"linear_attention"} and keeps_documents_apart(model)
    return bool(getattr(model, "_supports_attention_backend", False))


def attend_within_documents(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    sliding_window: int | None = None,
    cu_seq_lens_q: torch.Tensor | None = None,
    max_length_q: int | None = None,
    document_lengths: Sequence[tuple[int, int]] = (),
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """Compute causal attention in each document.

    Args:
        query, key, value: (1, heads, tokens, head_dim); key and value may have fewer heads.
        cu_seq_lens_q: boundaries of the documents, each with its prefix; without it the call is ordinary SDPA.
        max_length_q: tokens of the longest document.
        document_lengths: for each document, the length of its prefix in tokens, which are at the beginning of the
            document before it, and the length of the rest; empty: no document has a prefix.
        sliding_window: largest number of tokens that a position attends to, including itself.

    Returns:
        the output, (1, tokens, heads, head_dim), and no weights.
    """
    if cu_seq_lens_q is None or max_length_q is None:
        if attention_mask is None and sliding_window and sliding_window < query.shape[2] == key.shape[2]:
            attention_mask = _window_mask(query.shape[2], sliding_window, query.device)[None, None]
        output, _ = sdpa_attention_forward(module, query, key, value, attention_mask, dropout, scaling, **kwargs)
        return output, None
    window = sliding_window if sliding_window and sliding_window < max_length_q else None
    if document_lengths:
        query, key, value = (_with_prefixes(tensor, document_lengths) for tensor in (query, key, value))
    # The kernel has no dropout.
    if dropout == 0.0 and has_varlen_kernel(query):
        output = _varlen(query, key, value, cu_seq_lens_q, max_length_q, scaling, window)
    else:
        output = _each_document(query, key, value, cu_seq_lens_q, dropout, scaling, window)
    return _without_prefixes(output, document_lengths) if document_lengths else output, None


# Split, not sliced or indexed: the gradient of a split is one concatenation, in the same order on every device.
def _with_prefixes(tensor: torch.Tensor, document_lengths: Sequence[tuple[int, int]]) -> torch.Tensor:
    """Return the documents end to end, each with its prefix: (1, heads, tokens, head_dim)."""
    pieces, before = [], tensor
    for (prefix, _), own in zip(
        document_lengths, tensor.split([length for _, length in document_lengths], dim=2), strict=True
    ):
        pieces += [before[:, :, :prefix], own] if prefix else [own]
        before = own
    return torch.cat(pieces, dim=2)


def _without_prefixes(output: torch.Tensor, document_lengths: Sequence[tuple[int, int]]) -> torch.Tensor:
    """Return the outputs for the tokens in the sequence: (1, tokens, heads, head_dim)."""
    pieces = output.split([length for lengths in document_lengths for length in lengths], dim=1)
    return torch.cat(pieces[1::2], dim=1)


def has_varlen_kernel(query: torch.Tensor) -> bool:
    """Return whether the FlashAttention kernel applies: Ampere or newer, 16 bits, head sizes in multiples of eight up
    to 256.
    """
    if not query.is_cuda or query.dtype not in VARLEN_DTYPES:
        return False
    size = query.shape[-1]
    return torch.cuda.get_device_capability(query.device) >= (8, 0) and size % 8 == 0 and size <= 256


def _varlen(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    boundaries: torch.Tensor,
    longest: int,
    scaling: float | None,
    window: int | None,
) -> torch.Tensor:
    """Run one kernel for all documents; torch counts a window as the positions to the left, without the current one."""
    from torch.nn.attention import varlen

    q, k, v = (tensor[0].transpose(0, 1) for tensor in (query, key, value))
    # Before 2.13 torch has no such argument, and the kernel takes fewer key heads without a flag.
    grouped: dict[str, Any] = (
        {"enable_gqa": q.shape[1] != k.shape[1]} if _has_argument(varlen.varlen_attn, "enable_gqa") else {}
    )
    output = varlen.varlen_attn(
        q,
        k,
        v,
        boundaries,
        boundaries,
        longest,
        longest,
        scale=scaling,
        window_size=(-1 if window is None else window - 1, 0),
        **grouped,
    )
    assert isinstance(output, torch.Tensor)
    return output[None]


@cache
def _has_argument(function: Callable[..., Any], name: str) -> bool:
    return name in inspect.signature(function).parameters


def _each_document(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    boundaries: torch.Tensor,
    dropout: float,
    scaling: float | None,
    window: int | None,
) -> torch.Tensor:
    """Run SDPA per document. The tensors are split, not sliced: the gradient of a split is one concatenation."""
    lengths = boundaries.diff().tolist()
    outputs = []
    for q, k, v in zip(*(tensor.split(lengths, dim=2) for tensor in (query, key, value)), strict=True):
        mask = _window_mask(q.shape[2], window, q.device) if window and window < q.shape[2] else None
        outputs.append(
            scaled_dot_product_attention(
                q,
                k,
                v,
                attn_mask=mask,
                dropout_p=dropout,
                is_causal=mask is None,
                scale=scaling,
                enable_gqa=q.shape[1] != k.shape[1],
            )
        )
    return torch.cat(outputs, dim=2).transpose(1, 2)


def _window_mask(length: int, window: int, device: torch.device) -> torch.Tensor:
    """Return a mask that is true where position i may see position j: j ≤ i and i - j < window."""
    positions = torch.arange(length, device=device)
    distance = positions[:, None] - positions[None, :]
    return (distance >= 0) & (distance < window)


AttentionInterface.register(DOCUMENTS, attend_within_documents)
