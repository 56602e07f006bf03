"""Divergence: the meaning of its numbers, and that each of them reveals a model that differs."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch

from shared.artifacts.merge_fidelity import Divergence, MergeFidelity
from shared.errors import Code, JobFailed
from tests.support.tiny_base import write_base
from worker.merging import fidelity as module
from worker.merging.fidelity import (
    MAX_TOKENS,
    SMALL_BYTES,
    batch_logits,
    divergence,
    memory_needed,
    refuse_without_memory,
    token_scores,
)
from worker.probe_chats import CHATS


def fidelity(mean: float, limit: float = 1e-2) -> MergeFidelity:
    measured = Divergence(mean_kl_nats=mean, max_kl_nats=mean, max_logit_difference=mean)
    return MergeFidelity(
        model_digest="0" * 64,
        dtype="bfloat16",
        base_weights="original",
        positions=1,
        adapter_divergence=measured,
        training_divergence=None,
        effect=measured,
        limit_nats=limit,
    )


def test_divergence_is_that_of_the_distributions() -> None:
    one, other = torch.tensor([[0.0, math.log(3.0)]]), torch.tensor([[0.0, 0.0]])
    found = divergence([one], [other])
    expected = 0.25 * math.log(0.25 / 0.5) + 0.75 * math.log(0.75 / 0.5)
    assert found.mean_kl_nats == found.max_kl_nats == pytest.approx(expected)
    assert found.max_logit_difference == pytest.approx(math.log(3.0))


def test_a_shift_of_all_logits_says_nothing_else() -> None:
    logits = torch.randn(4, 9)
    found = divergence([logits], [logits + 2.0])
    assert found.max_kl_nats == pytest.approx(0, abs=1e-9)
    assert found.max_logit_difference == pytest.approx(2.0)


def test_mean_and_worst_are_over_all_positions() -> None:
    same, far = torch.zeros(3, 5), torch.eye(3, 5) * 4
    found = divergence([same, same], [same, far])
    assert found.max_kl_nats == pytest.approx(2 * found.mean_kl_nats)


@pytest.mark.parametrize(("mean", "passed"), [(0.0, True), (1e-2, True), (1.1e-2, False), (math.nan, False)])
def test_only_a_number_within_the_limit_passes(mean: float, passed: bool) -> None:
    assert fidelity(mean).passed is passed


def test_what_fills_a_batch_is_not_compared() -> None:
    class Echo(torch.nn.Module):
        def forward(self, input_ids: torch.Tensor, **_: object) -> object:
            return type("Output", (), {"logits": input_ids[..., None].expand(-1, -1, 2)})

    rows = batch_logits(Echo(), [[5, 6, 7], [8]])
    assert [row[:, 0].tolist() for row in rows] == [[5.0, 6.0, 7.0], [8.0]]


def test_a_tokens_score_is_its_log_probability_after_those_before_it() -> None:
    logits = torch.tensor([[0.0, math.log(3.0)], [0.0, 0.0], [9.0, 9.0]])
    assert token_scores([logits], [[0, 1, 0]]) == [[pytest.approx(math.log(0.75)), pytest.approx(math.log(0.5))]]
    assert token_scores([logits[:1]], [[0]]) == [[]]


def test_memory_grows_with_a_block_and_not_with_their_number(tmp_path: Path) -> None:
    few, many, wide = (
        memory_needed(write_base(tmp_path / str(number), **shape))
        for number, shape in enumerate(
            ({"num_hidden_layers": 2}, {"num_hidden_layers": 12}, {"num_hidden_layers": 2, "intermediate_size": 640})
        )
    )
    assert few == many
    assert wide - few == 3 * 32 * (640 - 64) * 4 + 2 * (32 * 640 * 4 - 32 * vocabulary(tmp_path / "0") * 4)


def vocabulary(base: Path) -> int:
    return int(json.loads((base / "config.json").read_text())["vocab_size"])


def test_memory_counts_the_logits(tmp_path: Path) -> None:
    base = write_base(tmp_path / "base")
    logits = 4 * vocabulary(base) * len(CHATS) * MAX_TOKENS
    assert memory_needed(base) > SMALL_BYTES + 4 * logits


def test_a_comparison_that_does_not_fit_is_refused_with_both_numbers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    base = write_base(tmp_path / "base")
    needed = memory_needed(base)
    monkeypatch.setattr(module, "available_memory", lambda: needed)
    refuse_without_memory(base)
    monkeypatch.setattr(module, "available_memory", lambda: needed - 1)
    with pytest.raises(JobFailed) as refused:
        refuse_without_memory(base)
    assert refused.value.code == Code.OUT_OF_MEMORY
    assert refused.value.details == {"needed_bytes": needed, "available_bytes": needed - 1}
