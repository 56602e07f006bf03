"""Streamed models: the same logits as the model in memory, for every family, with never more than a block in memory."""

from __future__ import annotations

import weakref
from collections import Counter
from pathlib import Path

import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from shared.base_models.weights import read_folder_tensors
from tests.support.tiny_models import RAW, save
from worker.merging.fidelity import weights_needed
from worker.merging.shards import ShardReader
from worker.merging.streamed_model import FolderWeights, streamed_model
from worker.training.model.layer_names import namespaces, renamed
from worker.training.model.nf4 import quantised_tensors, through_nf4

IDS = torch.arange(24)[None] * 3


@torch.no_grad()
def logits(model: torch.nn.Module) -> torch.Tensor:
    return model.eval()(input_ids=IDS, use_cache=False).logits


def make_adapter(base: Path, folder: Path) -> PeftModel:
    """A random adapter on every linear layer, stored under the base's names; returns the model in memory."""
    torch.manual_seed(4)
    model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    tuned = get_peft_model(model, LoraConfig(r=2, target_modules="all-linear", init_lora_weights=False))
    tuned.save_pretrained(folder)
    weights = folder / "adapter_model.safetensors"
    save_file(renamed(load_file(weights), *namespaces(base)), weights)
    return tuned


@pytest.mark.parametrize("name", RAW)
def test_its_logits_are_those_of_the_model_in_memory(name: str, tmp_path: Path) -> None:
    base = save(RAW[name], tmp_path / "base", shard_size="60KB")
    tuned = make_adapter(base, tmp_path / "adapter")
    found = logits(streamed_model(base, FolderWeights(base, tmp_path / "adapter"), tmp_path / "adapter"))
    torch.testing.assert_close(found, logits(tuned))
    plain = logits(streamed_model(base, FolderWeights(base)))
    with tuned.disable_adapter():
        torch.testing.assert_close(plain, logits(tuned))
    assert (plain - found).abs().max() > 1e-3


class CountedBytes(bytearray):
    """Bytes of weights, which a tensor made of them keeps."""


@pytest.mark.parametrize("name", RAW)
def test_weights_in_memory_are_within_what_is_announced(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Hold a block and two of the largest matrices, for every family, including tied heads and composite bases."""
    base = save(RAW[name], tmp_path / "base", shard_size="60KB")
    held, peak = Counter[str](), 0
    read = ShardReader._read

    def count(reader: ShardReader, offset: int, size: int) -> bytearray:
        nonlocal peak
        raw = CountedBytes(read(reader, offset, size))
        held["bytes"] += size
        peak = max(peak, held["bytes"])
        weakref.finalize(raw, held.subtract, {"bytes": size})
        return raw

    monkeypatch.setattr(ShardReader, "_read", count)
    logits(streamed_model(base, FolderWeights(base)))
    total = sum(info.size for info in read_folder_tensors(base).values())
    assert peak <= weights_needed(base)
    assert held["bytes"] == 0
    assert peak < total


def test_weights_are_given_as_training_computes_with_them(tmp_path: Path) -> None:
    base = save(RAW["qwen3"], tmp_path / "base")
    names = quantised_tensors(base)
    weights, plain = FolderWeights(base, quantised=names), FolderWeights(base)
    for name in read_folder_tensors(base):
        expected = through_nf4(plain[name], True) if name in names else plain[name]
        assert torch.equal(weights[name], expected), name
    assert len(weights) == len(list(weights)) == len(plain)


def test_no_weight_stays_after_its_layer_was_computed(tmp_path: Path) -> None:
    model = streamed_model(save(RAW["llama"], tmp_path / "base"), FolderWeights(tmp_path / "base"))
    before = logits(model)
    assert {parameter.device.type for parameter in model.parameters()} == {"meta"}
    assert torch.equal(logits(model), before)
