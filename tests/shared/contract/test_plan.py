"""The planner: step counts, splits, refusals, and a plan that is a plain value."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from shared.contract.base_quant import settled
from shared.contract.contracts import FineTuneContract
from shared.contract.flat_keys import parse_contract
from shared.contract.plan import (
    ExecutionPlan,
    FrozenDict,
    TrainingInputs,
    TrainingRun,
    optimizer_steps,
    plan_finetune,
    reject_unsupported,
    validation_split,
    warmup_steps,
)
from shared.contract.presets import domain_names, resolve_contract
from shared.contract.refusals import UNKNOWN
from shared.errors import Code, ContractRejected
from shared.hashing import digest_json
from tests.support.builders import base_entry, contract, data_file

GOLDEN = Path(__file__).parents[1] / "golden"
GOLDEN_DIGEST = "22ed1dfb6e34fe485616bb1d6fb2dd9c17f149a3272e83784cb41c8ff2ca015b"

UNSUPPORTED: dict[str, Any] = {
    "adapter.targets": "lm_head_proxy",
    "model.weight_shards": ["a.safetensors"],
    "model.config_json": "config.json",
    "model.tokenizer_json": "tokenizer.json",
    "exec.resume_from": "checkpoint-1",
    "device.device": "metal",
    "optimizer.experiment": "muon_clip_like",
    "reward.hook": "cargo_build",
    "collateral_damage_verified": True,
}
SUPPORTED: dict[str, Any] = {
    "exec.curriculum_schedule": {"epoch_1_max_difficulty": 5},
    "exec.max_vram_fraction": 0.5,
    "exec.qlora_max_skip_rate": 0.0,
    "device.device": "cpu",
    "device.require_gpu": True,
    "device.allow_cpu_fallback": False,
    "trajectory.enabled": True,
    "optimizer.kind": "paged_adamw_8bit",
    "curriculum.enabled": True,
}


def with_field(path: str, value: Any) -> FineTuneContract:
    section, _, field = path.rpartition(".")
    fields = contract().model_dump(mode="json")
    (fields[section] if section else fields)[field] = value
    return FineTuneContract.model_validate(fields)


def simulated_steps(rows: int, epochs: int, batch_size: int, grad_accum: int) -> int:
    """Count the optimizer's steps of a training loop that is written as one."""
    steps = 0
    for _ in range(epochs):
        left, waiting = rows, 0
        while left > 0:
            left -= batch_size
            waiting += 1
            if waiting == grad_accum or left <= 0:
                steps, waiting = steps + 1, 0
    return steps


def plan(**changes: Any) -> ExecutionPlan:
    arguments = {
        "contract": contract(), "base": base_entry(), "train": data_file(), "validation": None, "adapter_name": "demo",
    }  # fmt: skip
    return plan_finetune(**(arguments | changes))


@given(st.integers(0, 300), st.integers(1, 5), st.integers(1, 40), st.integers(1, 12))
def test_steps_are_those_of_the_loop(rows: int, epochs: int, batch_size: int, grad_accum: int) -> None:
    made = contract(exec={"epochs": epochs, "batch_size": batch_size, "grad_accum": grad_accum})
    assert optimizer_steps(rows, made) == simulated_steps(rows, epochs, batch_size, grad_accum)


@given(st.integers(1, 100_000), st.floats(0.0, 0.5))
def test_split_keeps_the_rules(rows: int, ratio: float) -> None:
    held_out = validation_split(rows, ratio)
    assert 0 <= held_out <= rows / 2
    if ratio == 0.0:
        assert held_out == 0
    elif rows <= 20:
        assert held_out == math.floor(rows * ratio)
    else:
        assert held_out >= 10
        assert held_out == math.floor(rows * ratio) or held_out == 10 or held_out == rows // 2


@pytest.mark.parametrize(
    ("rows", "ratio", "held_out"),
    [
        (1, 0.5, 0), (2, 0.5, 1), (19, 0.05, 0), (20, 0.05, 1), (20, 0.5, 10), (21, 0.05, 10), (21, 0.5, 10),
        (100, 0.05, 10), (199, 0.05, 10), (400, 0.05, 20), (1000, 0.5, 500), (1000, 0.0, 0), (21, 0.0001, 10),
    ],
)  # fmt: skip
def test_split_by_hand(rows: int, ratio: float, held_out: int) -> None:
    assert validation_split(rows, ratio) == held_out


@pytest.mark.parametrize(
    ("configured", "total", "used"),
    [(100, 1000, 100), (100, 999, 99), (100, 50, 5), (100, 9, 1), (100, 1, 1), (3, 1000, 3), (0, 1000, 0), (1, 10, 1)],
)
def test_warmup_is_a_tenth_at_most(configured: int, total: int, used: int) -> None:
    assert warmup_steps(configured, total) == used


@pytest.mark.parametrize("path", list(UNSUPPORTED))
def test_unsupported_field_is_refused_with_its_path(path: str) -> None:
    with pytest.raises(ContractRejected) as caught:
        plan(contract=with_field(path, UNSUPPORTED[path]), context=replace(UNKNOWN, experimental_optimizer=True))
    assert caught.value.code is Code.CONTRACT_UNSUPPORTED
    assert caught.value.param == path
    assert path in caught.value.message
    assert path in caught.value.remedy


@pytest.mark.parametrize("path", list(UNSUPPORTED))
def test_of_an_accepted_contract_only_what_decides_something_is_refused_again(path: str) -> None:
    given, facts = with_field(path, UNSUPPORTED[path]), replace(UNKNOWN, experimental_optimizer=True, accepted=True)
    if path == "collateral_damage_verified":
        assert plan(contract=given, context=facts).contract == settled(given)
    else:
        with pytest.raises(ContractRejected):
            plan(contract=given, context=facts)


# Fails while values are shown as Python writes them, e.g. <BaseQuant.NF4: 'nf4'>.
@pytest.mark.parametrize("path", list(UNSUPPORTED))
def test_remedy_names_the_accepted_value(path: str) -> None:
    with pytest.raises(ContractRejected) as caught:
        reject_unsupported(with_field(path, UNSUPPORTED[path]))
    default = contract().model_dump(mode="json")
    for part in path.split("."):
        default = default[part]
    assert f"Set {path} to {json.dumps(default)}," in caught.value.remedy


def test_default_contract_is_supported() -> None:
    reject_unsupported(contract())


@pytest.mark.parametrize("path", list(SUPPORTED))
def test_supported_field_is_planned_as_requested(path: str) -> None:
    requested = with_field(path, SUPPORTED[path])
    made = plan(contract=requested)
    assert made.contract == settled(requested)
    assert made.contract_digest != plan().contract_digest


@pytest.mark.parametrize("name", domain_names())
def test_every_domain_profile_can_be_planned(name: str) -> None:
    made = resolve_contract(parse_contract({"data": {"train_file": "f"}}), domain=name).contract
    assert plan(contract=made, difficulties={3: 40, 5: 40, 9: 20}).contract == settled(made)


@pytest.mark.parametrize("name", [name for name in domain_names() if name != "agents"])
def test_profile_with_a_curriculum_needs_difficulties(name: str) -> None:
    made = resolve_contract(parse_contract({"data": {"train_file": "f"}}), domain=name).contract
    with pytest.raises(ContractRejected, match="a row without a difficulty counts as 5"):
        plan(contract=made, difficulties={5: 100})


def test_chatml_marks_are_unsupported_as_a_whole() -> None:
    with pytest.raises(ContractRejected) as caught:
        reject_unsupported(with_field("chatml.im_start", "<s>"))
    assert (caught.value.code, caught.value.param) == (Code.CONTRACT_UNSUPPORTED, "chatml")


def test_the_plan_says_what_of_the_bases_layers_was_found() -> None:
    for stack, complete in (((4, 4), True), ((3, 4), False), ((0, 0), False), (None, None)):
        made = plan(context=replace(UNKNOWN, proxy_stack=stack))
        found = made.candle_proxy_stack_keys_matched, made.candle_proxy_stack_keys_expected
        assert found == (stack or (None, None))
        assert made.candle_proxy_stack_complete is complete
        assert made.candle_proxy_stack_eligible
        assert made.candle_compat_mode


def test_a_merge_that_may_leave_nothing_out_is_what_a_merge_is() -> None:
    made = plan(contract=contract(artifact={"allow_placeholder_attention_merge": False}))
    assert any("allow_placeholder_attention_merge" in note for note in made.notes)


def test_refusals_come_before_what_is_unsupported() -> None:
    made = contract(
        adapter={"method": "lora", "targets": "lm_head_proxy"}, quant={"base": "none"}, exec={"backend": "burn"}
    )
    with pytest.raises(ContractRejected) as caught:
        plan(contract=made, context=replace(UNKNOWN, model_type="gpt2"))
    assert caught.value.code is Code.BURN_LORA_REJECTED


def test_notes_of_the_gates_are_in_the_plan() -> None:
    assert plan().notes == ()
    assert len(plan(train=data_file(99)).notes) == 1
    assert plan(train=data_file(99), context=UNKNOWN).notes == ()


def test_a_file_without_rows_is_refused() -> None:
    with pytest.raises(ContractRejected) as caught:
        plan(train=data_file(0))
    assert caught.value.code is Code.CORPUS_TOO_SMALL


def test_plan_is_complete() -> None:
    made = plan()
    assert (made.version, made.execution_kernel, made.adapter_name) == (1, "qlora", "demo")
    assert made.base.digests == base_entry().digests
    assert made.validation_rows == 10
    assert made.optimizer_steps == simulated_steps(90, 3, 4, 4)


def test_validation_file_replaces_the_split() -> None:
    made = plan(validation=data_file(30, "f" * 64, "file-2"))
    assert made.validation_rows == 0
    assert made.optimizer_steps == simulated_steps(100, 3, 4, 4)
    assert made.contract_digest != plan().contract_digest


def test_a_replay_file_adds_its_share_to_every_epoch() -> None:
    made = plan(contract=contract(data={"train_file": "f", "replay_ratio": 0.5}), replay=data_file(1000, "f" * 64))
    assert made.replay == data_file(1000, "f" * 64)
    assert made.optimizer_steps == simulated_steps(90 + 45, 3, 4, 4)
    without = plan(contract=contract(data={"train_file": "f", "replay_ratio": 0.5}))
    assert without.optimizer_steps == simulated_steps(90, 3, 4, 4)
    assert made.contract_digest != without.contract_digest


def test_a_curriculum_has_the_steps_of_what_it_admits() -> None:
    requested = contract(curriculum={"enabled": True}, data={"train_file": "f", "validation_split_ratio": 0.0})
    made = plan(contract=requested, difficulties={2: 20, 7: 30, 8: 50})
    assert made.optimizer_steps == sum(simulated_steps(rows, 1, 4, 4) for rows in (20, 50, 100))


def test_a_curriculum_without_rows_in_an_epoch_is_refused() -> None:
    with pytest.raises(ContractRejected, match="Epoch 1 has no rows") as caught:
        plan(contract=contract(curriculum={"enabled": True}), difficulties={5: 100})
    assert (caught.value.code, caught.value.param) == (Code.CORPUS_TOO_SMALL, "exec.curriculum_schedule")


def test_plan_comes_back_from_json_as_the_same_value() -> None:
    made = plan(validation=data_file(30, "f" * 64, "file-2"))
    copy = ExecutionPlan.model_validate_json(made.model_dump_json())
    assert copy == made
    assert copy.digest == made.digest == digest_json(made.model_dump(mode="json"))


def test_planning_twice_gives_the_same_digest() -> None:
    assert plan().digest == plan().digest == GOLDEN_DIGEST, "plans are stored by digest: a change orphans them"


@pytest.mark.parametrize("path", sorted(GOLDEN.glob("plan-*.json")), ids=lambda path: path.stem)
def test_a_plan_that_an_earlier_release_has_stored_keeps_its_digest(path: Path) -> None:
    """Each file is a shape in which plans were stored, today's too, and the digest that its checkpoints name."""
    stored = json.loads(path.read_text())
    made = ExecutionPlan.model_validate(stored["plan"])
    assert made.digest == stored["digest"]
    inputs = TrainingInputs(base="base", train="rows.jsonl", validation=None)
    run = TrainingRun.model_validate_json(TrainingRun(plan=made, inputs=inputs).to_json())
    assert run.plan.digest == stored["digest"], "the trainer reads the plan from a file"


def test_a_plan_is_not_changed_through_its_dictionaries() -> None:
    digests = plan().base.digests
    for change in (lambda: digests.update(a="b"), lambda: digests.pop("config.json"), digests.clear):
        with pytest.raises(TypeError):
            change()
    with pytest.raises(TypeError):
        digests["config.json"] = "0" * 64
    assert digests == base_entry().digests


def test_a_plan_has_no_list_that_could_be_changed() -> None:
    """Nor any other value in its sections: what is stored as an array is a tuple."""
    given = contract(
        adapter={"target_modules": ["q_proj"]}, data={"train_file": "f", "context_filter": {"categories": ["code"]}}
    )
    made = plan(contract=given)
    assert made.contract.adapter.target_modules == ("q_proj",)
    assert not list(changeable(made)), "a pydantic value, a tuple or a scalar, all the way down"


def changeable(value: Any, path: str = "plan") -> Iterator[str]:
    """Paths of the values below this one that can be changed in place."""
    if isinstance(value, BaseModel):
        for name in type(value).model_fields:
            yield from changeable(getattr(value, name), f"{path}.{name}")
    elif isinstance(value, tuple):
        for number, part in enumerate(value):
            yield from changeable(part, f"{path}[{number}]")
    elif isinstance(value, list | set) or (isinstance(value, dict) and not isinstance(value, FrozenDict)):
        yield path


@pytest.mark.parametrize(
    "change",
    [
        {"contract": contract(exec={"seed": 43})},
        {"base": base_entry("other")},
        {"base": base_entry(config="e" * 64)},
        {"train": data_file(101)},
        {"train": data_file(sha256="e" * 64)},
        {"validation": data_file(30)},
        {"replay": data_file(30)},
        {"adapter_name": "other"},
    ],
)
def test_plan_digest_changes_with_every_input(change: dict[str, Any]) -> None:
    assert plan(**change).digest != plan().digest


def test_contract_digest_is_by_content_not_by_file_id() -> None:
    assert plan(train=data_file(file_id="file-9")).contract_digest == plan().contract_digest
    assert plan(train=data_file(sha256="e" * 64)).contract_digest != plan().contract_digest
    assert plan(base=base_entry(config="e" * 64)).contract_digest != plan().contract_digest


def test_early_stopping_without_a_row_to_validate_on_is_refused():
    requested = contract(exec={"early_stopping_patience": 2}, data={"train_file": "f", "validation_split_ratio": 0.0})
    with pytest.raises(ContractRejected) as refused:
        plan(contract=requested)
    assert (refused.value.code, refused.value.param) == (Code.CONTRACT_UNSUPPORTED, "exec.early_stopping_patience")
    assert plan(contract=requested, validation=data_file(5, "d" * 64)).contract.exec.early_stopping_patience == 2
