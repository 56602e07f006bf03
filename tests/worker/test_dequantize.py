"""The dequantised twin: bit for bit the weights with which training computes, and everything else unchanged."""

from __future__ import annotations

import json
import shutil

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from shared.base_models.weights import read_folder_tensors
from shared.contract.sections import QuantSection
from shared.errors import ArtifactInvalid, Code, ContractRejected
from shared.hashing import digest_file
from tests.support.tiny_models import RAW, save
from worker.child_runtime import EXIT_FAILED
from worker.dequantize import main, quantised_tensors, through_nf4, write_twin
from worker.training.model.load import load_base


def tensors_of(folder):
    found = {}
    for path in sorted(folder.glob("*.safetensors")):
        found |= load_file(path)
    return found


def trained_weights(base, double_quant):
    """Return the weights that training computes with, layer by layer, from the model that the trainer loads."""
    from bitsandbytes.functional import dequantize_4bit
    from bitsandbytes.nn import Linear4bit

    model = load_base(base, QuantSection(double_quant=double_quant), torch.device("cpu"))
    layers = {name: module for name, module in model.named_modules() if isinstance(module, Linear4bit)}
    return {f"{name}.weight": dequantize_4bit(one.weight.data, one.weight.quant_state) for name, one in layers.items()}


@pytest.mark.parametrize("double_quant", [True, False])
def test_the_twin_holds_what_training_computes_with(tiny, tmp_path, double_quant):
    write_twin(tiny.base, tmp_path / "twin", double_quant)
    base, twin = tensors_of(tiny.base), tensors_of(tmp_path / "twin")
    trained = trained_weights(tiny.base, double_quant)
    assert trained.keys() == quantised_tensors(tiny.base)
    assert base.keys() == twin.keys()
    for name, tensor in twin.items():
        expected = trained.get(name, base[name])
        assert torch.equal(tensor, expected), name
        assert torch.equal(tensor, base[name]) == (name not in trained), name


def test_everything_but_the_weights_is_the_base_s(tiny, tmp_path):
    write_twin(tiny.base, tmp_path / "twin")
    names = {path.name for path in tiny.base.iterdir()}
    assert {path.name for path in (tmp_path / "twin").iterdir()} == names
    for name in names:
        same = digest_file(tiny.base / name) == digest_file(tmp_path / "twin" / name)
        assert same == (not name.endswith(".safetensors")), name
    assert read_folder_tensors(tiny.base) == read_folder_tensors(tmp_path / "twin")
    assert [path.name for path in tmp_path.iterdir()] == ["twin"]


@pytest.mark.parametrize("family", ["qwen2", "qwen3-bias", "llama", "mistral", "qwen3_5_text", "qwen3_5"])
def test_the_names_are_those_that_training_quantises(tmp_path, family):
    """bfloat16 and many shards, as real models are stored; names against bitsandbytes' own choice."""
    base = save(RAW[family], tmp_path / "base", shard_size="60KB")
    stored = {f"{name.replace('.language_model.', '.')}" for name in quantised_tensors(base)}
    assert stored == set(trained_weights(base, double_quant=True))


def test_shards_in_bfloat16(tmp_path):
    base = save(RAW["qwen3"], tmp_path / "base", shard_size="60KB")
    for path in base.glob("*.safetensors"):
        save_file({name: tensor.bfloat16() for name, tensor in load_file(path).items()}, path, {"format": "pt"})
    write_twin(base, tmp_path / "twin")
    base_tensors, twin = tensors_of(base), tensors_of(tmp_path / "twin")
    quantised = quantised_tensors(base)
    assert len(list(base.glob("*.safetensors"))) > 2
    for name, tensor in twin.items():
        assert tensor.dtype == torch.bfloat16
        expected = through_nf4(base_tensors[name], True) if name in quantised else base_tensors[name]
        assert torch.equal(tensor, expected), name
    with safe_open(next(iter((tmp_path / "twin").glob("*.safetensors"))), framework="pt") as shard:
        assert shard.metadata() == {"format": "pt"}


def test_gpt2_has_no_twin(tmp_path, capsys):
    base = save(RAW["gpt2"], tmp_path / "base")
    with pytest.raises(ContractRejected):
        write_twin(base, tmp_path / "twin")
    assert main([str(base), str(tmp_path / "twin")]) == EXIT_FAILED
    error = json.loads(capsys.readouterr().out)
    assert (error["kind"], "GPT-2" in error["message"]) == ("ContractRejected", True)
    assert not (tmp_path / "twin").exists()


def test_a_base_that_lacks_a_weight(tiny, tmp_path):
    base = shutil.copytree(tiny.base, tmp_path / "base")
    (weights,) = base.glob("*.safetensors")
    tensors = load_file(weights)
    del tensors["model.layers.0.mlp.up_proj.weight"]
    save_file(tensors, weights)
    with pytest.raises(ArtifactInvalid) as refused:
        write_twin(base, tmp_path / "twin")
    assert (refused.value.code, refused.value.param) == (
        Code.BLOCK_INVENTORY_INCOMPLETE,
        "model.layers.0.mlp.up_proj.weight",
    )


def test_a_folder_that_is_there_is_never_overwritten(tiny, tmp_path):
    (tmp_path / "twin").mkdir()
    with pytest.raises(FileExistsError):
        write_twin(tiny.base, tmp_path / "twin")


def test_the_index_of_a_sharded_base_still_fits(tmp_path):
    base = save(RAW["llama"], tmp_path / "base", shard_size="60KB")
    write_twin(base, tmp_path / "twin")
    index = json.loads((tmp_path / "twin" / "model.safetensors.index.json").read_text())
    assert index["weight_map"].keys() == read_folder_tensors(tmp_path / "twin").keys()
