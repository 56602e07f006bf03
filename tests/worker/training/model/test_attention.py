"""Documents that share a sequence do not influence each other."""

from __future__ import annotations

import pytest
import torch
from torch.nn.attention import varlen
from transformers import (
    AutoModelForCausalLM,
    GPT2Config,
    LlamaConfig,
    MistralConfig,
    PreTrainedConfig,
    Qwen2Config,
    Qwen3_5TextConfig,
    Qwen3Config,
)

from worker.training.model import attention
from worker.training.model.attention import DOCUMENTS, attend_within_documents, can_pack

SIZES = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 100,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
GPT2 = {"n_embd": 64, "n_layer": 2, "n_head": 4, "vocab_size": 100, "n_positions": 64}
GPT2_OFF = {"attn_pdrop": 0.0, "embd_pdrop": 0.0, "resid_pdrop": 0.0}
FAMILIES = {
    "qwen2": Qwen2Config(**SIZES),
    "qwen3": Qwen3Config(**SIZES, head_dim=32),
    "llama": LlamaConfig(**SIZES),
    "mistral": MistralConfig(**SIZES, sliding_window=5),
    "gpt2": GPT2Config(**GPT2, **GPT2_OFF),
}
LENGTHS = [7, 1, 12, 5]


def build(config: PreTrainedConfig, attention: str) -> torch.nn.Module:
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(config, attn_implementation=attention, dtype=torch.float32).eval()


def documents(seed: int = 0) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randint(3, 100, (length,), generator=generator) for length in LENGTHS]


def hidden_together(model: torch.nn.Module, parts: list[torch.Tensor], **inputs: torch.Tensor) -> list[torch.Tensor]:
    lengths = [len(part) for part in parts]
    boundaries = torch.tensor([0, *torch.tensor(lengths).cumsum(0)], dtype=torch.int32)
    inputs = inputs or {"input_ids": torch.cat(parts)[None]}
    output = model.get_decoder()(
        **inputs,
        position_ids=torch.cat([torch.arange(length) for length in lengths])[None],
        use_cache=False,
        cu_seq_lens_q=boundaries,
        max_length_q=max(lengths),
    )
    return list(output.last_hidden_state[0].split(lengths))


@pytest.mark.parametrize("family", FAMILIES)
def test_together_is_as_alone(family):
    """Against transformers' own SDPA, one document at a time."""
    config, parts = FAMILIES[family], documents()
    packed, stock = build(config, DOCUMENTS), build(config, "sdpa")
    with torch.no_grad():
        alone = [stock.get_decoder()(input_ids=part[None], use_cache=False).last_hidden_state[0] for part in parts]
        together = hidden_together(packed, parts)
    for one, other in zip(together, alone, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)


PREFIXES = [0, 4, 0, 9]
"""Lengths of the prefixes of documents of 7, 5, 12 and 14 tokens."""


def begun_alike(seed: int = 0) -> list[torch.Tensor]:
    first, second = (part for part in documents(seed) if len(part) in (7, 12))
    tails = [part[:1] for part in documents(seed) if len(part) in (1, 5)]
    return [first, torch.cat([first[:4], tails[0]]), second, torch.cat([second[:9], tails[1]])]


@pytest.mark.parametrize("family", FAMILIES)
def test_a_prefix_that_lies_once_is_as_one_that_lies_before_each(family):
    """Hidden states, and the gradients of what is embedded; in fp64, but for the norms, which transformers computes in fp32."""
    model, parts = build(FAMILIES[family], DOCUMENTS).double(), begun_alike()
    embed = model.get_input_embeddings()
    twice = embed(torch.cat(parts)[None]).detach().requires_grad_()
    expected = hidden_together(model, parts, inputs_embeds=twice)
    own = [part[prefix:] for part, prefix in zip(parts, PREFIXES, strict=True)]
    once = embed(torch.cat(own)[None]).detach().requires_grad_()
    lengths = [len(part) for part in own]
    edges = torch.tensor([0, *torch.tensor([len(part) for part in parts]).cumsum(0)], dtype=torch.int32)
    positions = [torch.arange(prefix, len(part)) for part, prefix in zip(parts, PREFIXES, strict=True)]
    output = model.get_decoder()(
        inputs_embeds=once,
        position_ids=torch.cat(positions)[None],
        use_cache=False,
        cu_seq_lens_q=edges,
        max_length_q=14,
        document_lengths=list(zip(PREFIXES, lengths, strict=True)),
    )
    found = output.last_hidden_state[0].split(lengths)
    for one, other, prefix in zip(found, expected, PREFIXES, strict=True):
        torch.testing.assert_close(one, other[prefix:], rtol=1e-10, atol=1e-10)
    sum(one.square().sum() for one in found).backward()
    sum(one[prefix:].square().sum() for one, prefix in zip(expected, PREFIXES, strict=True)).backward()
    gradients = list(twice.grad[0].split([len(part) for part in parts]))
    for place, prefix in enumerate(PREFIXES):
        gradients[place - 1][:prefix] += gradients[place][:prefix]
    gradients = [gradient[prefix:] for gradient, prefix in zip(gradients, PREFIXES, strict=True)]
    torch.testing.assert_close(once.grad[0], torch.cat(gradients), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_changed_neighbour_changes_nothing(family):
    model, parts = build(FAMILIES[family], DOCUMENTS), documents()
    changed = [parts[0], parts[1], documents(seed=9)[2], parts[3]]
    with torch.no_grad():
        before, after = hidden_together(model, parts), hidden_together(model, changed)
    for place in (0, 1, 3):
        assert torch.equal(before[place], after[place])
    assert not torch.equal(before[2], after[2])


@pytest.mark.parametrize("family", FAMILIES)
def test_no_gradient_reaches_a_neighbour(family):
    model, parts = build(FAMILIES[family], DOCUMENTS), documents()
    embedded = model.get_input_embeddings()(torch.cat(parts)[None]).detach().requires_grad_()
    hidden_together(model, parts, inputs_embeds=embedded)[2].square().sum().backward()
    reached = [bool(part.abs().sum() > 0) for part in embedded.grad[0].split(LENGTHS)]
    assert reached == [False, False, True, False]


def test_a_window_reaches_no_further_than_transformers_lets_it():
    """Position i sees i - window + 1 to i, so two layers reach back 2 * (window - 1) positions."""
    window = 3
    model = build(MistralConfig(**SIZES, sliding_window=window), DOCUMENTS)
    embedded = torch.randn(1, 12, 64, generator=torch.Generator().manual_seed(1)).requires_grad_()
    part = torch.zeros(12)
    hidden_together(model, [part], inputs_embeds=embedded)[0][-1].square().sum().backward()
    reached = embedded.grad[0].abs().sum(-1) > 0
    assert reached.tolist() == [False] * 7 + [True] * 5


def test_without_boundaries_it_is_plain_causal_attention():
    query = torch.randn(1, 4, 6, 8)
    module = torch.nn.Module()
    output, weights = attend_within_documents(module, query, query, query, None)
    expected = torch.nn.functional.scaled_dot_product_attention(query, query, query, is_causal=True)
    assert torch.equal(output, expected.transpose(1, 2))
    assert weights is None


@pytest.mark.parametrize("family", FAMILIES)
def test_families_that_attend_can_pack(family):
    assert can_pack(build(FAMILIES[family], "sdpa"), FAMILIES[family])


def test_a_recurrent_layer_with_transformers_forward_forbids_packing():
    config = Qwen3_5TextConfig(
        **SIZES | {"num_hidden_layers": 4}, head_dim=32, linear_num_value_heads=4, linear_num_key_heads=2
    )
    assert "linear_attention" in config.layer_types
    assert not can_pack(build(config, "sdpa"), config)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")
@pytest.mark.parametrize("window", [None, 4])
def test_the_variable_length_kernel_agrees_with_one_call_a_document(window):
    generator = torch.Generator("cuda").manual_seed(0)
    query = torch.randn(1, 8, 25, 64, generator=generator, device="cuda", dtype=torch.bfloat16)
    key = torch.randn(1, 2, 25, 64, generator=generator, device="cuda", dtype=torch.bfloat16)
    boundaries = torch.tensor([0, 7, 8, 20, 25], dtype=torch.int32, device="cuda")
    settings = {"sliding_window": window, "cu_seq_lens_q": boundaries, "max_length_q": 12}
    fused, _ = attend_within_documents(torch.nn.Module(), query, key, key, None, **settings)
    exact, _ = attend_within_documents(torch.nn.Module(), query.float(), key.float(), key.float(), None, **settings)
    torch.testing.assert_close(fused.float(), exact, rtol=2e-2, atol=2e-2)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")
@pytest.mark.parametrize("window", [None, 4])
def test_the_variable_length_kernel_takes_documents_with_prefixes(window):
    """Also its gradients."""
    generator = torch.Generator("cuda").manual_seed(0)
    lengths = [7, 1, 12, 5]
    query, key, value, pull = (
        torch.randn(1, heads, sum(lengths), 64, generator=generator, device="cuda", dtype=torch.bfloat16)
        for heads in (8, 2, 2, 8)
    )
    settings = {
        "sliding_window": window,
        "cu_seq_lens_q": torch.tensor([0, 7, 12, 24, 38], dtype=torch.int32, device="cuda"),
        "max_length_q": 14,
        "document_lengths": list(zip(PREFIXES, lengths, strict=True)),
    }
    found = []
    for dtype in (torch.bfloat16, torch.float32):
        inputs = [tensor.to(dtype).requires_grad_() for tensor in (query, key, value)]
        output, _ = attend_within_documents(torch.nn.Module(), *inputs, None, **settings)
        output.backward(pull.to(dtype).transpose(1, 2))
        found.append([output, *(tensor.grad for tensor in inputs)])
    for fused, exact in zip(*found, strict=True):
        torch.testing.assert_close(fused.float(), exact, rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize("release", ["2.11", "2.13"])
def test_grouped_heads_are_announced_where_torch_asks(release, monkeypatch):
    told = {}

    def newer(q, k, v, cu_q, cu_k, max_q, max_k, *, scale, window_size, enable_gqa=False):
        told.update(window=window_size, gqa=enable_gqa)
        return q

    def older(q, k, v, cu_q, cu_k, max_q, max_k, *, return_aux=None, scale=None, window_size=(-1, -1)):
        told.update(window=window_size)
        return q

    monkeypatch.setattr(varlen, "varlen_attn", older if release == "2.11" else newer)
    monkeypatch.setattr(attention, "has_varlen_kernel", lambda _: True)
    query, key = torch.randn(1, 8, 25, 64), torch.randn(1, 2, 25, 64)
    boundaries = torch.tensor([0, 7, 25], dtype=torch.int32)
    settings = {"sliding_window": 4, "cu_seq_lens_q": boundaries, "max_length_q": 18}
    output, _ = attend_within_documents(torch.nn.Module(), query, key, key, None, **settings)
    assert output.shape == (1, 25, 8, 64)
    assert told == {"window": (3, 0)} | ({"gqa": True} if release == "2.13" else {})
