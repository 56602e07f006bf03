"""Ranks and cache sizes: chosen by the ranks of plans and by the memory, and never more than fits."""

from __future__ import annotations

import math
from typing import Any

import pytest

from serving.launch.lora_capacity import MAX_CACHED, LoraSizes, choose_sizes, planned_rank
from serving.settings import LORA_RANKS, ServingSettings
from shared.base_models.config import parse_model_config
from shared.base_models.tensors import expected_tensors, parameter_count
from shared.contract.presets import preset_names, resolve_contract
from shared.errors import InvalidRequest
from shared.preflight.memory import adapter_file_bytes, lora_tensors
from tests.serving.launch.launches import LLAMA_70B, QWEN3_8B, QWEN35_4B, TINY

GIB = 1 << 30
TINY_CONFIG, QWEN, LLAMA = (parse_model_config(raw) for raw in (TINY, QWEN3_8B, LLAMA_70B))
HYBRID = parse_model_config(QWEN35_4B)


def sizes(
    config=QWEN, *, memory: int = 64 * GIB, stored_rank: int = 0, dtype: str = "auto", **settings: Any
) -> LoraSizes:
    values = {"serving_base": "b", "serving_device": "cuda", **settings}
    return choose_sizes(ServingSettings(**values), config, dtype=dtype, stored_rank=stored_rank, memory=memory)


@pytest.mark.parametrize(("config", "rank"), [(TINY_CONFIG, 32), (HYBRID, 32), (QWEN, 16), (LLAMA, 16)])
def test_max_rank_is_what_plans_of_the_base_request(config, rank):
    """The largest preset has 32; from 9B on the ladder lowers presets to 8, and the contract's own is 16."""
    assert planned_rank(config) == rank
    assert sizes(config).max_rank == rank


def test_rank_of_every_preset_is_servable():
    from shared.contract.flat_keys import parse_contract

    empty = parse_contract({"data": {"train_file": "f"}})
    for config in (TINY_CONFIG, HYBRID, QWEN, LLAMA):
        parameters = parameter_count(expected_tensors(config))
        for preset in [None, *preset_names()]:
            contract = resolve_contract(empty, preset=preset, parameters=parameters).contract
            assert contract.adapter.rank <= sizes(config).max_rank


def test_larger_stored_adapter_raises_max_rank():
    assert sizes(stored_rank=17).max_rank == 32
    assert sizes(stored_rank=8).max_rank == 16
    assert sizes(stored_rank=512, memory=256 * GIB).max_rank == 512


def test_stored_adapter_without_room_for_others_is_not_served():
    """One huge adapter in the storage must not keep a replica from starting."""
    assert sizes(stored_rank=512, memory=16 * GIB).max_rank == 64
    assert sizes(stored_rank=99999, memory=8 * GIB).max_rank in LORA_RANKS


def test_cache_fills_the_memory():
    found = sizes()
    assert found.room == 16 * GIB
    held = found.max_cpu_loras * found.adapter_bytes
    assert found.room * 0.95 < held <= found.room
    assert sizes(serving_lora_memory_bytes=8 * GIB).max_cpu_loras < found.max_cpu_loras / 1.9


def test_cache_holds_more_than_a_batch():
    for memory in (4 * GIB, 5 * GIB, 8 * GIB, 64 * GIB):
        found = sizes(memory=memory, serving_max_loras=4)
        assert found.max_cpu_loras > 4


def test_cache_of_tiny_adapters_is_bounded():
    assert sizes(TINY_CONFIG, dtype="float32", serving_device="cpu").max_cpu_loras == MAX_CACHED


def test_adapter_size_equals_its_fp32_file():
    """On a CPU in fp32, where nothing is rounded: the tensors of the file, without its header."""
    found = sizes(TINY_CONFIG, dtype="float32", serving_device="cpu", serving_max_lora_rank=16)
    tensors = lora_tensors(TINY_CONFIG, 16)
    assert found.adapter_bytes == sum(4 * math.prod(shape) for shape in tensors.values())
    assert 0 < adapter_file_bytes(tensors) - found.adapter_bytes < 16384


def test_adapter_size_includes_an_adaptable_head():
    linear = sum(4 * math.prod(shape) for shape in lora_tensors(QWEN, 16).values())
    found = sizes(QWEN, dtype="float32", serving_device="cpu", serving_max_lora_rank=16)
    assert found.adapter_bytes == linear + 4 * 16 * (QWEN.hidden + QWEN.vocab)


def test_adapter_size_counts_every_process():
    one, four = sizes(), sizes(serving_tensor_parallel=2, serving_pipeline_parallel=2)
    assert four.adapter_bytes == 4 * one.adapter_bytes
    assert abs(four.max_cpu_loras - one.max_cpu_loras / 4) < 2


def test_page_locked_memory_is_rounded_up():
    """torch allocates it in powers of two; a tensor of 16 times 12288 takes that of 16 times 16384."""
    found = sizes(serving_max_lora_rank=16, serving_dtype="float32", dtype="float32").adapter_bytes
    plain = sizes(serving_device="cpu", serving_max_lora_rank=16, dtype="float32").adapter_bytes
    assert plain < found < 2 * plain


def test_settings_override_the_choice():
    found = sizes(serving_max_lora_rank=100, serving_max_cpu_loras=5, stored_rank=512, memory=GIB)
    assert (found.max_rank, found.max_cpu_loras, found.max_loras) == (128, 5, 4)
    assert sizes(serving_max_lora_rank=8, stored_rank=512).max_rank == 8


def test_requested_cache_size_is_kept_at_a_lower_rank():
    assert sizes(serving_max_cpu_loras=64).max_cpu_loras == 64
    assert sizes(serving_max_cpu_loras=64, stored_rank=512, memory=64 * GIB).max_rank == 32
    assert sizes(serving_max_cpu_loras=9999, stored_rank=512).max_rank == 16


def test_batch_may_exceed_the_cache_bound():
    found = sizes(TINY_CONFIG, serving_max_loras=2000)
    assert (found.max_loras, found.max_cpu_loras) == (2000, 2001)


@pytest.mark.parametrize("settings", [{}, {"serving_max_lora_rank": 512}, {"serving_max_loras": 40}])
def test_missing_room_is_refused_before_the_engine_starts(settings):
    with pytest.raises(InvalidRequest, match="adapters of rank") as caught:
        sizes(memory=GIB, **settings)
    error = caught.value
    assert error.code == "ADAPTERS_DO_NOT_FIT"
    assert error.details["needed_bytes"] > error.details["allowed_bytes"] == GIB // 4
    assert error.details["adapters"] == settings.get("serving_max_loras", 4) + 1


def test_stated_minimum_of_room_is_enough():
    """The refusal's own number, and not a byte less."""
    with pytest.raises(InvalidRequest) as caught:
        sizes(memory=GIB)
    needed = caught.value.details["needed_bytes"]
    assert sizes(serving_lora_memory_bytes=needed).max_cpu_loras == 5
    with pytest.raises(InvalidRequest):
        sizes(serving_lora_memory_bytes=needed - 1)


def test_summary_line():
    assert str(sizes()).startswith("adapters up to rank 16, 4 in a batch, 154 in memory (")
