"""Merged folders of every family compute the same as base + adapter: GPT-2's orientation, tied heads, composite names,
biases.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from bench.merging.made_manifest import made_manifest
from shared.artifacts.manifests import WEIGHTS_NAME, peft_keys
from shared.base_models.weights import read_folder_tensors
from tests.support.tiny_models import RAW, save
from worker.merging.model_folder import FolderMerge
from worker.training.model.layer_names import namespaces, renamed

IDS = torch.arange(24)[None] * 3
RANK, ALPHA = 2, 6


@torch.no_grad()
def logits(model: torch.nn.Module) -> torch.Tensor:
    found: torch.Tensor = model.eval()(input_ids=IDS, use_cache=False).logits
    return found


@pytest.mark.parametrize("name", RAW)
def test_a_merged_folder_says_what_base_and_adapter_say(name: str, tmp_path: Path) -> None:
    base, adapter, target = (
        save(RAW[name], tmp_path / "base", shard_size="60KB"),
        tmp_path / "adapter",
        tmp_path / "model",
    )
    torch.manual_seed(4)
    model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    plain = logits(model)
    config = LoraConfig(r=RANK, lora_alpha=ALPHA, target_modules="all-linear", init_lora_weights=False)
    tuned = get_peft_model(model, config)
    tuned.save_pretrained(adapter)
    weights = renamed(load_file(adapter / WEIGHTS_NAME), *namespaces(base))
    save_file(weights, adapter / WEIGHTS_NAME)
    keys = [key for key in read_folder_tensors(base) if key.endswith(".weight") and peft_keys(key)[0] in weights]
    assert 2 * len(keys) == len(weights)
    manifest = made_manifest(keys, vocab=96, d_model=64, rank=RANK, alpha=ALPHA)
    FolderMerge(base, adapter, manifest, target).run("")
    merged = logits(AutoModelForCausalLM.from_pretrained(target, dtype=torch.float32))
    assert (merged - plain).abs().max() > 1e-3
    torch.testing.assert_close(merged, logits(tuned), atol=1e-4, rtol=1e-4)
    assert read_folder_tensors(target) == read_folder_tensors(base), "composite and tied folders keep their tensors"
