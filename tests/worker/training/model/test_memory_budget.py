"""How a run uses memory: all that is allowed, with the fastest use first, and never more."""

from __future__ import annotations

from itertools import product

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from shared.base_models.config import parse_model_config
from shared.preflight.activations import Recompute
from shared.preflight.estimate import CPU_TOKENS, estimate, memory_limit
from shared.preflight.memory import cache_bytes
from tests.support.base_configs import QWEN3_06B, QWEN3_8B
from tests.support.tiny_models import RAW
from tests.support.training_runs import contract_for
from worker.training.model import memory_budget
from worker.training.model.memory_budget import (
    ENOUGH_TOKENS,
    MAX_TOKENS,
    Way,
    choose_budget,
    cpu_budget,
    device_budget,
    predict,
    token_sizes,
)

GIB = 1 << 30
CONFIG = parse_model_config(QWEN3_8B)


def contract(**exec_: int):
    return contract_for("base", exec={"batch_size": 4, "grad_accum": 4, "seq_len": 2048, **exec_})


def test_sizes_go_from_a_whole_step_down_to_one_row():
    assert token_sizes(contract()) == [32768, 16384, 8192, 4096, 2048]
    assert token_sizes(contract(batch_size=64, grad_accum=64))[0] == MAX_TOKENS
    assert token_sizes(contract(batch_size=1, grad_accum=1)) == [2048]
    assert token_sizes(contract(batch_size=3, grad_accum=1)) == [6144, 3072, 2048]
    assert token_sizes(contract(batch_size=1, grad_accum=1, seq_len=100_000)) == [100_000]


def test_an_h200_recomputes_nothing_and_keeps_the_cache():
    budget = device_budget(contract(), CONFIG, 120 * GIB)
    assert budget.recompute is Recompute.NONE
    assert budget.cache_dequantised
    assert budget.tokens >= 8192


@pytest.mark.parametrize(("gib", "tokens"), [(66, 8192), (40, 8192), (27, 4096)], ids=["80 GB", "48 GB", "32 GB"])
def test_a_large_gpu_recomputes_nothing(gib, tokens):
    """Fails while activations are those of PEFT's layers, or 4,096 tokens are not tried without recomputing."""
    budget = device_budget(contract(), CONFIG, gib * GIB)
    assert (budget.recompute, budget.tokens) == (Recompute.NONE, tokens)


@pytest.mark.parametrize(("gib", "recompute"), [(20, Recompute.MLPS), (12, Recompute.BLOCKS)], ids=["24 GB", "16 GB"])
def test_a_small_gpu_recomputes_before_its_micro_batches_get_tiny(gib, recompute):
    """Fails while blocks are recomputed where norms and MLPs are enough."""
    budget = device_budget(contract(), CONFIG, gib * GIB)
    assert budget.recompute is recompute
    assert not budget.cache_dequantised
    assert budget.tokens >= ENOUGH_TOKENS


def test_only_blocks_can_be_recomputed_where_mlps_are_not_fused():
    asked = contract_for("base", adapter={"dropout": 0.1}, exec={"batch_size": 1, "grad_accum": 4, "seq_len": 2048})
    found = {device_budget(asked, CONFIG, gib * GIB).recompute for gib in range(10, 80)}
    assert found == {Recompute.NONE, Recompute.BLOCKS}


def test_where_nothing_fits_the_smallest_is_tried():
    budget = device_budget(contract(), CONFIG, 1 * GIB)
    assert (budget.tokens, budget.recompute, budget.cache_dequantised) == (2048, Recompute.BLOCKS, False)


@pytest.mark.parametrize(("ours", "others"), [(True, 1), (False, 1), (True, 0)])
def test_a_gpu_without_kernels_gets_what_torch_saves_there(monkeypatch, ours, others):
    """The budget assumes kernels only if they run on every process's GPU."""
    monkeypatch.setattr(memory_budget, "kernels_agree", lambda _: ours)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (26 * GIB, 80 * GIB))
    smallest = lambda number: min(number, others) if number <= 1 else number  # noqa: E731
    found = choose_budget(contract(), CONFIG, torch.device("cuda"), smallest=smallest)
    kernels = ours and bool(others)
    assert found == device_budget(contract(), CONFIG, 26 * GIB, kernels=kernels)
    assert found.recompute is (Recompute.NONE if kernels else Recompute.MLPS)


@pytest.mark.parametrize("agree", [True, False])
def test_a_hybrid_model_needs_the_kernels_of_linear_attention_too(monkeypatch, agree):
    tried, config = [], parse_model_config(RAW["qwen3_5_text"])
    monkeypatch.setattr(memory_budget, "kernels_agree", lambda _: True)
    monkeypatch.setattr(memory_budget, "delta_rule_agrees", lambda *what: tried.append(what) or agree)
    cuda = torch.device("cuda")
    assert memory_budget.every_kernel_agrees(cuda, config) == agree
    assert tried == [(cuda, (2, 8, 4, 16))]
    assert memory_budget.every_kernel_agrees(cuda, CONFIG)


@pytest.mark.parametrize("exec_", [{"batch_size": 1, "grad_accum": 4}, {"batch_size": 6, "grad_accum": 2}])
@pytest.mark.parametrize("raw", [QWEN3_06B, QWEN3_8B], ids=["0.6B", "8B"])
def test_the_preflight_takes_what_the_trainer_can_place_and_nothing_else(raw, exec_):
    """Fails while it counts a whole micro-batch's logits, or all of several GPUs' memory as one."""
    config, differ = parse_model_config(raw), []
    for seq_len, gib, devices in product((512, 6144, 8192, 32_768), (2, 4, 8, 16, 24, 80), (1, 4)):
        asked = contract(seq_len=seq_len, **exec_)
        limit = memory_limit(asked, gib * GIB)
        for on_gpu in (True, False) if devices == 1 else (True,):
            least = Recompute.BLOCKS if on_gpu else Recompute.NONE
            needs = estimate(
                asked, config, rows=9, vram_bytes=gib * GIB, recompute=least, on_gpu=on_gpu, devices=devices
            )
            budget = device_budget(asked, config, limit, devices) if on_gpu else cpu_budget(asked, config, limit, 0)
            if needs.possible != (budget.predicted_bytes <= limit):
                differ.append((seq_len, gib, devices, on_gpu))
    assert differ == []


def test_a_base_is_held_in_parts_only_where_it_fits_no_other_way():
    scarce = 7 * GIB
    alone, together = (device_budget(contract(), CONFIG, scarce, processes) for processes in (1, 8))
    assert not alone.shard_base
    assert together.shard_base
    assert not together.cache_dequantised
    assert together.predicted_bytes <= scarce
    assert not device_budget(contract(), CONFIG, 120 * GIB, 8).shard_base


@settings(max_examples=60, deadline=None)
@given(gib=st.integers(14, 200), batch=st.sampled_from([1, 2, 8, 32]), seq_len=st.sampled_from([256, 1024, 4096]))
def test_the_prediction_keeps_to_the_limit(gib, batch, seq_len):
    asked = contract(batch_size=batch, seq_len=seq_len)
    budget = device_budget(asked, CONFIG, gib * GIB)
    smallest = predict(asked, CONFIG, Way(token_sizes(asked)[-1], recompute=Recompute.BLOCKS), on_gpu=True)
    assert budget.predicted_bytes <= max(gib * GIB, smallest)
    assert budget.tokens >= seq_len


@settings(max_examples=40, deadline=None)
@given(gib=st.integers(14, 199), more=st.integers(1, 40))
def test_more_memory_never_means_smaller_micro_batches_in_the_same_mode(gib, more):
    one, other = (device_budget(contract(), CONFIG, size * GIB) for size in (gib, gib + more))
    assert one.recompute.rank >= other.recompute.rank
    if one.recompute is other.recompute:
        assert other.tokens >= one.tokens


def test_a_cpus_micro_batch_is_the_contracts_on_every_machine_where_it_fits():
    budgets = [cpu_budget(contract(), CONFIG, limit * GIB, 0) for limit in (200, 512)]
    assert {(budget.tokens, budget.recompute) for budget in budgets} == {(4 * 2048, Recompute.NONE)}


@pytest.mark.parametrize("exec_", [{"seq_len": 6144, "batch_size": 1}, {"seq_len": 512, "batch_size": 16}])
def test_a_cpus_micro_batch_is_cut_to_the_machines_memory(exec_):
    """Fails while a CPU's micro-batch is the contract's whatever memory there is: the kernel ends that trainer."""
    limit = memory_limit(contract(), 16 * GIB)
    budget = cpu_budget(contract(**exec_), parse_model_config(QWEN3_06B), limit, 16 * GIB)
    assert budget.predicted_bytes <= limit
    assert exec_["seq_len"] <= budget.tokens < 8192


@settings(max_examples=60, deadline=None)
@given(gib=st.integers(1, 100), free=st.integers(0, 100), batch=st.sampled_from([1, 8]), seq_len=st.integers(8, 9000))
def test_what_a_cpu_takes_keeps_to_the_limit_with_the_cache(gib, free, batch, seq_len):
    asked = contract(batch_size=batch, seq_len=seq_len)
    budget = cpu_budget(asked, CONFIG, gib * GIB, free * GIB)
    smallest = predict(asked, CONFIG, Way(seq_len, recompute=Recompute.BLOCKS), on_gpu=False)
    assert budget.predicted_bytes <= max(gib * GIB, smallest)
    assert budget.tokens >= seq_len


def test_a_cpus_micro_batch_of_several_rows_is_bounded():
    sizes = [cpu_budget(contract(seq_len=length), CONFIG, 1000 * GIB, GIB).tokens for length in (256, 4096, 16_384)]
    assert sizes == [4 * 256, CPU_TOKENS, 16_384]


@pytest.mark.parametrize(("free", "cached"), [(4, False), (1000, True)])
def test_a_cpu_caches_what_takes_little_of_its_memory(free, cached):
    assert cpu_budget(contract(), CONFIG, 1000 * GIB, free * GIB).cache_dequantised is cached
    assert cache_bytes(contract(), CONFIG, 4) == 2 * cache_bytes(contract(), CONFIG, 2)


def test_of_an_unquantised_base_nothing_is_cached():
    """Its weights are what the cache would hold."""
    made = contract_for("base", quant={"base": "none"})
    assert not cpu_budget(made, CONFIG, 1000 * GIB, 1000 * GIB).cache_dequantised
    assert not device_budget(made, CONFIG, 1000 * GIB).cache_dequantised
    assert cache_bytes(made, CONFIG, 4) == 0


def test_the_plan_counts_the_cache_where_a_cpu_keeps_it():
    kept = []
    for gib in (16, 64, 256):
        needs = estimate(contract(), CONFIG, rows=100, vram_bytes=gib * GIB, on_gpu=False)
        budget = cpu_budget(contract(), CONFIG, needs.vram_budget, gib * GIB)
        assert needs.vram.dequantised_cache == (cache_bytes(contract(), CONFIG, 4) if budget.cache_dequantised else 0)
        kept.append(budget.cache_dequantised)
    assert kept == [False, False, True]


def test_what_is_predicted_has_the_largest_steps_tokens():
    budgets = [cpu_budget(contract(), CONFIG, 500 * GIB, 0, largest_step=step) for step in (None, 4 * 2048, 1000)]
    assert budgets[0] == budgets[1]
    assert budgets[2].predicted_bytes < budgets[0].predicted_bytes
    assert (budgets[2].tokens, budgets[2].recompute) == (budgets[0].tokens, budgets[0].recompute)
