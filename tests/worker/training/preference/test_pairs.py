"""Micro-batches of pairs: both answers of a pair are together, packed or padded, within the budget; and a prompt that
is computed once gives the same result as when it is computed for each answer.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoConfig, AutoModelForCausalLM

from shared.contract.sections import AdapterSection, PreferenceSection
from tests.support.tiny_models import RAW
from worker.training.data.prepared import Row
from worker.training.loss import accumulate_gradients
from worker.training.model.attention import DOCUMENTS
from worker.training.model.load import attach_lora, trainable
from worker.training.model.lora_fusion import fuse_lora
from worker.training.preference.dpo import DirectPreference
from worker.training.preference.pairs import Pair, common_prefix, no_pairs, pair_batches


def row(length: int, learnt: int) -> Row:
    weights = np.zeros(length, np.float32)
    weights[length - learnt :] = 1
    return Row(1, np.arange(length, dtype=np.uint32), weights, 5, 1.0)


PAIRS = [Pair(number, row(10 + number, 3), row(6, 2 + number % 2)) for number in range(9)]


@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize("budget", [1, 40, 100, 1_000])
def test_every_pair_is_in_one_micro_batch(budget: int, packed: bool) -> None:
    batches = pair_batches(PAIRS, budget, pad_token=0, packed=packed)
    assert sorted(number for batch in batches for number in batch.numbers.tolist()) == list(range(9))
    for batch in batches:
        assert batch.size <= max(budget, 2 * 18)
        assert batch.lengths.tolist() == [[3, 2 + number % 2] for number in batch.numbers.tolist()]
        assert len(batch.chats.targets) == batch.lengths.sum()
        assert batch.weight_sum == batch.target_count == len(batch.numbers)


def chat(prompt: list[int], answer: list[int]) -> Row:
    weights = np.array([0.0] * len(prompt) + [1.0] * len(answer), np.float32)
    return Row(1, np.array(prompt + answer, np.uint32), weights, 5, 1.0)


def tokens(most: int, least: int = 1) -> st.SearchStrategy[list[int]]:
    # Few ids, so that answers often begin alike.
    return st.lists(st.integers(1, 3), min_size=least, max_size=most)


@st.composite
def pairs_alike(draw: Any) -> list[Pair]:
    pairs = []
    for number in range(draw(st.integers(1, 3))):
        prompt, chosen, rejected = draw(tokens(20)), draw(tokens(12)), draw(tokens(12))
        sides = chat(prompt, chosen), chat(prompt, rejected)
        pairs.append(Pair(number, *sides, common_prefix(*sides)))
    return pairs


@pytest.mark.parametrize(
    ("chosen", "rejected", "expected"),
    [
        (chat([1, 2, 3], [4, 5]), chat([1, 2, 3], [6]), 3),
        (chat([1, 2, 3], [4, 5]), chat([1, 2, 3], [4, 6]), 4),  # answers that begin alike
        (chat([1, 2, 3], [4]), chat([1, 2, 3], [4, 5]), 3),  # each side keeps a token of its own
        (chat([1, 2], [3]), chat([2, 1], [3]), 0),
        (chat([1], [2] * 4), chat([1], [3] * 2), 1),
        (chat([1], [2] * 4), chat([1], [3] * 3), 0),  # under an eighth
    ],
)
def test_what_both_chats_begin_with_is_common(chosen: Row, rejected: Row, expected: int) -> None:
    assert common_prefix(chosen, rejected) == common_prefix(rejected, chosen) == expected


@settings(max_examples=100, deadline=None)
@given(pairs=pairs_alike())
def test_a_prompt_lies_once(pairs: list[Pair]) -> None:
    (once,) = pair_batches(pairs, 1_000, pad_token=0, packed=True)
    (twice,) = pair_batches([replace(pair, prefix=0) for pair in pairs], 1_000, pad_token=0, packed=True)
    assert once.size == twice.size - sum(pair.prefix for pair in pairs)
    for name in ("numbers", "lengths"):
        assert torch.equal(getattr(once, name), getattr(twice, name))
    assert torch.equal(once.chats.targets, twice.chats.targets)
    # Each target is predicted by the same token at the same place of its chat.
    for tensor in ("ids", "positions"):
        found, expected = (
            getattr(batch.chats, tensor).flatten()[batch.chats.predictors].tolist() for batch in (once, twice)
        )
        assert found == expected


@pytest.fixture(scope="module", params=["llama", "qwen3", "mistral"])
def model(request: pytest.FixtureRequest) -> Any:
    torch.manual_seed(0)
    raw: dict[str, Any] = RAW[request.param] | {"sliding_window": 8 if request.param == "mistral" else None}
    base = AutoModelForCausalLM.from_config(AutoConfig.for_model(**raw), dtype=torch.float64).requires_grad_(False)
    base.set_attn_implementation(DOCUMENTS)
    tuned = attach_lora(base, AdapterSection(rank=4), 0)
    assert fuse_lora(tuned, cache_dequantised=False).left == 0
    for parameter in trainable(tuned):
        parameter.data += 0.05 * torch.randn(parameter.shape)
    return tuned


@settings(max_examples=10, deadline=None)
@given(pairs=pairs_alike())
def test_loss_and_gradients_are_those_of_a_prompt_computed_twice(model: Any, pairs: list[Pair]) -> None:
    """In fp64 but for the logits."""
    method = DirectPreference(PreferenceSection())
    method._reference = torch.zeros(len(pairs), 2)  # as `prepare` sets it
    found = []
    for given_ in (pairs, [replace(pair, prefix=0) for pair in pairs]):
        model.zero_grad(set_to_none=True)
        sums = accumulate_gradients(
            method, model, pair_batches(given_, 40, pad_token=0, packed=True), torch.device("cpu")
        )
        found.append((sums, [parameter.grad for parameter in trainable(model)]))
    (once, gradients), (twice, expected) = found
    for name, value in twice.further.items():
        torch.testing.assert_close(once.further[name], value, rtol=1e-6, atol=1e-5)
    for one, other in zip(gradients, expected, strict=True):
        assert (one - other).norm() <= 1e-6 * other.norm() + 1e-9


def test_a_process_without_pairs_has_an_empty_batch() -> None:
    assert (no_pairs().weight_sum, no_pairs().target_count, no_pairs().size) == (0.0, 0, 1)
