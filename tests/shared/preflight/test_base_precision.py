"""The rule for an open precision: never full precision if it does not fit, monotone in memory, NF4 if the memory is
unknown.
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shared.base_models.config import ModelConfig, parse_model_config
from shared.contract.choices import BaseQuant
from shared.preflight.base_precision import HEADROOM, decide, needed_bytes, room_bytes
from shared.preflight.types import Machine, ServingLimits
from tests.support.builders import contract

GIB = 1 << 30
SMOLLM2 = {
    "model_type": "llama", "hidden_size": 576, "num_hidden_layers": 30, "num_attention_heads": 9,
    "num_key_value_heads": 3, "intermediate_size": 1536, "vocab_size": 49152, "tie_word_embeddings": True,
    "max_position_embeddings": 8192, "dtype": "bfloat16",
}  # fmt: skip
LLAMA_8B = {
    "model_type": "llama", "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32,
    "num_key_value_heads": 8, "intermediate_size": 14336, "vocab_size": 128256, "tie_word_embeddings": False,
    "max_position_embeddings": 131072, "dtype": "bfloat16",
}  # fmt: skip
CONFIGS = {"SmolLM2-135M": parse_model_config(SMOLLM2), "Llama-3.1-8B": parse_model_config(LLAMA_8B)}
SERVES_TWINS = ServingLimits(max_lora_rank=64, weights=frozenset({"twin"}))

configs = st.sampled_from(sorted(CONFIGS)).map(CONFIGS.__getitem__)
tokens = st.integers(8, 20_000)
memory = st.integers(1, 200 * GIB)


def machine(memory_bytes: int, *, on_gpu: bool, free: int | None = None, **more: Any) -> Machine:
    if on_gpu:
        return Machine("cuda", vram_bytes=memory_bytes, free_bytes=free, **more)
    return Machine("cpu", host_bytes=memory_bytes, **more)


@given(config=configs, tokens=tokens, memory=memory, free=st.none() | memory, on_gpu=st.booleans())
@settings(max_examples=200, deadline=None)
def test_full_precision_is_never_taken_where_it_does_not_fit(
    config: ModelConfig, tokens: int, memory: int, free: int | None, on_gpu: bool
) -> None:
    place = machine(memory, on_gpu=on_gpu, free=free)
    found = decide(contract(), config, place, on_gpu=on_gpu, tokens=tokens)
    needs, room = needed_bytes(contract(), config, tokens, on_gpu=on_gpu), room_bytes(contract(), place, on_gpu=on_gpu)
    assert room is not None
    assert (found.precision == "nf4") is (needs > room)
    assert room <= HEADROOM * memory
    assert found.reason


@given(config=configs, tokens=tokens, memory=memory, more=memory, on_gpu=st.booleans())
@settings(max_examples=100, deadline=None)
def test_more_memory_never_lowers_the_precision(
    config: ModelConfig, tokens: int, memory: int, more: int, on_gpu: bool
) -> None:
    small, large = (
        decide(contract(), config, machine(size, on_gpu=on_gpu), on_gpu=on_gpu, tokens=tokens)
        for size in (memory, memory + more)
    )
    assert not (small.precision != "nf4" and large.precision == "nf4")


@pytest.mark.parametrize("on_gpu", [True, False])
def test_an_unknown_machine_gets_nf4_and_the_reason(on_gpu: bool) -> None:
    found = decide(contract(), CONFIGS["SmolLM2-135M"], Machine(), on_gpu=on_gpu)
    assert (found.precision, found.room_bytes) == ("nf4", None)
    assert "not known" in found.reason


@pytest.mark.parametrize(
    ("sections", "precision"),
    [
        ({"quant": {"base": "nf4"}}, "nf4"),
        ({"adapter": {"method": "qlora"}}, "nf4"),
        ({"exec": {"backend": "candle"}}, "nf4"),
        ({"quant": {"base": "none"}}, "bfloat16"),
        ({"adapter": {"method": "lora"}}, "bfloat16"),
    ],
)
def test_what_is_written_stands_whatever_the_memory(sections: dict[str, Any], precision: str) -> None:
    for size in (1, 1000 * GIB):
        found = decide(contract(**sections), CONFIGS["Llama-3.1-8B"], machine(size, on_gpu=True), on_gpu=True)
        assert found.precision == precision


def test_the_operators_precision_decides_what_is_open_and_nothing_else() -> None:
    config, large = CONFIGS["SmolLM2-135M"], machine(1000 * GIB, on_gpu=False, quant_base=BaseQuant.NF4)
    assert decide(contract(), config, large, on_gpu=False).precision == "nf4"
    assert decide(contract(quant={"base": "none"}), config, large, on_gpu=False).precision == "float32"


def test_where_only_the_twin_is_served_a_published_adapter_is_trained_over_nf4() -> None:
    config, large = CONFIGS["SmolLM2-135M"], machine(1000 * GIB, on_gpu=False, limits=SERVES_TWINS)
    assert decide(contract(), config, large, on_gpu=False).precision == "nf4"
    by_operator = machine(1000 * GIB, on_gpu=False, limits=SERVES_TWINS, quant_base=BaseQuant.NONE)
    assert decide(contract(), config, by_operator, on_gpu=False).precision == "nf4", "nothing else could be published"
    kept = contract(artifact={"publish": False})
    assert decide(kept, config, large, on_gpu=False).precision == "float32"


@pytest.mark.parametrize(("card_gib", "precision"), [(24, "nf4"), (32, "bfloat16")])
def test_the_card_that_llama_8b_needs_for_16_bit(card_gib: int, precision: str) -> None:
    made = contract(exec={"batch_size": 4, "grad_accum": 2, "seq_len": 1024})
    assert (
        decide(made, CONFIGS["Llama-3.1-8B"], machine(card_gib * GIB, on_gpu=True), on_gpu=True).precision == precision
    )
