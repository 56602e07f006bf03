"""A base and an adapter for ``python -m bench.merge``, made on the fly.

    python -m bench.merging.merge_inputs FOLDER FAMILY HIDDEN LAYERS VOCABULARY

It prints facts about the base as one line of JSON.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
from peft import LoraConfig
from safetensors.torch import save_file

from shared.artifacts.manifests import WEIGHTS_NAME, peft_keys
from shared.base_models.config import parse_model_config
from shared.base_models.tensors import expected_tensors, lora_modules
from worker.merging.fidelity import memory_needed

RANK, ALPHA = 16, 32
SHARD_BYTES = 512 << 20
FAMILIES: dict[str, dict[str, object]] = {
    "qwen3": {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "tie_word_embeddings": False},
    "llama-tied": {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "tie_word_embeddings": True},
}


def model_config(family: str, hidden: int, layers: int, vocabulary: int) -> dict[str, object]:
    """Return the config of a model of this size; ``family`` is one of ``FAMILIES``."""
    return FAMILIES[family] | {
        "dtype": "bfloat16", "hidden_act": "silu",
        "hidden_size": hidden, "intermediate_size": 3 * hidden, "num_hidden_layers": layers, "vocab_size": vocabulary,
        "num_attention_heads": hidden // 128, "num_key_value_heads": max(1, hidden // 256), "head_dim": 128,
        "max_position_embeddings": 4096, "rms_norm_eps": 1e-6, "rope_theta": 1e6,
        "attention_bias": False,
    }  # fmt: skip


def make_base(folder: Path, config: dict[str, object]) -> int:
    """Write a base of random bfloat16 weights in shards; return the bytes of its largest tensor."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config))
    random = torch.Generator().manual_seed(0)
    shards: list[dict[str, torch.Tensor]] = [{}]
    for name, shape in expected_tensors(parse_model_config(config)).items():
        if sum(tensor.nbytes for tensor in shards[-1].values()) > SHARD_BYTES:
            shards.append({})
        shards[-1][name] = (torch.randn(shape, generator=random) * 0.02).bfloat16()
    weight_map: dict[str, str] = {}
    for number, shard in enumerate(shards, 1):
        path = folder / f"model-{number:05}-of-{len(shards):05}.safetensors"
        save_file(shard, path, metadata={"format": "pt"})
        weight_map |= dict.fromkeys(shard, path.name)
    index = {"metadata": {}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return max(tensor.nbytes for shard in shards for tensor in shard.values())


def make_adapter(folder: Path, config: dict[str, object]) -> None:
    """Write an adapter on every linear layer except the head, as peft stores it."""
    folder.mkdir(parents=True)
    random = torch.Generator().manual_seed(1)
    weights = {}
    for module, (inputs, outputs) in lora_modules(parse_model_config(config)).items():
        a, b = peft_keys(f"{module}.weight")
        weights[a] = torch.randn((RANK, inputs), generator=random) / inputs**0.5
        weights[b] = torch.randn((outputs, RANK), generator=random) * 0.01
    save_file(weights, folder / WEIGHTS_NAME, metadata={"format": "pt"})
    LoraConfig(r=RANK, lora_alpha=ALPHA, target_modules="all-linear", task_type="CAUSAL_LM").save_pretrained(folder)


def main() -> int:
    """Create both, and print the sizes of the base and of its largest tensor, and the predicted memory of a merge's
    comparison.
    """
    folder, family, *size = sys.argv[1:]
    hidden, layers, vocabulary = map(int, size)
    base, config = Path(folder) / "base", model_config(family, hidden, layers, vocabulary)
    largest = make_base(base, config)
    make_adapter(Path(folder) / "adapter", config)
    total = sum(path.stat().st_size for path in base.iterdir())
    print(json.dumps({"bytes": total, "largest": largest, "fidelity_bound": memory_needed(base)}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
