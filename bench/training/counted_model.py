"""The trainer's own model and micro-batch, for counting operations and memory: on meta tensors, which have shapes but
no memory, with the branches of a GPU; or on a CPU.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import bitsandbytes
import numpy as np
import torch
from bitsandbytes.nn import Linear4bit, Params4bit
from peft import PeftModel
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM, masking_utils

from bench.training.shapes import SHAPES, Shape
from shared.contract.sections import AdapterSection
from shared.preflight.activations import Recompute
from worker.training.data.batches import MicroBatch, collate
from worker.training.data.prepared import Row
from worker.training.model import attention, fused_functions
from worker.training.model.fused_modules import FusedMlp
from worker.training.model.kernels import choice
from worker.training.model.kernels.blocks import use_kernels
from worker.training.model.linear_attention import use_own_scan
from worker.training.model.load import attach_lora
from worker.training.model.lora_fusion import fuse_lora
from worker.training.model.recompute import set_recompute

META = torch.device("meta")
UNSUPERVISED = 0.7
"""Share of a row's tokens without a loss."""


def config_of(shape: Shape) -> dict[str, Any]:
    """Return the keys of a config.json with this shape."""
    return {
        "model_type": "qwen3",
        "hidden_size": shape.hidden,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.head_dim,
        "intermediate_size": shape.intermediate,
        "vocab_size": shape.vocabulary,
        "tie_word_embeddings": shape.tied,
    }


QWEN3_5 = {
    "model_type": "qwen3_5_text",
    "hidden_size": 2560,
    "num_hidden_layers": 32,
    "num_attention_heads": 16,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "intermediate_size": 9216,
    "vocab_size": 248_320,
    "tie_word_embeddings": True,
    "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 32,
}
TINY_QWEN3_5 = QWEN3_5 | {
    "hidden_size": 128,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "intermediate_size": 384,
    "vocab_size": 4096,
    "linear_key_head_dim": 64,
    "linear_value_head_dim": 64,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 2,
}
MODELS: dict[str, dict[str, Any]] = {
    **{f"qwen3-{size.lower()}": config_of(shape) for size, shape in SHAPES.items()},
    "qwen3.5-tiny": TINY_QWEN3_5,
    "qwen3.5-4b": QWEN3_5,
}
"""The keys of a config.json by model; all but the tiny ones are as published by Qwen."""


def counted_model(
    config: Mapping[str, Any],
    *,
    device: torch.device = META,
    rank: int = 16,
    quantised: bool = True,
    recompute: Recompute = Recompute.NONE,
    own_scan: bool = True,
    dropout: float = 0.0,
) -> PeftModel:
    """Return the model as `worker/training/model/load.py` builds it, with random weights; in fp32 on a CPU, otherwise
    in bf16.

    Args:
        config: the keys of its config.json.
        own_scan: whether the trainer's functions compute linear attention; otherwise transformers' reference does.
        dropout: the adapter's dropout; with dropout, PEFT's own layers are used.
    """
    dtype = torch.float32 if device.type == "cpu" else torch.bfloat16
    with device:
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**config), dtype=dtype)
        if quantised:
            quantise(model)
        if own_scan:
            use_own_scan(model)
        use_kernels(model)
        model.set_attn_implementation(attention.DOCUMENTS)
        tuned = attach_lora(model.requires_grad_(False), AdapterSection(rank=rank, dropout=dropout), 0)
    fuse_lora(tuned, cache_dequantised=False)
    set_recompute(tuned, recompute)
    return tuned.train()


def quantise(model: nn.Module) -> None:
    """Replace every linear layer except the head by an NF4 layer with quantised scales."""
    head = model.get_output_embeddings()  # type: ignore[operator]
    with torch.device("cpu"):
        code_book = bitsandbytes.functional.create_dynamic_map().to(head.weight.device)
    # bitsandbytes keeps it for good, for tensors on every device: one on meta must not stay.
    with patch.dict(bitsandbytes.functional.name2qmap, dynamic=code_book):
        for module in list(model.modules()):
            for name, child in list(module.named_children()):
                if type(child) is nn.Linear and child is not head:
                    setattr(module, name, _in_nf4(child))
    model.is_loaded_in_4bit = True  # type: ignore[assignment]


def _in_nf4(linear: nn.Linear) -> Linear4bit:
    weight, sizes = linear.weight, (linear.in_features, linear.out_features)
    layer = Linear4bit(*sizes, compute_dtype=weight.dtype, quant_type="nf4", device=weight.device)
    packed = Params4bit(weight.data, requires_grad=False, quant_type="nf4", module=layer)
    layer.weight = packed._quantize(weight.device)  # noqa: SLF001  # `to` does it only on the way to another device
    layer.bias = linear.bias
    return layer


def micro_batch(rows: int, tokens: int, *, packed: bool = True) -> MicroBatch:
    """Return rows with the given number of tokens; three tenths of them have a loss."""
    weights = np.ones(tokens, np.float32)
    weights[: round(UNSUPERVISED * tokens)] = 0
    ids = np.ones(tokens, np.uint32)
    with torch.device("cpu"):
        batch = collate([Row(line, ids, weights, 5, 1.0) for line in range(rows)], 0, packed=packed)
    # Rows of one length need no mask, whose values a model would read.
    return replace(batch, mask=None)


@contextmanager
def as_on_a_gpu(*, kernels: bool = True) -> Iterator[None]:
    """Take the branches of a GPU, and skip code that reads values, because meta tensors have none.

    Args:
        kernels: whether Triton's kernels run, as on a GPU on which they agree with torch.
    """
    stand_ins: list[tuple[Any, str, Any]] = [
        (choice, "runs_kernels", lambda _: kernels),
        (choice, "runs_delta_rule", lambda x, _: kernels and x.dtype == torch.bfloat16),
        (attention, "has_varlen_kernel", lambda query: query.dtype in attention.VARLEN_DTYPES),
        (fused_functions, "_outer", _product_into),
        (torch, "is_autocast_enabled", lambda *_: False),
        (FusedMlp, "agrees_with_original", lambda _: True),
        (masking_utils, "fast_all", lambda _: True),
        (nn.functional, "dropout", _dropout),
        (nn.functional, "scaled_dot_product_attention", _flash_attention),
    ]
    with ExitStack() as patches:
        for owner, name, stand_in in stand_ins:
            patches.enter_context(patch.object(owner, name, stand_in))
        yield


def _product_into(left: Tensor, other: Tensor, dtype: torch.dtype) -> Tensor:
    """Compute `fused_functions._outer` as on a GPU."""
    return left.t() @ other if left.dtype == dtype else torch.mm(left.t(), other, out_dtype=dtype)


def _dropout(x: Tensor, p: float = 0.5, training: bool = True, *_: object) -> Tensor:
    """Compute dropout with the GPU's kernel, which keeps one byte per element."""
    return torch.native_dropout(x, p, True)[0] if training and p else x


def _flash_attention(
    query: Tensor, key: Tensor, value: Tensor, *_: Any, scale: float | None = None, **__: Any
) -> Tensor:
    """Compute causal attention with the kernel that a GPU would choose."""
    groups = query.shape[1] // key.shape[1]
    key, value = (heads.repeat_interleave(groups, 1) for heads in (key, value))
    flash = torch.ops.aten._scaled_dot_product_flash_attention  # noqa: SLF001
    output: Tensor = flash(query, key, value, 0.0, True, scale=scale)[0]
    return output
