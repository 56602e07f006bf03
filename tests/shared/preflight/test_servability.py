"""A contract whose adapter could not be served is refused at submission, with a remedy."""

from __future__ import annotations

from typing import Any

import pytest

from shared.base_models.config import parse_model_config
from shared.base_models.families import Family
from shared.contract.flat_keys import parse_contract
from shared.errors import Code, ContractRejected
from shared.preflight.servability import check_servable, check_served_weights, serving_notes
from shared.preflight.types import ServingLimits
from shared.replicas import ServedBaseName
from tests.support.builders import contract
from tests.support.tiny_models import RAW

LIMITS = ServingLimits(
    max_lora_rank=16, base_digest="a" * 64, bases=frozenset({ServedBaseName("mens-tiny")}), max_model_len=256
)


def refusal(name: str = "qwen3", base_digest: str | None = None, **adapter: Any) -> ContractRejected:
    with pytest.raises(ContractRejected) as caught:
        check_servable(contract(adapter=adapter), parse_model_config(RAW[name]), LIMITS, base_digest=base_digest)
    return caught.value


@pytest.mark.parametrize("name", [name for name in RAW if not name.startswith("gpt2")])
def test_default_contract_is_servable(name: str) -> None:
    check_servable(contract(), parse_model_config(RAW[name]), LIMITS, base_digest="a" * 64)
    check_servable(contract(), parse_model_config(RAW[name]), LIMITS)


def test_rank_over_the_limit_names_both_remedies() -> None:
    error = refusal(rank=32)
    assert (error.code, error.param) == (Code.NOT_SERVABLE_RANK, "adapter.rank")
    assert error.remedy == (
        "Set adapter.rank to 16 (`--rank 16`), or start the replicas with MENS_SERVING_MAX_LORA_RANK=32,"
        " as in `MENS_SERVING_MAX_LORA_RANK=32 mens up`."
    )


def test_rank_at_the_limit_is_served() -> None:
    check_servable(contract(adapter={"rank": 16}), parse_model_config(RAW["qwen3"]), LIMITS)


def test_other_base_is_refused() -> None:
    error = refusal(base_digest="b" * 64)
    assert error.code is Code.NOT_SERVABLE_BASE
    name = contract().model.hf_repo
    assert error.message == f"{name} is not served here; mens-tiny is."
    assert error.remedy == (
        f"Serve it with `mens up --base mens-tiny --base {name}`, or set MENS_SERVING_BASE={name} for replicas that you start yourself; "
        "or train without publishing (`--no-publish`, artifact.publish = false)."
    )
    assert "a" * 12 not in str(error.as_dict()) and "b" * 12 not in str(error.as_dict())


@pytest.mark.parametrize("name", ["gpt2", "gpt2-inner"])
def test_family_without_lora_in_the_engine_is_refused(name: str) -> None:
    assert refusal(name).code is Code.NOT_SERVABLE_FAMILY


@pytest.mark.parametrize(
    ("name", "refused"), [("qwen3", False), ("llama", False), ("qwen3-tied", True), ("qwen2", True)]
)
def test_head_is_servable_only_when_untied_and_known_to_the_engine(name: str, refused: bool) -> None:
    if refused:
        assert refusal(name, target_modules=["lm_head"]).code is Code.NOT_SERVABLE_HEAD
    else:
        limited = contract(adapter={"target_modules": ["lm_head"]})
        check_servable(limited, parse_model_config(RAW[name]), LIMITS)


@pytest.mark.parametrize(
    "requested",
    [{"modules_to_save": ["lm_head"]}, {"use_dora": True}, {"bias": "all"}, {"rank_pattern": {"q_proj": 4}}],
)
def test_whole_modules_are_not_a_field_of_a_contract(requested: dict[str, Any]) -> None:
    """A contract has no field for features that vLLM refuses in an adapter, so they are not trained."""
    with pytest.raises(ContractRejected) as caught:
        parse_contract({"data": {"train_file": "f"}, "adapter": requested})
    (field,) = requested
    assert field in str(caught.value.as_dict())


def test_hybrid_targets_are_servable() -> None:
    targets = {"target_modules": ["in_proj_qkv", "out_proj", "q_proj"]}
    check_servable(contract(adapter=targets), parse_model_config(RAW["qwen3_5"]), LIMITS)


def test_unpublished_adapter_need_not_be_servable() -> None:
    requested = contract(adapter={"rank": 512}, artifact={"publish": False}, exec={"seq_len": 4096})
    check_servable(requested, parse_model_config(RAW["gpt2"]), LIMITS, base_digest="b" * 64)
    assert serving_notes(requested, LIMITS) == []


def test_long_rows_are_only_a_note() -> None:
    assert serving_notes(contract(exec={"seq_len": 256}), LIMITS) == []
    assert "257" in serving_notes(contract(exec={"seq_len": 257}), LIMITS)[0]
    assert serving_notes(contract(exec={"seq_len": 257}), ServingLimits(max_lora_rank=16)) == []


@pytest.mark.vllm
@pytest.mark.parametrize("name", Family)
def test_vllm_declares_the_same_support(name: str) -> None:
    """What vLLM's own model classes declare."""
    from importlib import import_module

    from vllm.model_executor.models.interfaces import supports_lora

    classes = {
        "qwen2": "qwen2.Qwen2ForCausalLM",
        "qwen3": "qwen3.Qwen3ForCausalLM",
        "qwen3_5": "qwen3_5.Qwen3_5ForCausalLM",
        "llama": "llama.LlamaForCausalLM",
        "mistral": "mistral.MistralForCausalLM",
        "gpt2": "gpt2.GPT2LMHeadModel",
    }
    if name == "qwen3_5":
        from serving import vllm_qwen3_5_patch

        vllm_qwen3_5_patch.apply_patch()
    module, class_name = classes[name].split(".")
    model_class = getattr(import_module(f"vllm.model_executor.models.{module}"), class_name)
    assert supports_lora(model_class) == (name in LIMITS.families)
    if name in LIMITS.families:
        assert ("lm_head" in model_class.embedding_modules) == (name in LIMITS.head_families)


TWINS, ORIGINALS, BOTH = (
    ServingLimits(max_lora_rank=16, weights=frozenset(weights))
    for weights in (["twin"], ["original"], ["twin", "original"])
)


@pytest.mark.parametrize(
    "sections", [{"quant": {"base": "none"}}, {"adapter": {"method": "lora"}}], ids=["quant.base", "adapter.method"]
)
def test_unquantised_base_is_refused_where_only_its_twin_is_served(sections: dict[str, Any]) -> None:
    with pytest.raises(ContractRejected) as caught:
        check_served_weights(contract(**sections), TWINS)
    assert (caught.value.code, caught.value.param) == (Code.NOT_SERVABLE_BASE, "quant.base")
    assert "--weights original" in str(caught.value.remedy)
    for limits in (ORIGINALS, BOTH, LIMITS):
        check_served_weights(contract(**sections), limits)
    check_served_weights(contract(artifact={"publish": False}, **sections), TWINS)
    check_served_weights(contract(quant={"base": "nf4"}), TWINS)


def test_nf4_where_only_the_original_is_served_is_noted_with_both_remedies() -> None:
    nf4 = contract(quant={"base": "nf4"})
    [note] = serving_notes(nf4, ORIGINALS)
    assert "base shift" in note and "quant.base = none" in note and "--weights twin" in note
    assert not any(serving_notes(nf4, limits) for limits in (TWINS, BOTH, ServingLimits(max_lora_rank=16)))
    assert not serving_notes(contract(quant={"base": "none"}), ORIGINALS)
    assert not serving_notes(contract(quant={"base": "nf4"}, artifact={"publish": False}), ORIGINALS)
