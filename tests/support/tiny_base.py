"""A base model and adapters for tests that only read them: correct names and shapes, written without torch."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from shared.artifacts.manifests import CONFIG_NAME, WEIGHTS_NAME
from shared.base_models.config import parse_model_config
from shared.base_models.tensors import expected_tensors, linear_layers

TURN_START, TURN_END = "<|im_start|>", "<|im_end|>"
TEMPLATE = """\
{%- for message in messages %}
{{- '<|im_start|>' + message['role'] + '\\n' }}
{%- if message['role'] == 'assistant' %}
{%- generation %}{{- message['content'] + '<|im_end|>' }}{% endgeneration %}
{%- else %}
{{- message['content'] + '<|im_end|>' }}
{%- endif %}
{{- '\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}
"""
CONFIG = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 32,
    "max_position_embeddings": 512,
    "tie_word_embeddings": True,
    "dtype": "float32",
}


ADAPTER_CONFIG = Path(__file__).with_name("adapter_config.json")
"""The config that PEFT saves for an adapter on every linear layer; `tests/serving/test_adapter_store.py` compares the
two.
"""


def write_base(folder: Path, **shape: Any) -> Path:
    """Write a base with all weights zero and return its folder; ``shape`` are keys of its config."""
    folder.mkdir(parents=True)
    tokenizer = _tokenizer()
    tokenizer.save(str(folder / "tokenizer.json"))
    config = CONFIG | {"vocab_size": tokenizer.get_vocab_size()} | shape
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": TURN_END, "pad_token": TURN_END}))
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    (folder / "model.safetensors").write_bytes(zero_weights(expected_tensors(parse_model_config(config))))
    return folder


def write_adapter(base: Path, folder: Path, *, seed: int, rank: int) -> None:
    """Write an adapter on every linear layer of a base, as PEFT saves it, with random weights from the seed."""
    folder.mkdir(parents=True)
    random = np.random.default_rng(seed)
    layers = linear_layers(parse_model_config(json.loads((base / "config.json").read_bytes())))
    shapes = {f"base_model.model.{layer}.lora_A.weight": (rank, inputs) for layer, (inputs, _) in layers.items()}
    shapes |= {f"base_model.model.{layer}.lora_B.weight": (outputs, rank) for layer, (_, outputs) in layers.items()}
    tensors = {name: random.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}
    save_file(tensors, folder / WEIGHTS_NAME, metadata={"format": "pt"})
    config = json.loads(ADAPTER_CONFIG.read_bytes()) | {"r": rank, "lora_alpha": 2 * rank}
    (folder / CONFIG_NAME).write_text(json.dumps(config | {"base_model_name_or_path": str(base)}, indent=2))


def zero_weights(tensors: dict[str, tuple[int, ...]]) -> bytes:
    """A safetensors file whose fp32 tensors are all zero."""
    header, position = {}, 0
    for name, shape in tensors.items():
        size = 4 * math.prod(shape)
        header[name] = {"dtype": "F32", "shape": list(shape), "data_offsets": [position, position + size]}
        position += size
    raw = json.dumps(header).encode()
    return len(raw).to_bytes(8, "little") + raw + bytes(position)


def _tokenizer() -> Tokenizer:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={token: index for index, token in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([TURN_START, TURN_END])
    return tokenizer
