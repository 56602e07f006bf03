"""How a run uses memory: as much as there is, fastest first, and never more than allowed."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shared.base_models.config import parse_model_config
from tests.support.base_configs import QWEN3_8B
from tests.support.training_runs import contract_for
from worker.training.model.memory_budget import (
    CPU_TOKENS,
    MAX_TOKENS,
    cache_bytes,
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
    assert token_sizes(contract(batch_size=1, grad_accum=1, seq_len=100_000)) == [100_000]


def test_an_h200_recomputes_nothing_and_keeps_the_cache():
    budget = device_budget(contract(), CONFIG, 120 * GIB)
    assert not budget.checkpointing
    assert budget.cache_dequantised
    assert budget.tokens >= 8192


def test_a_small_gpu_recomputes_before_its_micro_batches_get_tiny():
    budget = device_budget(contract(), CONFIG, 20 * GIB)
    assert budget.checkpointing
    assert not budget.cache_dequantised
    assert budget.tokens >= 2048


def test_where_nothing_fits_the_smallest_is_tried():
    budget = device_budget(contract(), CONFIG, 1 * GIB)
    assert (budget.tokens, budget.checkpointing, budget.cache_dequantised) == (2048, True, False)


def test_a_base_is_held_in_parts_only_where_it_fits_no_other_way():
    scarce = 8 * GIB
    alone, together = (device_budget(contract(), CONFIG, scarce, processes) for processes in (1, 8))
    assert not alone.shard_base
    assert together.shard_base
    assert not together.cache_dequantised
    assert together.predicted_bytes is not None
    assert together.predicted_bytes <= scarce
    assert not device_budget(contract(), CONFIG, 120 * GIB, 8).shard_base


@settings(max_examples=60, deadline=None)
@given(gib=st.integers(14, 200), batch=st.sampled_from([1, 2, 8, 32]), seq_len=st.sampled_from([256, 1024, 4096]))
def test_the_prediction_keeps_to_the_limit(gib, batch, seq_len):
    asked = contract(batch_size=batch, seq_len=seq_len)
    budget = device_budget(asked, CONFIG, gib * GIB)
    smallest = predict(asked, CONFIG, token_sizes(asked)[-1], checkpointing=True)
    assert budget.predicted_bytes is not None
    assert budget.predicted_bytes <= max(gib * GIB, smallest)
    assert budget.tokens >= seq_len


@settings(max_examples=40, deadline=None)
@given(gib=st.integers(14, 199), more=st.integers(1, 40))
def test_more_memory_never_means_smaller_micro_batches_in_the_same_mode(gib, more):
    one, other = (device_budget(contract(), CONFIG, size * GIB) for size in (gib, gib + more))
    assert one.checkpointing >= other.checkpointing
    if one.checkpointing == other.checkpointing:
        assert other.tokens >= one.tokens


def test_a_cpus_micro_batch_is_the_contracts_on_every_machine():
    sizes = {cpu_budget(contract(), CONFIG, free * GIB).tokens for free in (1, 8, 512)}
    assert sizes == {4 * 2048}


def test_a_cpus_micro_batch_of_several_rows_is_bounded():
    sizes = [cpu_budget(contract(seq_len=length), CONFIG, GIB).tokens for length in (256, 4096, 16_384)]
    assert sizes == [4 * 256, CPU_TOKENS, 16_384]


@pytest.mark.parametrize(("free", "cached"), [(4, False), (1000, True)])
def test_a_cpu_caches_what_takes_little_of_its_memory(free, cached):
    assert cpu_budget(contract(), CONFIG, free * GIB).cache_dequantised is cached
    assert cache_bytes(CONFIG, 4) == 2 * cache_bytes(CONFIG, 2)
