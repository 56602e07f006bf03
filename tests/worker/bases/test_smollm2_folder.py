"""The GGUF file of a real model becomes a base: its tensors, its tokenizer, its template, and sensible answers."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from gguf import GGUFReader, dequantize
from safetensors.torch import load_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoModelForCausalLM, AutoTokenizer

from shared.preflight.base_model import preflight_model
from tests.support.smollm2 import smollm2_gguf

TEXTS = [
    "What is the capital of France?",
    "x:  5",
    "a   12 and 3456\n\n  7",
    "naïve \uff15 Ünïcode \u0661\u0662",
    "<|im_start|>user\nHi<|im_end|>\n",
]


@pytest.fixture(scope="module")
def reader():
    return GGUFReader(smollm2_gguf())


def test_weights_are_the_file_s_blocks_dequantised(smollm2, reader):
    weights = load_file(smollm2 / "model.safetensors")
    names = {
        "token_embd.weight": "model.embed_tokens.weight",
        "blk.7.ffn_down.weight": "model.layers.7.mlp.down_proj.weight",
        "blk.29.attn_v.weight": "model.layers.29.self_attn.v_proj.weight",
        "output_norm.weight": "model.norm.weight",
    }
    stored = {tensor.name: tensor for tensor in reader.tensors}
    assert len(weights) == len(stored)
    for name, target in names.items():
        values = torch.from_numpy(np.array(dequantize(stored[name].data, stored[name].tensor_type)))
        assert torch.equal(weights[target], values.to(torch.bfloat16)), name


def test_every_check_before_a_job_takes_it(smollm2):
    report = preflight_model(smollm2, tokenizer_mode="hf")
    assert (report.parameters, report.notes) == (134_515_008, ())


def test_tokenizer_is_the_one_that_the_model_was_trained_with(smollm2, reader):
    """Its tokenizer.json is public: digits one by one, then the byte level's expression."""
    fields = {name: reader.fields[f"tokenizer.ggml.{name}"].contents() for name in ("tokens", "merges")}
    vocabulary = {token: index for index, token in enumerate(fields["tokens"])}
    published = Tokenizer(models.BPE(vocab=vocabulary, merges=[tuple(merge.split(" ")) for merge in fields["merges"]]))
    published.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    published.decoder = decoders.ByteLevel()
    published.add_special_tokens(fields["tokens"][:17])
    tokenizer = AutoTokenizer.from_pretrained(smollm2)
    for text in TEXTS:
        ids = tokenizer(text, add_special_tokens=False)["input_ids"]
        assert ids == published.encode(text, add_special_tokens=False).ids, text
        assert tokenizer.decode(ids) == text


def test_it_answers(smollm2):
    model = AutoModelForCausalLM.from_pretrained(smollm2, dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(smollm2)
    chat = [{"role": "user", "content": "What is the capital of France?"}]
    prompt = tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_tensors="pt", return_dict=True)
    answer = model.generate(**prompt, max_new_tokens=12, do_sample=False)
    assert (
        tokenizer.decode(answer[0, prompt["input_ids"].shape[1] :], skip_special_tokens=True)
        == "The capital of France is Paris."
    )
