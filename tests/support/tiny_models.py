"""Tiny models of every family, built and saved by transformers itself, with which calculations are compared."""

from __future__ import annotations

from pathlib import Path
from typing import Any

SIZES: dict[str, Any] = {
    "vocab_size": 96,
    "hidden_size": 64,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "intermediate_size": 112,
    "max_position_embeddings": 256,
}
HYBRID = SIZES | {
    "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 16,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
}
GPT2 = {
    "vocab_size": 96,
    "n_embd": 64,
    "n_layer": 3,
    "n_head": 4,
    "n_positions": 48,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
VISION = {"depth": 1, "hidden_size": 32, "intermediate_size": 32, "num_heads": 2, "out_hidden_size": 64}

RAW: dict[str, dict[str, Any]] = {
    "qwen2": {"model_type": "qwen2", **SIZES},
    "qwen3": {"model_type": "qwen3", **SIZES},
    "qwen3-tied": {"model_type": "qwen3", **SIZES, "tie_word_embeddings": True},
    "qwen3-bias": {"model_type": "qwen3", **SIZES, "attention_bias": True},
    "llama": {"model_type": "llama", **SIZES},
    "llama-bias": {"model_type": "llama", **SIZES, "attention_bias": True, "mlp_bias": True},
    "mistral": {"model_type": "mistral", **SIZES},
    "qwen3_5_text": {"model_type": "qwen3_5_text", **HYBRID},
    "qwen3_5": {
        "model_type": "qwen3_5",
        "text_config": {"model_type": "qwen3_5_text", **HYBRID},
        "vision_config": {"model_type": "qwen3_5_vision", **VISION, "num_position_embeddings": 16},
    },
    "gpt2": {"model_type": "gpt2", **GPT2},
    "gpt2-inner": {"model_type": "gpt2", **GPT2, "n_inner": 80},
}


def build(raw: dict[str, Any], **changes: Any) -> Any:
    """A random model of a raw config; ``changes`` are applied where the config has the sizes."""
    from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText

    raw = raw | ({"text_config": raw["text_config"] | changes} if "text_config" in raw else changes)
    config = AutoConfig.for_model(**raw)
    kind = AutoModelForImageTextToText if "text_config" in raw else AutoModelForCausalLM
    return kind.from_config(config)


def save(raw: dict[str, Any], folder: Path, *, shard_size: str | None = None, **changes: Any) -> Path:
    """A model folder with a placeholder tokenizer.json."""
    build(raw, **changes).save_pretrained(folder, **({"max_shard_size": shard_size} if shard_size else {}))
    (folder / "tokenizer.json").write_text("{}")
    return folder


def quantised(raw: dict[str, Any], folder: Path, dtype: Any, *, double_quant: bool = True, **changes: Any) -> Any:
    """The model in NF4 on the CPU, saved and loaded as the trainer loads it."""
    import torch
    from transformers import AutoModelForCausalLM, BitsAndBytesConfig

    save(raw, folder, **changes)
    config = BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type="nf4",
        bnb_4bit_use_double_quant=double_quant,
        bnb_4bit_compute_dtype=dtype,
    )
    model = AutoModelForCausalLM.from_pretrained(
        folder, dtype=dtype, quantization_config=config, device_map={"": torch.device("cpu")}
    )
    return model.requires_grad_(False)


def with_lora(model: Any, rank: int) -> Any:
    """The model with LoRA on every linear layer, as the trainer attaches it."""
    from peft import LoraConfig, get_peft_model

    return get_peft_model(model, LoraConfig(r=rank, target_modules="all-linear", task_type="CAUSAL_LM"))
