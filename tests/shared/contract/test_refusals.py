"""Refusals: each refuses with its code, in the specified order; valid contracts pass; messages name the values."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.contract.contracts import FineTuneContract
from shared.contract.flat_keys import Kernel
from shared.contract.refusals import (
    MOBILE_LIMITS,
    REFUSALS,
    UNKNOWN,
    RefusalContext,
    check_refusals,
    effective_full_stack,
    infer_kernel,
    target_device,
)
from shared.contract.sections import ExecSection
from shared.errors import Code, ContractRejected
from tests.support.builders import contract

CUDA = RefusalContext(device="cuda", model_type="qwen3", n_layers=4, rows=1000)
CPU = replace(CUDA, device="cpu")
UNUSABLE = replace(CPU, gpu_fault="the H200 cannot be used: the driver is old. Update it.")
LORA = {"adapter": {"method": "lora"}, "quant": {"base": "none"}}
BURN = LORA | {"exec": {"backend": "burn"}}
MOBILE = {"artifact": {"deployment_target": "mobile_edge"}, "exec": {"batch_size": 1}}

PARAMS = {refusal.code: refusal.param for refusal in REFUSALS}

ORDER = [
    Code.NF4_REQUIRES_QLORA, Code.QLORA_REQUIRES_HF_TOKENIZER, Code.BURN_HF_CONFIG_REQUIRED, Code.BURN_HF_GPT2_ONLY,
    Code.MOBILE_EDGE_REJECTS_FULL_PROXY_STACK, Code.MOBILE_EDGE_SEQ_LEN, Code.MOBILE_EDGE_RANK,
    Code.MOBILE_EDGE_BATCH_SIZE, Code.KERNEL_MISMATCH, Code.BURN_LORA_REJECTED, Code.MOBILE_EDGE_REQUIRES_CPU,
    Code.GPU_UNUSABLE, Code.GPU_REQUIRED, Code.PROXY_STACK_CONFLICT, Code.LM_HEAD_ONLY_FULL_STACK, Code.LM_HEAD_ONLY_PROXY_LAYERS,
    Code.CE_LAST_K_TOO_LARGE, Code.CORPUS_TOO_SMALL, Code.OPTIMIZER_EXPERIMENT_OFF, Code.LM_HEAD_ONLY_UNSUPPORTED,
    Code.PARTIAL_DEPTH_UNSUPPORTED,
]  # fmt: skip

REFUSED: list[tuple[dict[str, Any], RefusalContext, Code]] = [
    ({"adapter": {"method": "lora"}, "quant": {"base": "nf4"}}, CUDA, Code.NF4_REQUIRES_QLORA),
    ({"data": {"train_file": "f", "tokenizer_mode": "vox"}}, CUDA, Code.QLORA_REQUIRES_HF_TOKENIZER),
    (BURN, replace(CUDA, model_type=None), Code.BURN_HF_CONFIG_REQUIRED),
    (BURN, CUDA, Code.BURN_HF_GPT2_ONLY),
    (BURN, replace(CUDA, model_type="phi3"), Code.BURN_HF_GPT2_ONLY),
    (BURN | {"model": {"config_json": "c.json"}}, replace(CUDA, model_type=None), Code.BURN_HF_GPT2_ONLY),
    (MOBILE | {"exec": {"qlora_require_full_proxy_stack": True}}, CPU, Code.MOBILE_EDGE_REJECTS_FULL_PROXY_STACK),
    (MOBILE | {"exec": {"seq_len": 513, "batch_size": 1}}, CPU, Code.MOBILE_EDGE_SEQ_LEN),
    (MOBILE | {"adapter": {"rank": 33}}, CPU, Code.MOBILE_EDGE_RANK),
    (MOBILE | {"exec": {"batch_size": 2}}, CPU, Code.MOBILE_EDGE_BATCH_SIZE),
    ({}, replace(CUDA, force_kernel="lora"), Code.KERNEL_MISMATCH),
    (LORA, replace(CUDA, model_type="gpt2", force_kernel="qlora"), Code.KERNEL_MISMATCH),
    ({}, replace(CUDA, force_kernel="torch"), Code.UNKNOWN_BACKEND),
    (BURN, replace(CUDA, model_type="gpt2"), Code.BURN_LORA_REJECTED),
    (LORA, replace(CUDA, model_type="gpt2", force_kernel="burn"), Code.BURN_LORA_REJECTED),
    (BURN | {"data": {"train_file": "f", "tokenizer_mode": "vox"}}, CUDA, Code.BURN_LORA_REJECTED),
    (MOBILE, CUDA, Code.MOBILE_EDGE_REQUIRES_CPU),
    (MOBILE, UNKNOWN, Code.MOBILE_EDGE_REQUIRES_CPU),
    (MOBILE | {"device": {"device": "cuda"}}, CPU, Code.MOBILE_EDGE_REQUIRES_CPU),
    ({}, UNUSABLE, Code.GPU_UNUSABLE),
    ({"device": {"require_gpu": True, "device": "cuda"}}, UNUSABLE, Code.GPU_UNUSABLE),
    ({"device": {"device": "cuda", "allow_cpu_fallback": False}}, UNUSABLE, Code.GPU_UNUSABLE),
    ({"device": {"require_gpu": True, "device": "cpu"}}, UNUSABLE, Code.GPU_REQUIRED),
    ({"device": {"require_gpu": True}}, CPU, Code.GPU_REQUIRED),
    ({"device": {"require_gpu": True, "device": "cuda"}}, CPU, Code.GPU_REQUIRED),
    ({"device": {"require_gpu": True, "device": "cpu"}}, CUDA, Code.GPU_REQUIRED),
    ({"device": {"device": "cuda", "allow_cpu_fallback": False}}, CPU, Code.GPU_REQUIRED),
    (
        {"exec": {"qlora_require_full_proxy_stack": True, "qlora_allow_partial_proxy_stack": True}},
        CUDA,
        Code.PROXY_STACK_CONFLICT,
    ),
    ({"exec": {"qlora_lm_head_only": True}}, CUDA, Code.LM_HEAD_ONLY_FULL_STACK),
    ({"exec": {"qlora_lm_head_only": True}, "device": {"device": "cuda"}}, CPU, Code.LM_HEAD_ONLY_FULL_STACK),
    (
        {"exec": {"qlora_lm_head_only": True, "qlora_require_full_proxy_stack": True}},
        CPU,
        Code.LM_HEAD_ONLY_FULL_STACK,
    ),
    ({"exec": {"qlora_lm_head_only": True, "qlora_proxy_max_layers": 1}}, CPU, Code.LM_HEAD_ONLY_PROXY_LAYERS),
    ({"exec": {"qlora_ce_last_k": 17, "seq_len": 16}}, CUDA, Code.CE_LAST_K_TOO_LARGE),
    ({}, replace(CUDA, rows=0), Code.CORPUS_TOO_SMALL),
    ({"optimizer": {"experiment": "muon_clip_like"}}, CUDA, Code.OPTIMIZER_EXPERIMENT_OFF),
    ({"exec": {"qlora_lm_head_only": True}}, CPU, Code.LM_HEAD_ONLY_UNSUPPORTED),
    ({"exec": {"qlora_lm_head_only": True, "qlora_proxy_max_layers": 0}}, CPU, Code.LM_HEAD_ONLY_UNSUPPORTED),
    (
        {"exec": {"qlora_lm_head_only": True, "qlora_allow_partial_proxy_stack": True}},
        CUDA,
        Code.LM_HEAD_ONLY_UNSUPPORTED,
    ),
    ({"exec": {"qlora_proxy_max_layers": 0}}, CUDA, Code.PARTIAL_DEPTH_UNSUPPORTED),
    ({"exec": {"qlora_proxy_max_layers": 3}}, CUDA, Code.PARTIAL_DEPTH_UNSUPPORTED),
    ({"exec": {"qlora_proxy_max_layers": 99}}, replace(CUDA, n_layers=None), Code.PARTIAL_DEPTH_UNSUPPORTED),
]

PASSED: list[tuple[dict[str, Any], RefusalContext]] = [
    ({}, UNKNOWN),
    ({}, CUDA),
    ({}, replace(CUDA, force_kernel="Candle")),
    ({"quant": {"base": "none"}}, CUDA),
    ({"adapter": {"method": "qlora"}, "quant": {"base": "none"}}, CUDA),  # Candle's kernel to the seeds: runs as LoRA
    ({"adapter": {"method": "lora"}}, CUDA),
    (LORA, CUDA),
    (LORA, replace(CUDA, model_type=None)),
    (LORA, replace(CUDA, model_type="gpt2")),
    (MOBILE, CPU),
    (MOBILE | {"device": {"device": "cpu"}}, CUDA),
    (MOBILE | {"exec": {"seq_len": 512, "batch_size": 1}, "adapter": {"rank": 32}}, CPU),
    ({"exec": {"qlora_require_full_proxy_stack": True}}, CUDA),
    ({"exec": {"qlora_allow_partial_proxy_stack": True}}, CUDA),
    ({"exec": {"qlora_proxy_max_layers": 4}}, CUDA),
    ({"exec": {"qlora_ce_last_k": 64, "seq_len": 64}}, CUDA),
    ({"optimizer": {"experiment": "muon_clip_like"}}, replace(CUDA, experimental_optimizer=True)),
    ({"device": {"require_gpu": True}}, CUDA),
    ({"device": {"require_gpu": True, "device": "cuda"}}, UNKNOWN),
    ({"device": {"device": "cpu"}}, UNUSABLE),
    ({"device": {"device": "cuda"}}, UNUSABLE),
    ({"device": {"device": "cuda"}}, CPU),  # falls back, with a note
    ({"device": {"device": "cuda", "allow_cpu_fallback": False}}, CUDA),
    ({"device": {"device": "cuda", "allow_cpu_fallback": False}}, UNKNOWN),
    ({"device": {"allow_cpu_fallback": False}}, CPU),  # auto: no GPU was requested
    ({}, replace(CUDA, rows=1)),
]


def refusal(made: FineTuneContract, context: RefusalContext) -> ContractRejected:
    with pytest.raises(ContractRejected) as caught:
        check_refusals(made, context)
    return caught.value


@pytest.mark.parametrize(("sections", "context", "code"), REFUSED)
def test_gate_refuses_with_its_code_and_field(sections: dict[str, Any], context: RefusalContext, code: Code) -> None:
    error = refusal(contract(**sections), context)
    assert error.code is code
    assert error.param == PARAMS.get(code, "backend")
    assert error.remedy
    assert "{" not in error.message


@pytest.mark.parametrize(("sections", "context"), PASSED)
def test_refusals_let_good_contracts_through(sections: dict[str, Any], context: RefusalContext) -> None:
    check_refusals(contract(**sections), context)


def test_refusals_stand_in_the_order_of_the_spec() -> None:
    assert [refusal.code for refusal in REFUSALS] == ORDER


def test_every_gate_has_a_refused_case() -> None:
    assert {code for _, _, code in REFUSED} == {*ORDER, Code.UNKNOWN_BACKEND}


@given(st.lists(st.sampled_from([case for case in REFUSED if case[1] is CPU]), min_size=1, max_size=3))
def test_the_first_applying_gate_decides(cases: list[tuple[dict[str, Any], RefusalContext, Code]]) -> None:
    merged: dict[str, Any] = {}
    for sections, _, _ in cases:
        for name, fields in sections.items():
            merged[name] = merged.get(name, {}) | fields
    made = contract(**merged)
    applying = [refusal.code for refusal in REFUSALS if refusal.applies(made, CPU)]
    assert not applying or refusal(made, CPU).code is applying[0]


@pytest.mark.parametrize(
    ("sections", "word"),
    [({"exec": {"seq_len": 700, "batch_size": 1}}, "700"), ({"adapter": {"rank": 99}}, "99"),
     ({"exec": {"batch_size": 17}}, "17")],
)  # fmt: skip
def test_mobile_messages_name_the_value(sections: dict[str, Any], word: str) -> None:
    assert word in refusal(contract(**(MOBILE | sections)), CPU).message


def test_gpt2_message_names_the_layout() -> None:
    assert "Qwen35-like (qwen3)" in refusal(contract(**BURN), CUDA).message


def test_migration_text_names_the_way_out() -> None:
    error = refusal(contract(**BURN), replace(CUDA, model_type="gpt2"))
    assert "no longer run" in error.message
    assert all(word in error.remedy for word in ("qlora", "nf4", "hf", "model.hf_repo"))


def test_last_k_over_64_is_refused_even_past_validation() -> None:
    loose = contract().model_copy(update={"exec": ExecSection().model_copy(update={"qlora_ce_last_k": 65})})
    assert refusal(loose, CUDA).code is Code.CE_LAST_K_TOO_LARGE


@pytest.mark.parametrize(
    ("method", "quant", "kernel"),
    [
        ("qlora", "nf4", Kernel.CANDLE_QLORA), ("qlora", "none", Kernel.CANDLE_QLORA),
        ("lora", "nf4", Kernel.CANDLE_QLORA), ("lora", "none", Kernel.PEFT_LORA),
        ("auto", "auto", Kernel.CANDLE_QLORA), ("auto", "none", Kernel.PEFT_LORA), ("lora", "auto", Kernel.PEFT_LORA),
    ],
)  # fmt: skip
def test_kernel_is_inferred(method: str, quant: str, kernel: Kernel) -> None:
    assert infer_kernel(contract(adapter={"method": method}, quant={"base": quant})) is kernel


def test_only_a_named_backend_makes_lora_burns() -> None:
    assert infer_kernel(contract(**BURN)) is Kernel.BURN_LORA
    assert infer_kernel(contract(**LORA), replace(CUDA, force_kernel="burn")) is Kernel.BURN_LORA
    assert infer_kernel(contract(**LORA), replace(CUDA, force_kernel="qlora")) is Kernel.PEFT_LORA


BACKENDS = [None, "lora", "BURN", "burn_lora", "qlora", "Candle"]
PAIRS = [("auto", "auto"), ("auto", "none"), ("auto", "nf4"), ("lora", "auto"), ("lora", "none"), ("qlora", "auto"),
         ("qlora", "nf4"), ("qlora", "none"), ("lora", "nf4")]  # fmt: skip


@pytest.mark.parametrize("model_type", ["gpt2", "llama"])
@pytest.mark.parametrize(("method", "base"), PAIRS)
@pytest.mark.parametrize("backend", BACKENDS)
def test_what_backend_method_and_base_mean_together(
    backend: str | None, method: str, base: str, model_type: str
) -> None:
    """Every combination: who trains, or the code of the refusal."""
    made = contract(adapter={"method": method}, quant={"base": base}, exec={"backend": backend})
    burn = backend in ("lora", "BURN", "burn_lora")
    is_lora = method == "lora" or (method == "auto" and (base == "none" or (base == "auto" and burn)))
    expected: Code | Kernel
    if (method, base) == ("lora", "nf4"):
        expected = Code.NF4_REQUIRES_QLORA
    elif is_lora and burn:
        expected = Code.BURN_LORA_REJECTED if model_type == "gpt2" else Code.BURN_HF_GPT2_ONLY
    elif backend and is_lora is not burn:
        expected = Code.KERNEL_MISMATCH
    else:
        expected = Kernel.PEFT_LORA if is_lora else Kernel.CANDLE_QLORA
    context = replace(CUDA, model_type=model_type)
    if isinstance(expected, Code):
        assert refusal(made, context).code is expected
    else:
        check_refusals(made, context)
        assert infer_kernel(made, context) is expected


@given(allow=st.booleans(), require=st.booleans(), qlora=st.booleans(), device=st.sampled_from(["cpu", "cuda", "auto"]))
def test_full_stack_rule(allow: bool, require: bool, qlora: bool, device: str) -> None:
    made = contract(
        adapter={"method": "qlora" if qlora else "lora"},
        exec={"qlora_allow_partial_proxy_stack": allow, "qlora_require_full_proxy_stack": require},
    )
    expected = not allow and (require or (qlora and device == "cuda"))
    assert effective_full_stack(made, replace(CUDA, device=device)) is expected


@pytest.mark.parametrize(
    ("requested", "found", "target"), [("auto", "cpu", "cpu"), ("auto", "cuda", "cuda"), ("cpu", "cuda", "cpu")]
)
def test_target_device(requested: str, found: str, target: str) -> None:
    assert target_device(contract(device={"device": requested}), replace(CUDA, device=found)) == target


@pytest.mark.parametrize(("rows", "notes"), [(None, 0), (1, 1), (99, 1), (100, 0)])
def test_small_corpus_is_noted(rows: int | None, notes: int) -> None:
    assert len(check_refusals(contract(), replace(CUDA, rows=rows))) == notes


def test_mobile_target_is_noted() -> None:
    assert "no on-device runtime" in check_refusals(contract(**MOBILE), CPU)[0]


def test_a_fallback_to_the_cpu_is_noted() -> None:
    assert "falls back to the CPU" in check_refusals(contract(device={"device": "cuda"}), CPU)[0]
    (note,) = check_refusals(contract(device={"device": "cuda"}), UNUSABLE)
    assert (
        note
        == "device.device is cuda, but the H200 cannot be used: the driver is old. Update it: the job falls back to the CPU."
    )
    assert check_refusals(contract(device={"device": "cuda"}), CUDA) == []


def test_a_schedule_that_is_switched_off_is_noted() -> None:
    schedule = {"exec": {"curriculum_schedule": {"epoch_1_max_difficulty": 3}}}
    assert "has no effect" in check_refusals(contract(**schedule), CUDA)[0]
    assert check_refusals(contract(**schedule, curriculum={"enabled": True}), CUDA) == []


def test_mobile_limits_are_those_of_the_refusals() -> None:
    assert MOBILE_LIMITS == {"exec.seq_len": 512, "adapter.rank": 32, "exec.batch_size": 1}
