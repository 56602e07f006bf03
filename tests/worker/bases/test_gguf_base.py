"""A tiny GGUF file becomes a folder; a file whose tensors do not match its architecture is refused with their names."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType, dequantize, quantize
from safetensors.torch import load_file
from transformers import AutoConfig, AutoModelForCausalLM

from shared.base_models.catalog import digest_model_folder
from shared.errors import Code
from shared.preflight.base_model import preflight_model
from shared.tokenization.tokenizer import Tokenizer
from tests.support.gguf_files import (
    HEADS,
    HIDDEN,
    INTERMEDIATE,
    KV_HEADS,
    LAYERS,
    TOKENS,
    tensors,
    weights_of,
    write_gguf,
)
from tests.support.tiny_base import TEMPLATE, TURN_END
from worker.bases.gguf_base import main
from worker.child_runtime import EXIT_FAILED


def test_folder_is_a_base(tmp_path, capsys):
    out = tmp_path / "out"
    assert main([str(write_gguf(tmp_path / "tiny.gguf")), str(out)]) == 0
    assert "Q8_0" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir() if path.is_dir()] == ["out"]
    assert preflight_model(out, tokenizer_mode="hf").notes == ()
    assert digest_model_folder(out).keys() >= {
        "config.json",
        "tokenizer.json",
        "chat_template.jinja",
        "model.safetensors",
    }
    tokenizer = Tokenizer.load(out)
    assert (tokenizer.template.text, tokenizer.end_token) == (TEMPLATE, TURN_END)
    assert AutoConfig.from_pretrained(out).max_position_embeddings == 128
    stored = quantize(tensors()["blk.1.ffn_up.weight"], GGMLQuantizationType.Q8_0)
    values = torch.from_numpy(np.array(dequantize(stored, GGMLQuantizationType.Q8_0)))
    written = load_file(out / "model.safetensors")["model.layers.1.mlp.up_proj.weight"]
    assert torch.equal(written, values.to(torch.bfloat16))


@pytest.mark.parametrize(
    ("architecture", "split", "family", "metadata"),
    [
        ("llama", "gpt-2", "llama", {}),
        ("llama", "gpt-2", "mistral", {"general__name": "Mistral 7B Instruct v0.3"}),
        ("qwen2", "qwen2", "qwen2", {}),
        ("qwen3", "qwen2", "qwen3", {"ARCH.attention__key_length": 128, "ARCH.attention__value_length": 128}),
    ],
)
@torch.no_grad()
def test_folder_computes_what_the_model_did(tmp_path, architecture, split, family, metadata):
    torch.manual_seed(0)
    shape = {"hidden_size": HIDDEN, "num_hidden_layers": LAYERS, "intermediate_size": INTERMEDIATE}
    shape |= {"num_attention_heads": HEADS, "num_key_value_heads": KV_HEADS, "max_position_embeddings": 128}
    shape |= {"vocab_size": len(TOKENS), "rms_norm_eps": 1e-5} | ({"head_dim": 128} if family == "qwen3" else {})
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(family, **shape), dtype=torch.float32).eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.1)
    weights = weights_of(model, architecture)
    path = write_gguf(
        tmp_path / "tiny.gguf", architecture=architecture, split=split, weights=weights, quantised=False, **metadata
    )
    assert main([str(path), str(tmp_path / "out")]) == 0
    converted = AutoModelForCausalLM.from_pretrained(tmp_path / "out", dtype=torch.float32).eval()
    ids = torch.arange(20, 40)[None]
    assert (model(ids).logits - converted(ids).logits).abs().max() < 1e-5


def test_file_that_transformers_does_not_convert_is_not_called_damaged(tmp_path, capsys):
    path = write_gguf(tmp_path / "tiny.gguf", general__name="mistral")
    assert main([str(path), str(tmp_path / "out")]) == EXIT_FAILED
    error = json.loads(capsys.readouterr().out)
    assert (error["code"], "safetensors" in error["remedy"]) == (Code.GGUF_UNSUPPORTED, True)


@pytest.mark.parametrize(
    ("weights", "code", "words"),
    [
        (
            {name: tensor for name, tensor in tensors().items() if name != "blk.1.ffn_up.weight"},
            Code.GGUF_INVALID,
            "up_proj.weight is missing",
        ),
        (tensors() | {"blk.0.attn_q.bias": np.ones(64, np.float32)}, Code.GGUF_INVALID, "elements"),
        (
            tensors() | {"blk.0.ffn_up.weight": np.ones((96, 32), np.float32)},
            Code.BLOCK_INVENTORY_INCOMPLETE,
            "layers.0.mlp.up_proj.weight is BF16 (96, 32)",
        ),
    ],
)
def test_other_tensors_than_the_model_s_are_refused(tmp_path, capsys, weights, code, words):
    path = write_gguf(tmp_path / "tiny.gguf", weights=weights)
    assert main([str(path), str(tmp_path / "out")]) == EXIT_FAILED
    error = json.loads(capsys.readouterr().out)
    assert (error["code"], error["kind"]) == (code, "ArtifactInvalid")
    assert words in error["message"]
    assert list(tmp_path.iterdir()) == [path]
