"""A run that continues from an adapter: the values from its parent, and refusals."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from shared.base_models.catalog import BaseModelEntry, LocalSource, digest_model_folder
from shared.contract.contracts import FineTuneContract
from shared.contract.flat_keys import parse_contract
from shared.errors import ContractRejected
from shared.hashing import digest_file
from shared.preflight.parents import planned_parent, with_answer_models
from shared.preflight.pipeline import preflight
from shared.preflight.types import InputFile, JobRequest, Machine, Preflight
from tests.support.parents import MODULES, another, manifest_of
from tests.support.tiny_base import write_base

ALL = ("down_proj", "gate_proj", "k_proj", "o_proj", "q_proj", "up_proj", "v_proj")
LARGE, SMALL = Machine(device="cpu", host_bytes=80 << 30), Machine(device="cpu", host_bytes=540 << 20)


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> BaseModelEntry:
    folder = write_base(tmp_path_factory.mktemp("bases") / "tiny")
    return BaseModelEntry(name="tiny", source=LocalSource(path=str(folder)), digests=digest_model_folder(folder))


@pytest.fixture
def check(base: BaseModelEntry, tmp_path: Path) -> Any:
    """Plan a run that continues from an adapter with a manifest."""
    path = tmp_path / "rows.jsonl"
    path.write_text("\n".join(json.dumps({"prompt": f"question {index}", "response": "yes"}) for index in range(30)))
    file = InputFile("f", digest_file(path), path)

    def run(parent: dict[str, Any] | None, machine: Machine = SMALL, **more: Any) -> Preflight:
        sections = {"model": {"name": "tiny"}, "data": {"train_file": "f"}} | more.pop("sections", {})
        start = None if parent is None else planned_parent(manifest_of(base, **parent))
        if start:
            sections["adapter"] = {"continue_from": start.id} | sections.get("adapter", {})
        request = JobRequest(parse_contract(sections), parent=start, **more)
        return preflight(request, base, Path(base.source.path), file, None, machine)

    return run


def test_open_fields_are_the_parents(check: Any) -> None:
    found = check({"rank": 6, "alpha": 9, "quant": {"base_quant": "nf4", "double_quant": False}}, LARGE)
    contract = found.plan.contract
    assert (contract.adapter.rank, contract.adapter.alpha, contract.adapter.target_modules) == (6, 9, MODULES)
    assert (contract.quant.base, contract.quant.double_quant) == ("nf4", False)
    assert found.precision.reason == "the adapter that it continues from was trained over NF4"
    taken = ("adapter.rank", "adapter.alpha", "adapter.target_modules", "quant.double_quant")
    assert {found.sources[path] for path in taken} == {"parent"}
    assert not [note for note in found.notes if "first@" in note]


def test_answer_models_of_the_parent_are_added_to_the_runs_own(check: Any, base: BaseModelEntry) -> None:
    def models(parent: tuple[str, ...], *own: str) -> Preflight:
        data = {"data": {"train_file": "f"}, "provenance": {"answer_models": own} if own else {}}
        return check({"provenance": {"answer_models": parent}}, sections=data)

    inherited, both = models(("b: yes", "c: yes")), models(("b: yes", "c: yes"), "a: yes", "b: yes")
    assert inherited.plan.contract.provenance.answer_models == ("b: yes", "c: yes")
    assert both.plan.contract.provenance.answer_models == ("a: yes", "b: yes", "c: yes")
    assert {found.sources["provenance.answer_models"] for found in (inherited, both)} == {"parent"}
    assert models(("a: yes",), "a: yes").sources["provenance.answer_models"] == "explicit"


def test_answer_models_that_do_not_fit_are_those_of_the_parents_manifest(base: BaseModelEntry) -> None:
    def contract(count: int) -> FineTuneContract:
        own = [f"own {number}" for number in range(count)]
        return parse_contract({"data": {"train_file": "f"}, "provenance": {"answer_models": own}})

    parent = planned_parent(
        manifest_of(base, provenance={"answer_models": [f"theirs {number}" for number in range(64)]})
    )
    whole = with_answer_models(contract(63), parent)
    assert whole.provenance.answer_models
    assert len(whole.provenance.answer_models) == 64
    assert f"64 models that the manifest of {parent.id} names" in whole.provenance.answer_models
    assert with_answer_models(whole, parent).provenance == whole.provenance, "a contract that is sent again"
    with pytest.raises(ContractRejected, match="but none for the models of"):
        with_answer_models(contract(64), parent)


def test_a_parent_of_every_layer_leaves_the_modules_open(check: Any) -> None:
    found = check({"modules": ALL})
    assert found.plan.contract.adapter.target_modules is None
    assert found.sources["adapter.target_modules"] == "default"


@pytest.mark.parametrize(
    ("adapter", "rank", "alpha"),
    [({"rank": 16}, 16, 32), ({"alpha": 4}, 8, 4), ({"rank": 12, "alpha": 5}, 12, 5), ({"rank": 9}, 9, 18)],
)
def test_the_ratio_is_kept_where_alpha_is_open(check: Any, adapter: Any, rank: int, alpha: int) -> None:
    contract = check({}, sections={"adapter": adapter}).plan.contract
    assert (contract.adapter.rank, contract.adapter.alpha) == (rank, alpha)


def test_the_parent_comes_before_presets(check: Any) -> None:
    found = check({}, preset="tiny")
    assert (found.plan.contract.adapter.rank, found.sources["adapter.rank"]) == (8, "parent")


@pytest.mark.parametrize(("machine", "base_quant"), [(LARGE, "none"), (SMALL, "nf4")])
def test_full_precision_of_a_parent_is_kept_where_it_fits(check: Any, machine: Machine, base_quant: str) -> None:
    trained = {"adapter_method": "lora", "quant": {"base_quant": "none"}, "trained_dtype": "float32"}
    found = check(trained, machine)
    assert found.plan.contract.quant.base == base_quant
    told = [note for note in found.notes if "holds its base in" in note]
    assert bool(told) == (base_quant == "nf4")


def test_an_import_leaves_the_precision_open(check: Any) -> None:
    imported = {"adapter_method": "lora", "quant": {"base_quant": "none"}}
    assert planned_parent_of(check(imported)).quant_base is None
    assert check(imported, LARGE).precision.precision == "float32"


def planned_parent_of(found: Preflight) -> Any:
    assert found.plan.parent
    return found.plan.parent


def test_template_arguments_are_the_parents(check: Any, base: BaseModelEntry) -> None:
    # The base's template takes none, so that what is inherited is seen in its refusal.
    with pytest.raises(ContractRejected) as refused:
        check({"template_arguments": {"enable_thinking": False}})
    assert (refused.value.code, refused.value.param) == (
        "TEMPLATE_ARGUMENT_UNKNOWN",
        "data.template_arguments.enable_thinking",
    )
    own = {"data": {"train_file": "f", "template_arguments": {}}}
    assert (
        check({"template_arguments": {"enable_thinking": False}}, sections=own).plan.contract.data.template_arguments
        == {}
    )


@pytest.mark.parametrize(
    ("parent", "sections", "code", "param"),
    [
        ({}, {"adapter": {"rank": 4}}, "CONTINUE_SHAPE_UNSUPPORTED", "adapter.rank"),
        ({}, {"adapter": {"target_modules": ["q_proj"]}}, "CONTINUE_SHAPE_UNSUPPORTED", "adapter.target_modules"),
        (
            {"modules": (*MODULES, "lm_head")},
            {"adapter": {"target_modules": list(ALL)}},
            "CONTINUE_SHAPE_UNSUPPORTED",
            "adapter.target_modules",
        ),
        (
            {"rank": 64},
            {
                "artifact": {"deployment_target": "mobile_edge"},
                "device": {"device": "cpu"},
                "exec": {"batch_size": 1},
            },
            "CONTINUE_SHAPE_UNSUPPORTED",
            "adapter.rank",
        ),
        ({"base_digests": {"config.json": "f" * 64}}, {}, "CONTINUE_BASE_MISMATCH", "adapter.continue_from"),
        (None, {"adapter": {"continue_from": "first"}}, "CONTRACT_UNSUPPORTED", "adapter.continue_from"),
        (None, {"exec": {"resume_from": "step-7"}}, "CONTRACT_UNSUPPORTED", "exec.resume_from"),
    ],
    ids=["rank", "modules", "head", "rank of mobile_edge", "base", "not looked up", "resume_from"],
)
def test_refusals(check: Any, parent: Any, sections: Any, code: str, param: str) -> None:
    with pytest.raises(ContractRejected) as refused:
        check(parent, sections=sections)
    assert (refused.value.code, refused.value.param) == (code, param)
    if param == "exec.resume_from":
        assert "adapter.continue_from" in refused.value.message


@pytest.mark.parametrize(("adapter", "told"), [({"alpha": 8}, False), ({"alpha": 32}, False), ({"alpha": 10}, True)])
def test_a_scale_that_rounds_is_reported(check: Any, adapter: Any, told: bool) -> None:
    notes = check({}, sections={"adapter": adapter}).notes
    assert any("with one rounding" in note for note in notes) is told


def test_digest_is_of_the_parents_content_and_not_of_its_name(check: Any, base: BaseModelEntry) -> None:
    one, other = manifest_of(base), another(manifest_of(base), "other")
    by_id = check({}).plan.contract_digest
    assert check({}, sections={"adapter": {"continue_from": "prod"}}).plan.contract_digest == by_id
    assert check({"files": other.files}).plan.contract_digest != by_id
    same_shape = {"adapter": {"rank": 8, "alpha": 16, "target_modules": list(MODULES)}}
    assert check(None, sections=same_shape).plan.contract_digest != by_id
    assert one.digest != other.digest


def test_the_worker_plans_the_same_again(check: Any) -> None:
    first = check({})
    again = check({}, sections=first.plan.contract.model_dump(mode="json"), accepted=True)
    assert (again.plan.contract, again.plan.contract_digest) == (first.plan.contract, first.plan.contract_digest)
    assert again.plan.parent == first.plan.parent
