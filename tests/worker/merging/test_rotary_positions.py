"""Merging commutes with rotary positions: they are a linear map after the projection, so W + s·B·A can be one matrix
before it.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from peft import LoraConfig
from safetensors.torch import save_file
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.models.qwen3.modeling_qwen3 import Qwen3RotaryEmbedding, apply_rotary_pos_emb

from bench.merging.made_manifest import made_manifest
from shared.artifacts.manifests import peft_keys
from shared.base_models.weights import read_folder_tensors
from tests.support.tiny_models import RAW, save
from worker.merging.fidelity import divergence
from worker.merging.model_folder import FolderMerge
from worker.merging.streamed_model import FolderWeights, streamed_model

RANK, ALPHA, LENGTH = 3, 6, 200


def test_rotating_the_sum_is_the_sum_of_the_rotated() -> None:
    config = AutoConfig.for_model(**RAW["qwen3"])
    torch.manual_seed(0)
    x = torch.randn(LENGTH, config.hidden_size, dtype=torch.float64)
    weight = torch.randn(4 * 32, config.hidden_size, dtype=torch.float64)
    a = torch.randn(RANK, config.hidden_size, dtype=torch.float64)
    b, scale = torch.randn(4 * 32, RANK, dtype=torch.float64), ALPHA / RANK
    cos, sin = (part.double() for part in Qwen3RotaryEmbedding(config)(x, torch.arange(LENGTH)[None]))

    def rotated(projected: torch.Tensor) -> torch.Tensor:
        heads = projected.view(1, LENGTH, 4, 32).transpose(1, 2)
        return apply_rotary_pos_emb(heads, heads, cos, sin)[0]

    merged = rotated(x @ (weight + scale * b @ a).T)
    torch.testing.assert_close(merged, rotated(x @ weight.T) + rotated((x @ a.T) @ b.T * scale))
    assert (merged - rotated(x @ weight.T)).abs().max() > 1


@pytest.mark.parametrize("name", ["qwen3", "llama", "qwen3_5_text"])
def test_queries_and_keys_are_merged_before_they_are_rotated(name: str, tmp_path: Path) -> None:
    """An adapter of q and k alone, over positions as far apart as the context allows."""
    base, adapter = save(RAW[name], tmp_path / "base"), tmp_path / "adapter"
    keys = [key for key in read_folder_tensors(base) if key.endswith(("q_proj.weight", "k_proj.weight"))]
    manifest = made_manifest(keys, vocab=96, d_model=64, rank=RANK, alpha=ALPHA)
    random = torch.Generator().manual_seed(5)
    weights = {}
    for key in keys:
        outputs, inputs = read_folder_tensors(base)[key].shape
        name_a, name_b = peft_keys(key)
        weights[name_a] = torch.randn((RANK, inputs), generator=random)
        weights[name_b] = torch.randn((outputs, RANK), generator=random) * 0.3
    LoraConfig(r=RANK, lora_alpha=ALPHA, target_modules=["q_proj", "k_proj"]).save_pretrained(adapter)
    save_file(weights, adapter / "adapter_model.safetensors")
    FolderMerge(base, adapter, manifest, tmp_path / "model").run("")
    ids = torch.randint(96, (1, LENGTH), generator=random)
    with torch.no_grad():
        tuned = streamed_model(base, FolderWeights(base, adapter), adapter)(input_ids=ids, use_cache=False).logits[0]
        alone = AutoModelForCausalLM.from_pretrained(tmp_path / "model", dtype=torch.float32).eval()
        plain = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32).eval()
        merged, before = (model(input_ids=ids, use_cache=False).logits[0] for model in (alone, plain))
    assert json.loads((tmp_path / "model" / "config.json").read_text())["max_position_embeddings"] > LENGTH
    effect = divergence([before], [tuned]).mean_kl_nats
    assert effect > 1e-5
    assert divergence([merged], [tuned]).mean_kl_nats < effect * 1e-3
    torch.testing.assert_close(merged, tuned, atol=1e-3, rtol=1e-3)
