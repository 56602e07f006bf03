"""The ordered checks of a model folder: real folders pass, and each fault has its own code, the first one first."""

from __future__ import annotations

import json
import shutil
import struct
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from shared.base_models.config import parse_model_config
from shared.base_models.tensors import expected_tensors, middle_keys, parameter_count
from shared.base_models.weights import DTYPE_BITS
from shared.errors import Code, MensError
from shared.preflight.base_model import REPORTED_KEYS, SAMPLE_KEYS, check_targets, preflight_model
from shared.preflight.types import ModelReport
from tests.support.tiny_models import RAW, save

Entries = dict[str, tuple[str, tuple[int, ...]]]


def write_safetensors(path: Path, tensors: Mapping[str, tuple[str, tuple[int, ...]]]) -> None:
    """A file with such tensors, all zero."""
    header, position = {}, 0
    for name, (dtype, shape) in tensors.items():
        size = DTYPE_BITS[dtype] // 8
        for length in shape:
            size *= length
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [position, position + size]}
        position += size
    raw = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(raw)) + raw + bytes(position))


def folder_of(tmp_path: Path, raw: dict[str, Any], change: Callable[[Entries], Any] | None = None) -> Path:
    """A model folder made of zeros; ``change`` edits its tensors."""
    tensors: Entries = {name: ("BF16", shape) for name, shape in expected_tensors(parse_model_config(raw)).items()}
    if change:
        change(tensors)
    tmp_path.mkdir(exist_ok=True)
    (tmp_path / "config.json").write_text(json.dumps(raw))
    (tmp_path / "tokenizer.json").write_text("{}")
    write_safetensors(tmp_path / "model.safetensors", tensors)
    return tmp_path


def preflight(folder: Path, *, strict: bool = True) -> ModelReport:
    return preflight_model(folder, tokenizer_mode="hf", strict=strict)


def refusal(folder: Path, **arguments: Any) -> MensError:
    with pytest.raises(MensError) as caught:
        preflight_model(folder, **{"tokenizer_mode": "hf", "strict": True} | arguments)
    return caught.value


@pytest.mark.torch
@pytest.mark.parametrize("name", RAW)
def test_folder_that_transformers_saved_passes(name: str, tmp_path: Path) -> None:
    report = preflight(save(RAW[name], tmp_path))
    assert report.middle.complete
    assert report.inventory.complete
    assert report.parameters == parameter_count(expected_tensors(report.config))
    assert list(report.bytes_by_dtype) == ["F32"]


@pytest.mark.torch
def test_sharded_folder_passes_and_a_lost_shard_is_named(tmp_path: Path) -> None:
    folder = save(RAW["qwen3"], tmp_path, shard_size="100KB")
    report = preflight(folder)
    assert len(report.shards) > 1
    assert sum(report.bytes_by_dtype.values()) == 4 * report.parameters
    (folder / report.shards[1]).unlink()
    error = refusal(folder)
    assert (error.code, error.param) == (Code.MODEL_WEIGHTS_NOT_FOUND, report.shards[1])


@pytest.mark.torch
def test_text_only_weights_of_a_composite_config_pass_with_a_note(tmp_path: Path) -> None:
    folder = save(RAW["qwen3_5_text"], tmp_path)
    (folder / "config.json").write_text(json.dumps(RAW["qwen3_5"]))
    report = preflight(folder)
    assert report.namespace == "model"
    assert any("only the language model" in note for note in report.notes)


@pytest.mark.parametrize("name", RAW)
def test_folder_of_zeros_passes(name: str, tmp_path: Path) -> None:
    report = preflight(folder_of(tmp_path, RAW[name]))
    assert report.bytes_by_dtype == {"BF16": 2 * report.parameters}
    assert report.notes == ()


def test_checks_come_in_their_order(tmp_path: Path) -> None:
    """A folder with every fault at once: each correction shows the next fault."""
    broken = RAW["qwen3_5_text"] | {"layer_types": ["full_attention"]}
    whole = folder_of(tmp_path / "whole", RAW["qwen3_5_text"])
    folder = tmp_path / "folder"
    seen = [refusal(folder, tokenizer_mode="vox").code, refusal(folder).code]
    folder.mkdir()
    seen.append(refusal(folder).code)
    (folder / "tokenizer.json").write_text("{}")
    seen.append(refusal(folder).code)
    (folder / "config.json").write_text("[")
    seen.append(refusal(folder).code)
    (folder / "pytorch_model.bin").write_bytes(b"pickle")
    seen.append(refusal(folder).code)
    shutil.copy(whole / "model.safetensors", folder)
    seen.append(refusal(folder).code)
    (folder / "config.json").write_text(json.dumps(broken))
    seen.append(refusal(folder).code)
    assert seen == [
        Code.QLORA_REQUIRES_HF_TOKENIZER,
        Code.MODEL_WEIGHTS_NOT_FOUND,
        Code.TOKENIZER_NOT_FOUND,
        Code.CONFIG_NOT_FOUND,
        Code.MODEL_WEIGHTS_NOT_FOUND,
        Code.MODEL_WEIGHTS_PICKLED,
        Code.MODEL_CONFIG_INVALID,
        Code.LAYER_TYPES_INVALID,
    ]
    (folder / "config.json").write_text(json.dumps(RAW["qwen3_5_text"]))
    assert any("pytorch_model.bin" in note for note in preflight(folder).notes)


def reshaped(name: str, shape: tuple[int, ...]) -> Callable[[Entries], None]:
    def change(tensors: Entries) -> None:
        tensors[name] = ("BF16", shape)

    return change


EMBEDDING = "model.embed_tokens.weight"
CONV = "model.layers.0.linear_attn.conv1d.weight"


@pytest.mark.parametrize(
    ("name", "change", "code", "param"),
    [
        ("qwen3", lambda t: t.pop(EMBEDDING), Code.EMBEDDING_NOT_FOUND, "wte.weight"),
        ("qwen3", reshaped(EMBEDDING, (96, 8, 8)), Code.EMBEDDING_NOT_2D, EMBEDDING),
        ("qwen3", reshaped(EMBEDDING, (97, 64)), Code.EMBEDDING_SHAPE_MISMATCH, EMBEDDING),
        ("qwen3_5_text", reshaped(CONV, (96, 4, 1)), Code.LINEAR_ATTENTION_SHAPE, CONV),
        (
            "qwen3",
            lambda t: t.pop("model.layers.2.self_attn.o_proj.weight"),
            Code.MIDDLE_COVERAGE_INCOMPLETE,
            "model.layers.2.self_attn.o_proj.weight",
        ),
        ("qwen3", lambda t: t.pop("lm_head.weight"), Code.BLOCK_INVENTORY_INCOMPLETE, "lm_head.weight"),
        (
            "qwen3",
            reshaped("model.layers.1.self_attn.k_norm.weight", (64,)),
            Code.BLOCK_INVENTORY_INCOMPLETE,
            "model.layers.1.self_attn.k_norm.weight",
        ),
        (
            "gpt2",
            reshaped("transformer.h.0.attn.c_attn.weight", (192, 64)),
            Code.BLOCK_INVENTORY_INCOMPLETE,
            "transformer.h.0.attn.c_attn.weight",
        ),
    ],
)
def test_broken_tensor_is_named(
    name: str, change: Callable[[Entries], Any], code: Code, param: str, tmp_path: Path
) -> None:
    error = refusal(folder_of(tmp_path, RAW[name], change))
    assert (error.code, error.param) == (code, param)


def test_quantised_weights_are_not_floats(tmp_path: Path) -> None:
    def quantise(tensors: Entries) -> None:
        tensors["model.layers.0.mlp.up_proj.weight"] = ("I8", (112, 64))

    error = refusal(folder_of(tmp_path, RAW["qwen3"], quantise))
    assert error.code is Code.BLOCK_INVENTORY_INCOMPLETE
    assert "I8" in error.message


def test_missing_embedding_shows_a_sample_of_what_is_there(tmp_path: Path) -> None:
    error = refusal(folder_of(tmp_path, RAW["qwen3"], lambda t: t.pop(EMBEDDING)))
    assert len(error.details["sample"]) == SAMPLE_KEYS
    assert error.details["sample"][0] in error.message


def test_missing_layers_are_counted_and_capped(tmp_path: Path) -> None:
    raw = RAW["qwen3"] | {"num_hidden_layers": 40}

    def drop(tensors: Entries) -> None:
        for key in middle_keys(parse_model_config(raw), "model")[1:]:
            del tensors[key]

    folder = folder_of(tmp_path, raw, drop)
    error = refusal(folder)
    assert (error.details["need"], error.details["found"]) == (40, 1)
    assert len(error.details["missing"]) == REPORTED_KEYS
    report = preflight(folder, strict=False)
    assert (report.middle.expected, report.middle.matched, report.middle.complete) == (40, 1, False)
    assert any("1 of 40 layers" in note for note in report.notes)


@pytest.mark.parametrize(
    "index",
    [
        [],
        {},
        {"weight_map": {}},
        {"weight_map": {"a": 1}},
        {"weight_map": {"a": "../model.safetensors"}},
        {"weight_map": {"a": "pytorch_model.bin"}},
    ],
)
def test_broken_index_is_refused(index: Any, tmp_path: Path) -> None:
    folder = folder_of(tmp_path, RAW["qwen3"])
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    assert refusal(folder).code is Code.MODEL_WEIGHTS_NOT_FOUND


def test_tensor_that_the_index_puts_into_another_shard_counts_as_missing(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, RAW["qwen3"])
    (folder / "model.safetensors").rename(folder / "part.safetensors")
    write_safetensors(folder / "other.safetensors", {"x": ("F32", (1,))})
    shards = dict.fromkeys(expected_tensors(parse_model_config(RAW["qwen3"])), "part.safetensors")
    shards["model.norm.weight"] = "other.safetensors"
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": shards}))
    error = refusal(folder)
    assert (error.code, error.param) == (Code.BLOCK_INVENTORY_INCOMPLETE, "model.norm.weight")


def test_truncated_weights_are_refused(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, RAW["qwen3"])
    raw = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(raw[:-1])
    assert refusal(folder).code is Code.SAFETENSORS_INVALID


@pytest.mark.parametrize("name", ["conv1d", "in_proj_ba", "in_proj_qkvz"])
def test_layer_without_an_adapter_in_linear_attention_is_refused_by_name(name: str) -> None:
    """A convolution cannot have a LoRA. The other two are names of merged layers, which only servers have.

    All linear layers of Qwen3.5 can have one (`tests/vllm/test_qwen3_5.py`).
    """
    with pytest.raises(MensError) as caught:
        check_targets(["q_proj", name], parse_model_config(RAW["qwen3_5_text"]))
    assert (caught.value.code, caught.value.details["unknown"]) == (Code.TARGET_MODULES_UNKNOWN, [name])
