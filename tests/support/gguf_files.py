"""Small GGUF files, written by llama.cpp's own library."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from gguf import MODEL_ARCH_NAMES, GGMLQuantizationType, GGUFWriter, get_tensor_name_map, quantize
from tokenizers import pre_tokenizers
from transformers import PreTrainedModel

from tests.support.tiny_base import TEMPLATE, TURN_END, TURN_START

HIDDEN, LAYERS, HEADS, KV_HEADS, INTERMEDIATE = 64, 2, 2, 1, 96
TOKENS = [*sorted(pre_tokenizers.ByteLevel.alphabet()), "ab", TURN_START, TURN_END]


def tensors(seed: int = 0) -> dict[str, np.ndarray]:
    """A Llama's weights with tied embeddings, under llama.cpp's names."""
    random = np.random.default_rng(seed)
    shapes = {"token_embd.weight": (len(TOKENS), HIDDEN), "output_norm.weight": (HIDDEN,)}
    for layer in range(LAYERS):
        block = {
            "attn_norm": (HIDDEN,),
            "ffn_norm": (HIDDEN,),
            "attn_q": (HIDDEN, HIDDEN),
            "attn_k": (HIDDEN // HEADS * KV_HEADS, HIDDEN),
            "attn_v": (HIDDEN // HEADS * KV_HEADS, HIDDEN),
            "attn_output": (HIDDEN, HIDDEN),
            "ffn_gate": (INTERMEDIATE, HIDDEN),
            "ffn_up": (INTERMEDIATE, HIDDEN),
            "ffn_down": (HIDDEN, INTERMEDIATE),
        }
        shapes |= {f"blk.{layer}.{name}.weight": shape for name, shape in block.items()}
    return {name: random.normal(size=shape, scale=0.1).astype(np.float32) for name, shape in shapes.items()}


def weights_of(model: PreTrainedModel, architecture: str) -> dict[str, np.ndarray]:
    """The weights of a transformers model under llama.cpp's names and in its order."""
    numbers = {name: number for number, name in MODEL_ARCH_NAMES.items()}
    names = get_tensor_name_map(numbers[architecture], model.config.num_hidden_layers)
    weights = {}
    for name, tensor in model.state_dict().items():
        module, suffix = name.rsplit(".", 1)
        values = tensor.numpy()
        if architecture == "llama" and module.endswith(("q_proj", "k_proj")):
            heads = HEADS if module.endswith("q_proj") else KV_HEADS
            # llama.cpp rotates neighbouring places of a head, transformers its two halves.
            values = values.reshape(heads, 2, -1, *values.shape[1:]).swapaxes(1, 2).reshape(values.shape)
        if not (module == "lm_head" and model.config.tie_word_embeddings):
            weights[f"{names.get_name(module)}.{suffix}"] = np.ascontiguousarray(values)
    return weights


def write_gguf(
    path: Path,
    *,
    architecture: str = "llama",
    split: str = "gpt-2",
    weights: dict[str, np.ndarray] | None = None,
    template: str | None = TEMPLATE,
    quantised: bool = True,
    **metadata: Any,
) -> Path:
    """Write a tiny chat model in blocks of Q8_0, or in float32. ``metadata`` has further fields, with ``__`` for a dot and ``ARCH``
    for the architecture.
    """
    writer = GGUFWriter(path, architecture)
    writer.add_license("mit")
    writer.add_context_length(128)
    writer.add_embedding_length(HIDDEN)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(INTERMEDIATE)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10000.0)
    writer.add_vocab_size(len(TOKENS))
    for key, value in metadata.items():
        name = key.replace("__", ".").replace("ARCH.", f"{architecture}.")
        writer.add_string(name, value) if isinstance(value, str) else writer.add_uint32(name, value)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(split)
    writer.add_token_list(TOKENS)
    writer.add_token_types([1] * (len(TOKENS) - 2) + [3, 3])
    writer.add_token_merges(["a b"])
    writer.add_eos_token_id(len(TOKENS) - 1)
    writer.add_pad_token_id(len(TOKENS) - 1)
    if template:
        writer.add_chat_template(template)
    for name, tensor in (tensors() if weights is None else weights).items():
        if quantised and tensor.ndim == 2:
            blocks = quantize(tensor, GGMLQuantizationType.Q8_0)
            writer.add_tensor(name, blocks, raw_dtype=GGMLQuantizationType.Q8_0)
        else:
            writer.add_tensor(name, tensor)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
