"""The capability matrix: every row is checked against its proof."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError
from safetensors.numpy import save_file

from api.capabilities import CAPABILITIES, CapabilityMatrix, capabilities_here
from shared.artifacts.manifests import (
    CONFIG_NAME,
    UNSERVABLE_FEATURES,
    WEIGHTS_NAME,
    AdapterManifest,
    parse_manifest,
    peft_keys,
    verify_adapter,
)
from shared.base_models.catalog import digest_model_folder
from shared.contract.flat_keys import Kernel
from shared.contract.plan import plan_finetune
from shared.contract.refusals import REFUSALS, RefusalContext, check_refusals, infer_kernel
from shared.errors import Code, ContractRejected, MensError
from shared.evaluation.criteria import check_eval
from shared.evaluation.types import EvalSpec
from shared.graders.grading import check_runnable
from shared.graders.types import PythonGrader
from shared.hashing import digest_file
from tests.support.builders import base_entry, contract, data_file
from worker.jobs.certificates import (
    CertificateLimits,
    Measurements,
    ServedBase,
    certificate,
    refuse_failed,
    stop_report,
    template_report,
)
from worker.probe_chats import CHATS, EncodedChats

ROWS = {row.id: row for row in CAPABILITIES.rows}
CUDA = RefusalContext(device="cuda", model_type="qwen3_5", n_layers=24, rows=1000)
GPT2 = RefusalContext(device="cuda", model_type="gpt2", n_layers=12, rows=1000)

GATED: dict[str, tuple[dict[str, Any], RefusalContext]] = {
    "training_backend": (
        {"adapter": {"method": "lora"}, "quant": {"base": "none"}, "exec": {"backend": "burn"}},
        GPT2,
    ),
    "graph_depth": ({"exec": {"qlora_proxy_max_layers": 23}}, CUDA),
    "training_objective": ({"exec": {"qlora_ce_last_k": 9, "seq_len": 8}}, CUDA),
    "optimizer": ({"optimizer": {"experiment": "muon_clip_like"}}, CUDA),
    "device": ({"device": {"require_gpu": True}}, replace(CUDA, device="cpu")),
    "base_quant": ({"adapter": {"method": "lora"}, "quant": {"base": "nf4"}}, GPT2),
    "tokenizer": ({"data": {"train_file": "f", "tokenizer_mode": "vox"}}, CUDA),
    "mobile_edge": ({"artifact": {"deployment_target": "mobile_edge"}, "exec": {"batch_size": 1}}, CUDA),
}


def pickled_weights(folder: Path) -> None:
    for name in ("config.json", "tokenizer.json", "pytorch_model.bin"):
        (folder / name).write_text("{}")
    digest_model_folder(folder)


def other_manifest(folder: Path) -> None:
    parse_manifest(b"{}", "0" * 64)


def adapter_with_dora(folder: Path) -> None:
    layer = "model.layers.0.self_attn.q_proj.weight"
    a, b = peft_keys(layer)
    save_file({a: np.ones((2, 4), np.float32), b: np.ones((6, 2), np.float32)}, folder / WEIGHTS_NAME)
    config = {"peft_type": "LORA", "r": 2, "lora_alpha": 4, "bias": "none", "use_dora": True}
    (folder / CONFIG_NAME).write_text(json.dumps(config))
    manifest = AdapterManifest(
        adapter_method="qlora", quant={"base_quant": "nf4"}, base_key_map={"l0.q": layer}, layer_order=["l0.q"],
        vocab=32, d_model=4, rank=2, alpha=4, base_model="tiny", name="demo", base_digests={"config.json": "a" * 64},
        contract_digest="c" * 64, template_digest="d" * 64, step=12,
        files={name: digest_file(folder / name) for name in (WEIGHTS_NAME, CONFIG_NAME)},
    )  # fmt: skip
    verify_adapter(folder, manifest)


def no_effect(folder: Path) -> None:
    base, nothing = ServedBase("tiny", "d" * 64, None, "float32"), Measurements([], [], [], [], [])
    same = template_report(EncodedChats([(CHATS[0], [1, 2])]), [[1, 2]])
    refuse_failed(
        "demo@1", {"http://replica": certificate(base, nothing, same, stop_report({}, {}), CertificateLimits(1e-3))}
    )


def criterion_of_what_is_not_there(folder: Path) -> None:
    reads = {"type": "string_check", "input": "{{ item.b }}", "reference": "", "operation": "eq"}
    schema = {"type": "object", "properties": {"a": {}}}
    config = {"type": "custom", "item_schema": schema}
    check_eval(EvalSpec.model_validate({"data_source_config": config, "testing_criteria": [reads]}))


def code_without_a_sandbox(folder: Path) -> None:
    check_runnable(PythonGrader(type="python", name="code", source="def grade(sample, item): return 1"))


def pickled_adapter(folder: Path) -> None:
    from worker.merge import refuse_pickle

    (folder / "checkpoint.bin").write_bytes(b"")
    refuse_pickle(folder)


SHOWN: dict[str, Callable[[Path], None]] = {
    "weight_loading": pickled_weights,
    "artifacts": other_manifest,
    "serving": adapter_with_dora,
    "logits_parity": no_effect,
    "evaluation": criterion_of_what_is_not_there,
    "code_of_graders": code_without_a_sandbox,
}
SHOWN_WITH_TORCH: dict[str, Callable[[Path], None]] = {"merge_fidelity": pickled_adapter}
PLANNED: dict[str, dict[str, Any]] = {
    "data_order": {"curriculum": {"enabled": True}},
    "chat_marks": {"chatml": {"im_start": "<s>"}},
    "reward_hook": {"reward": {"hook": "cargo_build"}},
}
"""Sections that pass the gates and are not planned, for rows that all have difficulty 9."""


@pytest.mark.parametrize("name", list(GATED))
def test_row_is_refused_by_its_gate(name: str) -> None:
    sections, context = GATED[name]
    with pytest.raises(ContractRejected) as caught:
        check_refusals(contract(**sections), context)
    assert caught.value.code is ROWS[name].proof.code


@pytest.mark.parametrize("name", list(PLANNED))
def test_row_is_refused_by_the_planner(name: str) -> None:
    made = contract(**PLANNED[name])
    check_refusals(made, CUDA)
    with pytest.raises(ContractRejected) as caught:
        plan_finetune(made, base_entry(), data_file(), None, "demo", CUDA, difficulties={9: 100})
    assert caught.value.code is ROWS[name].proof.code


@pytest.mark.parametrize(
    ("name", "behave"),
    [*SHOWN.items(), *(pytest.param(*item, marks=pytest.mark.torch) for item in SHOWN_WITH_TORCH.items())],
)
def test_row_is_proved_by_its_error(name: str, behave: Callable[[Path], None], tmp_path: Path) -> None:
    with pytest.raises(MensError) as caught:
        behave(tmp_path)
    assert caught.value.code is ROWS[name].proof.code


def collected_tests(path: Path) -> set[str]:
    """Names of a file's tests that pytest runs: neither skipped nor expected to fail."""
    functions = [node for node in ast.parse(path.read_text()).body if isinstance(node, ast.FunctionDef)]
    left_out = {
        node.name for node in functions for mark in node.decorator_list if re.search("skip|xfail", ast.unparse(mark))
    }
    return {node.name for node in functions if node.name.startswith("test_")} - left_out


@pytest.mark.parametrize("named", sorted({test for row in ROWS.values() for test in row.proof.tests}))
def test_named_tests_are_run_and_assert(named: str) -> None:
    """Here only that they can be; a run of the whole suite fails unless they have passed in it (`tests/support/proofs.py`)."""
    file, name = named.split("::")
    path = Path(__file__).parents[2] / file
    assert name in collected_tests(path)
    (body,) = (node for node in ast.parse(path.read_text()).body if getattr(node, "name", None) == name)
    assert re.search(r"\bassert|\bpytest\.raises\(", ast.unparse(body))


def test_every_row_that_promises_something_names_tests_of_it() -> None:
    """A refusal shows what is not done; what is done has to be measured."""
    promised = {name for name, row in ROWS.items() if not row.mens.startswith("none")}
    assert {name for name, row in ROWS.items() if row.proof.tests} == promised


def test_parity_names_every_comparison_of_stacks() -> None:
    files = {test.split("::")[0] for test in ROWS["logits_parity"].proof.tests}
    assert files == {
        "tests/worker/test_parity.py",
        "tests/worker/test_merge.py",
        "tests/vllm/test_parity.py",
        "tests/vllm/test_certificates.py",
    }


def test_every_row_is_checked() -> None:
    assert {name for name, row in ROWS.items() if row.proof.kind == "gate"} == set(GATED)
    assert set(ROWS) == {*GATED, *SHOWN, *SHOWN_WITH_TORCH, *PLANNED}
    assert len(ROWS) == len(CAPABILITIES.rows)


def test_proofs_by_gate_are_gates() -> None:
    assert {row.proof.code for row in ROWS.values() if row.proof.kind == "gate"} <= {gate.code for gate in REFUSALS}


def test_burn_is_planned_before_it_is_refused() -> None:
    assert infer_kernel(contract(**GATED["training_backend"][0])) is Kernel.BURN_LORA


def test_mens_column_matches_the_default_contract() -> None:
    made = contract()
    assert (made.adapter.method, made.quant.base, made.adapter.targets) == ("auto", "auto", "full_graph")
    assert (made.data.tokenizer_mode, made.exec.qlora_ce_last_k, made.artifact.publish) == ("hf", 0, True)
    assert check_refusals(made, CUDA) == []
    assert UNSERVABLE_FEATURES


def test_rows_of_the_original_matrix_are_all_there() -> None:
    original = {"graph_depth", "base_quant", "tokenizer", "weight_loading", "artifacts", "merge_fidelity"}
    assert original | {"logits_parity"} <= set(ROWS)


def test_matrix_is_frozen_and_json() -> None:
    with pytest.raises(ValidationError):
        CAPABILITIES.rows[0].mens = "more"
    assert CapabilityMatrix.model_validate_json(CAPABILITIES.model_dump_json()) == CAPABILITIES
    assert json.loads(CAPABILITIES.model_dump_json())["rows"][0]["proof"]["code"] in set(Code)


def test_the_matrix_names_what_contains_code_here() -> None:
    (changed,) = set(capabilities_here("bubblewrap: 29 attacks were tried and stopped").rows) - set(CAPABILITIES.rows)
    assert changed.id == "code_of_graders"
    assert changed.mens.endswith("here bubblewrap: 29 attacks were tried and stopped")
