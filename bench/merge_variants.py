"""What ``python -m bench.merge`` measures: a base and an adapter made on the fly, and each variant of their merge.

python -m bench.merge_variants VARIANT FOLDER     merges FOLDER/base and FOLDER/adapter, prints one line of JSON
"""

from __future__ import annotations

import argparse
import json
import resource
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
from peft import LoraConfig, PeftModel
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM

from bench.made_manifest import made_manifest
from bench.peak_memory import peak_bytes
from shared.artifacts.manifests import WEIGHTS_NAME, peft_keys
from shared.base_models.config import parse_model_config
from shared.base_models.tensors import expected_tensors, lora_modules
from worker.merging import fidelity
from worker.merging.model_folder import FolderMerge
from worker.probe_chats import CHATS

RANK, ALPHA = 16, 32
SHARD_BYTES = 512 << 20


FAMILIES: dict[str, dict[str, object]] = {
    "qwen3": {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "tie_word_embeddings": False},
    "llama-tied": {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "tie_word_embeddings": True},
}


def model_config(family: str, hidden: int, layers: int, vocabulary: int) -> dict[str, object]:
    """The config of a model of such a size; ``family`` is one of ``FAMILIES``."""
    return FAMILIES[family] | {
        "dtype": "bfloat16", "hidden_act": "silu",
        "hidden_size": hidden, "intermediate_size": 3 * hidden, "num_hidden_layers": layers, "vocab_size": vocabulary,
        "num_attention_heads": hidden // 128, "num_key_value_heads": max(1, hidden // 256), "head_dim": 128,
        "max_position_embeddings": 4096, "rms_norm_eps": 1e-6, "rope_theta": 1e6,
        "attention_bias": False,
    }  # fmt: skip


def make_base(folder: Path, config: dict[str, object]) -> int:
    """Write a base of random bfloat16 weights in shards; returns the bytes of its largest tensor."""
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
    """Write an adapter on every linear layer but the head, as peft stores it."""
    folder.mkdir(parents=True)
    random = torch.Generator().manual_seed(1)
    weights = {}
    for module, (inputs, outputs) in lora_modules(parse_model_config(config)).items():
        a, b = peft_keys(f"{module}.weight")
        weights[a] = torch.randn((RANK, inputs), generator=random) / inputs**0.5
        weights[b] = torch.randn((outputs, RANK), generator=random) * 0.01
    save_file(weights, folder / WEIGHTS_NAME, metadata={"format": "pt"})
    LoraConfig(r=RANK, lora_alpha=ALPHA, target_modules="all-linear", task_type="CAUSAL_LM").save_pretrained(folder)


def merge_mens(folder: Path, target: Path) -> None:
    """Merge with the product's engine, in the base's dtype."""
    config = parse_model_config(json.loads((folder / "base" / "config.json").read_text()))
    keys = [f"{module}.weight" for module in lora_modules(config)]
    manifest = made_manifest(keys, vocab=config.vocab, d_model=config.hidden, rank=RANK, alpha=ALPHA)
    FolderMerge(folder / "base", folder / "adapter", manifest, target).run("")


def merge_peft(folder: Path, target: Path, dtype: torch.dtype) -> None:
    """Merge with peft in a dtype, and store the base's."""
    model = AutoModelForCausalLM.from_pretrained(folder / "base", dtype=dtype)
    merged = PeftModel.from_pretrained(model, folder / "adapter").merge_and_unload(safe_merge=True)
    merged.to(torch.bfloat16).save_pretrained(target)


def compare_fidelity(folder: Path, _target: Path) -> None:
    """Compare the product's merged model with base and adapter, as each merge job does before it counts."""
    random = torch.Generator().manual_seed(2)
    vocabulary = json.loads((folder / "base" / "config.json").read_text())["vocab_size"]
    probes = torch.randint(vocabulary, (len(CHATS), fidelity.MAX_TOKENS), generator=random).tolist()
    found = fidelity.compare(
        folder / "mens",
        folder / "base",
        folder / "adapter",
        under_adapter=frozenset(),
        trained=None,
        double_quant=True,
        probes=probes,
    )
    if not found.adapter.mean_kl_nats < fidelity.LIMITS["bfloat16"]:
        raise SystemExit(f"the merged model is {found.adapter.mean_kl_nats} nats from base and adapter")


FIDELITY = "fidelity"
"""No variant of the merge: the comparison after it."""
VARIANTS: dict[str, Callable[[Path, Path], None]] = {
    "mens": merge_mens,
    "peft-f32": lambda folder, target: merge_peft(folder, target, torch.float32),
    "peft-bf16": lambda folder, target: merge_peft(folder, target, torch.bfloat16),
}


def main() -> int:
    """Merge once, and print seconds and bytes beyond what the imports took."""
    parser = argparse.ArgumentParser(prog="python -m bench.merge_variants", description=__doc__)
    parser.add_argument("variant", choices=[*VARIANTS, FIDELITY])
    parser.add_argument("folder", type=Path)
    arguments = parser.parse_args()
    before, used = peak_bytes(), resource.getrusage(resource.RUSAGE_SELF)
    start, cpu = time.perf_counter(), used.ru_utime + used.ru_stime
    ({**VARIANTS, FIDELITY: compare_fidelity})[arguments.variant](
        arguments.folder, arguments.folder / arguments.variant
    )
    seconds, used = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_SELF)
    facts = {"seconds": seconds, "cpu_seconds": used.ru_utime + used.ru_stime - cpu, "bytes": peak_bytes() - before}
    print(json.dumps(facts))
    return 0


if __name__ == "__main__":
    sys.exit(main())
