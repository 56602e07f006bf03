"""A corpus of invalid contracts: each is refused with its code and field, by validation, refusals or planner.

Contracts with faults of shape are generated from the contract's own JSON Schema, so that new fields are tested
automatically.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.contract.contracts import FineTuneContract
from shared.contract.flat_keys import parse_contract
from shared.contract.plan import plan_finetune
from shared.contract.presets import resolve_contract
from shared.contract.refusals import RefusalContext
from shared.errors import Code, ContractRejected
from tests.support.builders import base_entry, data_file

GOOD: dict[str, Any] = {"model": {"hf_repo": "tiny"}, "data": {"train_file": "file-1"}}
SCHEMA = FineTuneContract.model_json_schema()
FACTS = RefusalContext(device="cuda", model_type="qwen3", n_layers=4, rows=1000)
CPU = replace(FACTS, device="cpu")
GPT2 = replace(FACTS, model_type="gpt2")
Case = tuple[dict[str, Any], RefusalContext, Code, str]

OTHER_TYPES: dict[str, tuple[Any, ...]] = {
    "string": (7, [], {}), "integer": ("many", 1.5, [], {}), "number": ("much", [], {}), "boolean": ("perhaps", 2, []),
    "array": ("one", 7, {}), "object": ("one", 7, []),
}  # fmt: skip


def resolved(schema: dict[str, Any]) -> dict[str, Any]:
    if "$ref" in schema:
        return {**SCHEMA["$defs"][schema["$ref"].rpartition("/")[2]]}
    return schema


def branches(schema: dict[str, Any]) -> list[dict[str, Any]]:
    return [resolved(branch) for branch in schema.get("anyOf", [schema])]


def fields(schema: dict[str, Any] = SCHEMA, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], list[Any]]]:
    """Path and branches of every field, those of sections and of nested sections too."""
    for name, inner in schema["properties"].items():
        found = branches(inner)
        yield (*path, name), found
        for branch in found:
            if "properties" in branch:
                yield from fields(branch, (*path, name))


def outside(branch: dict[str, Any]) -> Iterator[Any]:
    """Values just outside a branch's limits."""
    step = 1 if branch.get("type") == "integer" else 1e-6
    if "minimum" in branch:
        yield branch["minimum"] - step
    if "exclusiveMinimum" in branch:
        yield branch["exclusiveMinimum"]
    if "maximum" in branch:
        yield branch["maximum"] + step
    if "exclusiveMaximum" in branch:
        yield branch["exclusiveMaximum"]
    if branch.get("minLength"):
        yield ""
    if "pattern" in branch:
        yield "../../etc/passwd"
    if "enum" in branch:
        yield "no-such-member"
    if branch.get("minItems"):
        yield []


def faults(found: list[dict[str, Any]]) -> Iterator[Any]:
    kinds = {branch.get("type", "string") for branch in found}
    for kind in kinds - {"null"}:
        # Numbers for strings, and so on; a list may be wrong in itself or in what it holds.
        yield from (value for value in OTHER_TYPES[kind] if not (value == 7 and "integer" in kinds))
    for branch in found:
        yield from outside(branch)
    if "null" not in kinds:
        yield None
    if "number" in kinds:
        yield from (float("nan"), float("inf"))


def with_value(path: tuple[str, ...], value: Any) -> dict[str, Any]:
    made = copy.deepcopy(GOOD)
    section = made
    for name in path[:-1]:
        section = section.setdefault(name, {})
    section[path[-1]] = value
    return made


def misshapen() -> Iterator[tuple[tuple[str, ...], Any]]:
    for path, found in fields():
        yield from ((path, value) for value in faults(found))
        for branch in found:
            if "properties" in branch:
                yield (*path, "no_such_knob"), 1
    yield ("no_such_section",), {}


MISSHAPEN = list(misshapen())

LORA = {"adapter": {"method": "lora"}, "quant": {"base": "none"}}
BURN = LORA | {"exec": {"backend": "lora"}}
LORA_ON_NF4 = {"adapter": {"method": "lora"}, "quant": {"base": "nf4"}}
MOBILE = {"artifact": {"deployment_target": "mobile_edge"}, "exec": {"batch_size": 1}, "device": {"device": "cpu"}}


def exec_(**values: Any) -> dict[str, Any]:
    return {"exec": values}


GATED: list[Case] = [
    (LORA_ON_NF4, FACTS, Code.NF4_REQUIRES_QLORA, "adapter.method"),
    (LORA_ON_NF4, GPT2, Code.NF4_REQUIRES_QLORA, "adapter.method"),
    ({"data": {"train_file": "f", "tokenizer_mode": "vox"}}, FACTS, Code.QLORA_REQUIRES_HF_TOKENIZER, "data.tokenizer_mode"),
    (BURN, replace(FACTS, model_type=None), Code.BURN_HF_CONFIG_REQUIRED, "model.config_json"),
    *[(BURN, replace(FACTS, model_type=kind), Code.BURN_HF_GPT2_ONLY, "adapter.method")
      for kind in ("llama", "mistral", "qwen2", "qwen3_5", "gpt2x", "GPT2", "")],
    (BURN, GPT2, Code.BURN_LORA_REJECTED, "adapter.method"),
    *[(LORA, replace(GPT2, force_kernel=name), Code.KERNEL_MISMATCH, "backend") for name in ("qlora", "Candle")],
    *[({}, replace(FACTS, force_kernel=name), Code.KERNEL_MISMATCH, "backend") for name in ("lora", "burn", "BURN-LORA")],
    *[({}, replace(FACTS, force_kernel=name), Code.UNKNOWN_BACKEND, "backend") for name in ("", "dora", "qlora ;", "0")],
    *[(MOBILE | {"exec": {"batch_size": 1, "seq_len": length}}, FACTS, Code.MOBILE_EDGE_SEQ_LEN, "exec.seq_len")
      for length in (513, 1024, 1 << 20)],
    *[(MOBILE | {"adapter": {"rank": rank}}, FACTS, Code.MOBILE_EDGE_RANK, "adapter.rank") for rank in (33, 64, 512)],
    *[(MOBILE | exec_(batch_size=size), FACTS, Code.MOBILE_EDGE_BATCH_SIZE, "exec.batch_size") for size in (2, 4, 4096)],
    (MOBILE | exec_(batch_size=1, qlora_require_full_proxy_stack=True), FACTS, Code.MOBILE_EDGE_REJECTS_FULL_PROXY_STACK,
     "exec.qlora_require_full_proxy_stack"),
    *[(MOBILE | {"device": {"device": name}}, FACTS, Code.MOBILE_EDGE_REQUIRES_CPU, "device.device")
      for name in ("auto", "cuda", "metal", "gpu")],
    *[({"device": {"device": "cpu", "require_gpu": True}}, facts, Code.GPU_REQUIRED, "device.require_gpu")
      for facts in (FACTS, CPU)],
    ({"device": {"device": "cuda", "require_gpu": True}}, CPU, Code.GPU_REQUIRED, "device.require_gpu"),
    (exec_(qlora_require_full_proxy_stack=True, qlora_allow_partial_proxy_stack=True), FACTS,
     Code.PROXY_STACK_CONFLICT, "exec.qlora_allow_partial_proxy_stack"),
    (exec_(qlora_lm_head_only=True), FACTS, Code.LM_HEAD_ONLY_FULL_STACK, "exec.qlora_lm_head_only"),
    (exec_(qlora_lm_head_only=True), CPU, Code.LM_HEAD_ONLY_UNSUPPORTED, "exec.qlora_lm_head_only"),
    (exec_(qlora_lm_head_only=True, qlora_proxy_max_layers=2), CPU, Code.LM_HEAD_ONLY_PROXY_LAYERS,
     "exec.qlora_proxy_max_layers"),
    *[(exec_(qlora_proxy_max_layers=cap), FACTS, Code.PARTIAL_DEPTH_UNSUPPORTED, "exec.qlora_proxy_max_layers")
      for cap in range(4)],
    *[(exec_(qlora_ce_last_k=last, seq_len=length), FACTS, Code.CE_LAST_K_TOO_LARGE, "exec.qlora_ce_last_k")
      for last, length in ((9, 8), (64, 8), (64, 63), (33, 32))],
    ({"optimizer": {"experiment": "muon_clip_like"}}, FACTS, Code.OPTIMIZER_EXPERIMENT_OFF, "optimizer.experiment"),
    ({}, replace(FACTS, rows=0), Code.CORPUS_TOO_SMALL, "data.train_file"),
]  # fmt: skip

UNSUPPORTED: list[tuple[str, Any]] = [
    ("adapter.targets", "lm_head_proxy"), ("model.weight_shards", ["a.safetensors"]),
    ("model.config_json", "c.json"), ("model.tokenizer_json", "t.json"), ("device.device", "metal"),
]  # fmt: skip

UNNAMED: list[tuple[dict[str, Any], Code, str]] = [
    *[({"preset": name}, Code.UNKNOWN_PRESET, "preset") for name in ("", "4090", "AUTO", "tiny ", "../tiny", "none")],
    *[({"domain": name}, Code.UNKNOWN_DOMAIN, "domain") for name in ("", "rust", "default", "Agents", "vox_lang")],
]


def plan(sections: dict[str, Any], facts: RefusalContext = FACTS) -> None:
    plan_finetune(parse_contract(sections), base_entry(), data_file(), None, "demo", facts)


def refusal(sections: dict[str, Any], facts: RefusalContext = FACTS) -> ContractRejected:
    with pytest.raises(ContractRejected) as caught:
        plan(sections, facts)
    assert caught.value.message
    assert caught.value.remedy
    return caught.value


def test_contract_that_the_corpus_starts_from_is_valid() -> None:
    plan(GOOD)


def test_corpus_is_large() -> None:
    assert len(MISSHAPEN) + len(GATED) + len(UNSUPPORTED) + len(UNNAMED) >= 200
    assert len(GATED) >= 40


@pytest.mark.parametrize(("path", "value"), MISSHAPEN)
def test_misshapen_contract_is_refused_at_its_field(path: tuple[str, ...], value: Any) -> None:
    error = refusal(with_value(path, value))
    is_bad_name = path in (("artifact", "alias"), ("exec", "adapter_tag")) and isinstance(value, str)
    assert error.code is (Code.NAME_INVALID if is_bad_name else Code.CONTRACT_INVALID)
    assert error.param == ".".join(path)


@pytest.mark.parametrize("missing", [{}, {"model": {"hf_repo": "tiny"}}])
def test_contract_without_data_is_refused(missing: dict[str, Any]) -> None:
    assert refusal(missing).param == "data"


@pytest.mark.parametrize(("sections", "facts", "code", "param"), GATED)
def test_contract_that_must_not_run_is_refused(
    sections: dict[str, Any], facts: RefusalContext, code: Code, param: str
) -> None:
    error = refusal(GOOD | sections, facts)
    assert (error.code, error.param) == (code, param)


@pytest.mark.parametrize(("path", "value"), UNSUPPORTED)
def test_field_that_the_trainer_does_not_support_is_refused(path: str, value: Any) -> None:
    error = refusal(with_value(tuple(path.split(".")), value))
    assert error.code is Code.CONTRACT_UNSUPPORTED
    assert error.param is not None
    assert path.startswith(error.param)


@pytest.mark.parametrize(("names", "code", "param"), UNNAMED)
def test_unknown_names_are_refused(names: dict[str, Any], code: Code, param: str) -> None:
    with pytest.raises(ContractRejected) as caught:
        resolve_contract(parse_contract(GOOD), **names)
    assert (caught.value.code, caught.value.param) == (code, param)


junk = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


@given(st.sampled_from([path for path, _ in fields()]), junk)
def test_junk_anywhere_is_accepted_or_refused_with_a_code(path: tuple[str, ...], value: Any) -> None:
    try:
        plan(with_value(path, value))
    except ContractRejected as error:
        assert error.param is not None
        assert error.remedy


@given(st.text(min_size=1, max_size=12).filter(lambda name: name not in SCHEMA["properties"]), junk)
def test_unknown_section_never_passes(name: str, value: Any) -> None:
    error = refusal(GOOD | {name: value})
    assert (error.code, error.param) == (Code.CONTRACT_INVALID, name)


@given(st.sampled_from(GATED), st.sampled_from(GATED))
def test_two_faults_never_make_a_good_contract(one: Case, other: Case) -> None:
    sections = copy.deepcopy(GOOD)
    for name, values in [*one[0].items(), *other[0].items()]:
        sections[name] = sections.get(name, {}) | values
    try:
        plan(sections, one[1])
    except ContractRejected:
        return
    # The second may only have undone the first by setting the very same field to another value.
    assert any(one[0].get(name, {}).keys() & values.keys() for name, values in other[0].items())
