"""Flat keys: the existing native-training call, every key of the original's command line, helpful refusals."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.contract.contracts import FineTuneContract
from shared.contract.field_names import contract_paths, flat_names
from shared.contract.flat_keys import from_flat, parse_backend, parse_contract
from shared.contract.sections import DEFAULT_MODEL_ID
from shared.errors import Code, ContractRejected

DATA = {"data": {"train_file": "file-1"}}
JOURNEY = {"r": 16, "lora_alpha": 32, "target_modules": ["q_proj", "v_proj"], "batch_size": 4, "epochs": 3}

COMMAND_LINE: list[tuple[str, Any, str]] = [
    ("model", "tiny", "model.hf_repo"), ("device", "best", "device.device"), ("rank", 8, "adapter.rank"),
    ("r", 8, "adapter.rank"), ("alpha", 8, "adapter.alpha"), ("lora_alpha", 8, "adapter.alpha"),
    ("target_modules", ["q_proj"], "adapter.target_modules"), ("dropout", 0.1, "adapter.dropout"),
    ("--seq-len", 512, "exec.seq_len"), ("batch-size", 2, "exec.batch_size"), ("grad_accum", 2, "exec.grad_accum"),
    ("epochs", 1, "exec.epochs"), ("lr", 1e-4, "exec.learning_rate"), ("learning_rate", 1e-4, "exec.learning_rate"),
    ("warmup", 5, "exec.warmup_steps"), ("seed", 7, "exec.seed"), ("min_rating", 4, "data.min_rating"),
    ("resume", "run-1", "exec.resume_from"), ("deployment_target", "mobile_edge", "artifact.deployment_target"),
    ("vram_limit_fraction", 0.5, "exec.max_vram_fraction"), ("adapter_tag", "tag", "exec.adapter_tag"),
    ("context_filter", {"rating_min": 3}, "data.context_filter"), ("tokenizer", "vox", "data.tokenizer_mode"),
    ("qlora_require_full_proxy_stack", True, "exec.qlora_require_full_proxy_stack"),
    ("qlora_allow_partial_proxy_stack", True, "exec.qlora_allow_partial_proxy_stack"),
    ("qlora_lm_head_only", True, "exec.qlora_lm_head_only"), ("qlora_max_skip_rate", 0.1, "exec.qlora_max_skip_rate"),
    ("qlora_proxy_max_layers", 3, "exec.qlora_proxy_max_layers"), ("qlora_ce_last_k", 64, "exec.qlora_ce_last_k"),
    ("checkpoint_every", 10, "exec.checkpoint_every"), ("validation_split_ratio", 0.1, "data.validation_split_ratio"),
    ("require_gpu", True, "device.require_gpu"), ("allow_cpu_fallback", False, "device.allow_cpu_fallback"),
    ("curriculum", True, "curriculum.enabled"), ("optimizer_experiment_mode", "off", "optimizer.experiment"),
    ("base_model_family", "qwen2.5", "provenance.base_family"), ("license_class", "mit", "provenance.license_class"),
    ("upstream_model_id", "a/b", "provenance.upstream_model_id"),
    ("attribution_required", True, "provenance.attribution_required"),
    ("trajectory_weighting_enabled", True, "trajectory.enabled"),
    ("trajectory_tool_trace_boost", 2.0, "trajectory.tool_trace_boost"),
    ("trajectory_failure_category_boost", 2.0, "trajectory.failure_category_boost"),
    ("trajectory_quality_floor", 4, "trajectory.quality_floor"),
    ("trajectory_quality_boost", 2.0, "trajectory.quality_boost"), ("tool_trace_boost", 2.0, "trajectory.tool_trace_boost"),
    ("reward_hook", "cargo_build", "reward.hook"), ("weight_decay", 0.1, "exec.weight_decay"),
    ("max_grad_norm", 0.5, "exec.max_grad_norm"),
]  # fmt: skip


def refused(flat: dict[str, Any]) -> ContractRejected:
    with pytest.raises(ContractRejected) as caught:
        from_flat(flat)
    return caught.value


def complete(sections: dict[str, Any]) -> FineTuneContract:
    return parse_contract(sections | {"data": sections.get("data", {}) | DATA["data"]})


def test_keys_of_the_example_are_a_valid_contract() -> None:
    made = complete(from_flat(JOURNEY))
    assert (made.adapter.rank, made.adapter.alpha, made.adapter.target_modules) == (16, 32, ("q_proj", "v_proj"))
    assert (made.exec.batch_size, made.exec.epochs, made.model.hf_repo) == (4, 3, DEFAULT_MODEL_ID)


@pytest.mark.parametrize(("key", "value", "path"), COMMAND_LINE)
def test_command_line_key_lands_in_its_section(key: str, value: Any, path: str) -> None:
    section, field = path.split(".")
    sections = from_flat({key: value})
    assert sections == {section: {field: value}}
    assert path in contract_paths()
    complete(sections)


def test_every_field_has_a_flat_key() -> None:
    assert set(flat_names().values()) == set(contract_paths())


@pytest.mark.parametrize(
    ("name", "method", "quant", "kernel"),
    [("QLoRA", "qlora", "nf4", "candle_qlora"), ("Burn", "lora", "none", "burn_lora")],
)
def test_backend_decides_method_quantisation_and_kernel(name: str, method: str, quant: str, kernel: str) -> None:
    sections = {"adapter": {"method": method}, "quant": {"base": quant}, "exec": {"backend": kernel}}
    assert from_flat({"backend": name}) == sections


@pytest.mark.parametrize(("value", "double"), [(True, False), (False, True)])
def test_no_double_quant_is_negated(value: bool, double: bool) -> None:
    assert from_flat({"qlora_no_double_quant": value}) == {"quant": {"double_quant": double}}


def test_double_quant_that_is_not_a_bool_is_refused_with_the_contract() -> None:
    with pytest.raises(ContractRejected) as caught:
        complete(from_flat({"qlora_no_double_quant": "perhaps"}))
    assert caught.value.param == "quant.double_quant"


def test_whole_sections_may_stand_next_to_flat_keys() -> None:
    assert from_flat({"exec": {"seed": 1}, "lr": 0.1, "model": {"hf_repo": "m"}}) == {
        "exec": {"seed": 1, "learning_rate": 0.1}, "model": {"hf_repo": "m"},
    }  # fmt: skip


@pytest.mark.parametrize(
    ("key", "near"),
    [("epoch", "epochs"), ("batchsize", "batch_size"), ("lora_alpa", "lora_alpha"), ("seqlen", "seq_len"),
     ("backened", "backend"), ("learning-rte", "learning_rate")],
)  # fmt: skip
def test_unknown_key_is_refused_with_the_nearest(key: str, near: str) -> None:
    error = refused({key: 1})
    assert (error.code, error.param, error.remedy) == (Code.CONTRACT_INVALID, key, f"Did you mean {near}?")


def test_key_that_resembles_nothing_points_at_the_schema() -> None:
    assert "GET /v1/contract/schema" in refused({"zzzzzzzz": 1}).remedy


def test_other_spellings_in_a_section_become_the_fields_own_names() -> None:
    assert from_flat({"model": {"name": "m"}, "adapter": {"r": 8, "lora_alpha": 16, "dropout": 0.1}}) == {
        "model": {"hf_repo": "m"}, "adapter": {"rank": 8, "alpha": 16, "dropout": 0.1},
    }  # fmt: skip


@pytest.mark.parametrize(
    "flat", [{"r": 1, "rank": 1}, {"exec": {"epochs": 1}, "n_epochs": 2}, {"rank": 1, "adapter": {"r": 8}}]
)
def test_field_given_twice_is_refused(flat: dict[str, Any]) -> None:
    error = refused(flat)
    assert (error.code, error.param) == (Code.CONTRACT_INVALID, list(flat)[1])


@pytest.mark.parametrize("name", ["", "torch", "lora2", None])
def test_unknown_backend_is_refused(name: Any) -> None:
    assert refused({"backend": name}).code is Code.UNKNOWN_BACKEND


@pytest.mark.parametrize(
    "name", ["lora", "BURN", "burn-lora", "burn_lora", "qlora", "Candle", "candle-qlora", " candle_qlora "]
)
def test_backend_names(name: str) -> None:
    assert parse_backend(name).endswith("qlora") is ("burn" not in name.lower() and name != "lora")


@given(st.dictionaries(st.text(max_size=12), st.integers() | st.text(max_size=5), max_size=4))
def test_anything_is_lifted_or_refused_with_a_code(flat: dict[str, Any]) -> None:
    try:
        sections = from_flat(flat)
    except ContractRejected as error:
        assert error.param in flat or error.code is Code.UNKNOWN_BACKEND
    else:
        assert set(sections) <= set(FineTuneContract.model_fields)


def test_all_faults_are_in_the_details() -> None:
    with pytest.raises(ContractRejected) as caught:
        parse_contract(DATA | {"exec": {"epochs": 0, "seed": -1}})
    assert caught.value.code is Code.CONTRACT_INVALID
    assert [fault["param"] for fault in caught.value.details["errors"]] == ["exec.epochs", "exec.seed"]
