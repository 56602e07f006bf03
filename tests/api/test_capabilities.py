"""The capability matrix: every row is checked against what proves it."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from api.capabilities import CAPABILITIES, CapabilityMatrix
from shared.artifacts.manifests import UNSERVABLE_FEATURES, parse_manifest
from shared.base_models.catalog import digest_model_folder
from shared.contract.flat_keys import Kernel
from shared.contract.gates import GATES, GateContext, check_gates, infer_kernel
from shared.contract.plan import plan_finetune
from shared.errors import ArtifactInvalid, Code, ContractRejected
from tests.support.builders import base_entry, contract, data_file

ROOT = Path(__file__).resolve().parents[2]
ROWS = {row.id: row for row in CAPABILITIES.rows}
CUDA = GateContext(device="cuda", model_type="qwen3_5", n_layers=24, rows=1000)
GPT2 = GateContext(device="cuda", model_type="gpt2", n_layers=12, rows=1000)

GATED: dict[str, tuple[dict[str, Any], GateContext]] = {
    "training_backend": ({"adapter": {"method": "lora"}, "quant": {"base": "none"}}, GPT2),
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


SHOWN: dict[str, Callable[[Path], None]] = {"weight_loading": pickled_weights, "artifacts": other_manifest}
PLANNED: dict[str, dict[str, Any]] = {
    "data_order": {"curriculum": {"enabled": True}},
    "chat_marks": {"chatml": {"im_start": "<s>"}},
    "reward_hook": {"reward": {"hook": "cargo_build"}},
}
"""Sections that pass the gates and are not planned, for rows that all have difficulty 9."""
ELSEWHERE = {
    "merge_fidelity": "worker/merge.py",
    "logits_parity": "worker/jobs/certificates.py",
    "serving": "shared/artifacts/manifests.py",
}
"""Rows whose behaviour needs a trainer or a server: the code is raised there, and that part's own tests show it."""


@pytest.mark.parametrize("name", list(GATED))
def test_row_is_refused_by_its_gate(name: str) -> None:
    sections, context = GATED[name]
    with pytest.raises(ContractRejected) as caught:
        check_gates(contract(**sections), context)
    assert caught.value.code is ROWS[name].proof.code


@pytest.mark.parametrize("name", list(PLANNED))
def test_row_is_refused_by_the_planner(name: str) -> None:
    made = contract(**PLANNED[name])
    check_gates(made, CUDA)
    with pytest.raises(ContractRejected) as caught:
        plan_finetune(made, base_entry(), data_file(), None, "demo", CUDA, difficulties={9: 100})
    assert caught.value.code is ROWS[name].proof.code


@pytest.mark.parametrize("name", list(SHOWN))
def test_row_is_proved_by_its_error(name: str, tmp_path: Path) -> None:
    with pytest.raises(ArtifactInvalid) as caught:
        SHOWN[name](tmp_path)
    assert caught.value.code is ROWS[name].proof.code


@pytest.mark.parametrize("name", list(ELSEWHERE))
def test_code_of_a_row_is_raised_in_the_named_module(name: str) -> None:
    assert f"Code.{ROWS[name].proof.code}" in (ROOT / ELSEWHERE[name]).read_text()


def test_every_row_is_checked() -> None:
    assert {name for name, row in ROWS.items() if row.proof.kind == "gate"} == set(GATED)
    assert set(ROWS) == {*GATED, *SHOWN, *PLANNED, *ELSEWHERE}
    assert len(ROWS) == len(CAPABILITIES.rows)


def test_proofs_by_gate_are_gates() -> None:
    assert {row.proof.code for row in ROWS.values() if row.proof.kind == "gate"} <= {gate.code for gate in GATES}


def test_burn_is_planned_before_it_is_refused() -> None:
    assert infer_kernel(contract(**GATED["training_backend"][0])) is Kernel.BURN_LORA


def test_mens_column_matches_the_default_contract() -> None:
    made = contract()
    assert (made.adapter.method, made.quant.base, made.adapter.targets) == ("qlora", "nf4", "full_graph")
    assert (made.data.tokenizer_mode, made.exec.qlora_ce_last_k, made.artifact.publish) == ("hf", 0, True)
    assert check_gates(made, CUDA) == []
    assert UNSERVABLE_FEATURES


def test_rows_of_the_original_matrix_are_all_there() -> None:
    original = {"graph_depth", "base_quant", "tokenizer", "weight_loading", "artifacts", "merge_fidelity"}
    assert original | {"logits_parity"} <= set(ROWS)


def test_matrix_is_frozen_and_json() -> None:
    with pytest.raises(ValidationError):
        CAPABILITIES.rows[0].mens = "more"  # type: ignore[misc]
    assert CapabilityMatrix.model_validate_json(CAPABILITIES.model_dump_json()) == CAPABILITIES
    assert json.loads(CAPABILITIES.model_dump_json())["rows"][0]["proof"]["code"] in set(Code)
