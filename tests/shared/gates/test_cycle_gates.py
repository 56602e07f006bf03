"""Promotions: two distinct cycles with both models and every KPI group, or insufficient evidence with the missing
parts.

The original's `burn-rnd` promoted after one cycle, without KPIs of semantics and repair, and compared the best of all
conditions in a file.
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from shared.gate_outcome import GateStatus
from shared.gates import cycle_kpis
from shared.gates.cycle_gates import PromotionResult, cycle_id, judge_cycles
from shared.gates.cycle_kpis import KPIS, Group
from shared.gates.evaluate import judge
from shared.gates.evidence import AdapterRef, Evidence, PromotionCycle
from shared.gates.policy import GatePolicy
from shared.gates.receipt import GateRow
from shared.scorecard.spec import ScorecardSpec
from tests.support.gate_evidence import evidence
from tests.support.scorecards import promotion_cycle, scorecard_condition, scorecard_event


@pytest.fixture(autouse=True)
def _quick_intervals(monkeypatch: pytest.MonkeyPatch) -> None:
    """These tests check the rules; the intervals have tests of their own."""
    monkeypatch.setattr(cycle_kpis, "RESAMPLES", 99)


def with_spec(cycle: PromotionCycle, **fields: Any) -> PromotionCycle:
    return cycle.model_copy(
        update={"spec": ScorecardSpec.model_validate({**cycle.spec.model_dump(mode="json"), **fields})}
    )


def with_condition(cycle: PromotionCycle, condition_id: str, **fields: Any) -> PromotionCycle:
    conditions = cycle.spec.model_dump(mode="json")["conditions"]
    changed = [{**made, **(fields if made["id"] == condition_id else {})} for made in conditions]
    return with_spec(cycle, conditions=changed)


def evaluate(*cycles: PromotionCycle) -> PromotionResult:
    found = judge_cycles(cycles)
    is_whole = not found.missing and not any(cycle.failed for cycle in found.cycles)
    assert found.eligible == (found.verdict == "eligible") == is_whole
    return found


def test_two_distinct_cycles_with_gains_are_eligible() -> None:
    found = evaluate(promotion_cycle(1), promotion_cycle(2))
    assert (found.verdict, found.missing) == ("eligible", [])
    for cycle in found.cycles:
        assert {delta.kpi for delta in cycle.deltas} == KPIS.keys()
        assert {delta.group for delta in cycle.deltas} == set(Group)
        success = next(delta for delta in cycle.deltas if delta.kpi == "task_success")
        assert (success.delta, success.required) == (pytest.approx(0.4), "> 0.05")
        assert 0 < success.interval[0] < 0.4 < success.interval[1]


# -- the original's defects -------------------------------------------------------------------------------------------


def test_one_cycle_is_insufficient() -> None:
    found = evaluate(promotion_cycle(1))
    assert found.verdict == "insufficient_evidence"
    assert "2 distinct cycles are needed, but only 1 is distinct" in found.reason


def test_one_cycle_that_is_repeated_is_one_cycle() -> None:
    first = promotion_cycle(1)
    reordered = with_spec(first, tasks=[*reversed(first.spec.model_dump(mode="json")["tasks"])])
    trained_again = with_condition(reordered, "new", adapter_revision="new@" + "f" * 64)
    for second in (first, reordered, trained_again):
        found = evaluate(first, second)
        assert found.verdict == "insufficient_evidence"
        assert found.cycles[1].repeats == found.cycles[0].id


def test_the_best_of_all_conditions_is_not_taken() -> None:
    def with_better(seed: int) -> PromotionCycle:
        cycle = promotion_cycle(seed, gain=-0.1)
        conditions = cycle.spec.model_dump(mode="json")["conditions"]
        better = with_spec(cycle, conditions=[*conditions, scorecard_condition("best", training_seed=seed)])
        events = [*cycle.events, *(scorecard_event("best", task.id) for task in cycle.spec.tasks)]
        return better.model_copy(update={"events": events})

    found = evaluate(with_better(1), with_better(2))
    assert found.verdict == "not_eligible"
    assert "task_success" in found.reason
    assert [cycle.unused_conditions for cycle in found.cycles] == [["best"], ["best"]]


def test_a_cycle_without_semantic_kpis_is_insufficient() -> None:
    second = promotion_cycle(2)
    tasks = [{**task, "semantic_expected_contains": []} for task in second.spec.model_dump(mode="json")["tasks"]]
    found = evaluate(promotion_cycle(1), with_spec(second, tasks=tasks))
    assert found.verdict == "insufficient_evidence"
    assert "cycle 2: semantic: tasks have no semantic_expected_contains" in found.missing


def test_a_cycle_without_runtime_repair_is_insufficient() -> None:
    found = evaluate(promotion_cycle(1), with_spec(promotion_cycle(2), max_retries=0))
    assert "cycle 2: runtime_repair: max_retries is 0, so repair was not tested" in found.missing
    recorded = with_condition(promotion_cycle(2), "new", mode="fixture_file", fixture_dir="answers")
    found = evaluate(promotion_cycle(1), recorded)
    assert found.verdict == "insufficient_evidence"
    assert "recorded answers have no latencies" in found.reason


# -- everything else that is missing ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda cycle: cycle.model_copy(update={"candidate": "absent"}), "does not have a condition absent"),
        (lambda cycle: cycle.model_copy(update={"incumbent": "new"}), "are the same model"),
        (
            lambda cycle: cycle.model_copy(update={"events": cycle.events[1:]}),
            "exactly one event for each task: task_0",
        ),
        (
            lambda cycle: cycle.model_copy(update={"events": [*cycle.events, cycle.events[0]]}),
            "exactly one event for each task: task_0",
        ),
        (
            lambda cycle: cycle.model_copy(update={"events": [*cycle.events, scorecard_event("new", "task_99")]}),
            "events of tasks that are not in the spec: task_99",
        ),
        (lambda cycle: with_condition(cycle, "new", training_seed=None), "has no training_seed"),
        (lambda cycle: with_condition(cycle, "new", adapter_revision=None), "has no adapter_revision"),
        (lambda cycle: with_condition(cycle, "new", backend="burn"), "differs from that of its condition"),
        (lambda cycle: with_spec(cycle, prompt_pack_version="pack-v2"), "different prompt packs"),
    ],
)
def test_what_is_missing_is_said(change: Any, reason: str) -> None:
    found = evaluate(promotion_cycle(1), change(promotion_cycle(2)))
    assert found.verdict == "insufficient_evidence"
    assert any(reason in gap for gap in found.missing), found.missing


def test_four_tasks_show_nothing_and_the_number_that_would_is_said() -> None:
    found = evaluate(promotion_cycle(1, tasks=4, gain=0.5), promotion_cycle(2, tasks=4, gain=0.5))
    assert found.verdict == "insufficient_evidence"
    (success,) = [delta for delta in found.cycles[0].deltas if delta.kpi == "task_success"]
    assert success.holds
    assert success.items_needed
    assert success.items_needed > 4
    assert "4 tasks are too few to show a gain" in found.reason


def test_a_model_without_any_valid_answer_has_no_repair_kpis() -> None:
    def never(seed: int) -> PromotionCycle:
        cycle = promotion_cycle(seed)
        events = [
            scorecard_event("old", event.task_id, is_valid=False) if event.condition_id == "old" else event
            for event in cycle.events
        ]
        return cycle.model_copy(update={"events": events})

    found = evaluate(never(1), never(2))
    assert "cycle 1: repair_depth_mean (runtime_repair) does not have a value" in found.missing
    assert "cycle 1: time_to_first_valid_p50_ms (runtime_repair) does not have a value" in found.missing


LOSSES: dict[str, dict[str, Any]] = {
    "canonical_pass": {"canonical_pass": False},
    "voxelized_strictness": {"voxelized_strictness": 0.5},
    "semantic_task_success": {"semantic_task_success": False},
    "repair_depth_mean": {"attempts": 3},
    "time_to_first_valid_p50_ms": {"latency_ms": 900.0, "time_to_first_valid_ms": 900.0},
}


@pytest.mark.parametrize("kpi", LOSSES)
def test_a_loss_in_any_kpi_of_one_cycle_is_not_eligible(kpi: str) -> None:
    cycle = promotion_cycle(2)
    events = [
        scorecard_event("new", event.task_id, **LOSSES[kpi])
        if event.condition_id == "new" and event.compile_pass_n
        else event
        for event in cycle.events
    ]
    found = evaluate(promotion_cycle(1), cycle.model_copy(update={"events": events}))
    assert found.verdict == "not_eligible"
    assert kpi in found.cycles[1].failed
    assert not found.cycles[0].failed


def test_more_stalls_are_a_loss() -> None:
    cycle = promotion_cycle(2)
    events = [
        scorecard_event(event.condition_id, event.task_id, attempts=2, is_valid=False, repair_stalled=True)
        if event.condition_id == "new" and not event.compile_pass_n
        else event
        for event in cycle.events
    ]
    found = evaluate(promotion_cycle(1), cycle.model_copy(update={"events": events}))
    assert found.cycles[1].failed == ["repair_stall_rate"]


def test_a_gain_of_exactly_the_bound_is_none() -> None:
    found = evaluate(*(promotion_cycle(seed, tasks=200, gain=0.05) for seed in (1, 2)))
    assert "task_success" in found.cycles[0].failed


def test_the_id_is_of_what_was_run_and_not_of_what_came_out() -> None:
    cycle = promotion_cycle(1)
    assert cycle_id(cycle) == cycle_id(promotion_cycle(1, gain=0.1))
    for other in (
        promotion_cycle(2),
        promotion_cycle(1, tasks=39),
        with_spec(cycle, sampling={"seed": 2}),
        with_spec(cycle, max_retries=1),
        with_condition(cycle, "old", adapter_revision="x@1"),
        cycle.model_copy(update={"candidate": "old", "incumbent": "new"}),
    ):
        assert cycle_id(other) != cycle_id(cycle)


CYCLES = {(seed, gain): promotion_cycle(seed, tasks=12, gain=gain) for seed in (1, 2, 3) for gain in (0.6, 0.0)}


@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.sampled_from(sorted(CYCLES)), min_size=1, max_size=3))
def test_eligible_is_only_what_every_rule_allows(names: list[tuple[int, float]]) -> None:
    cycles = [CYCLES[name] for name in names]
    found = evaluate(*cycles)
    assert found.eligible == (len({seed for seed, _ in names}) >= 2 and all(gain == 0.6 for _, gain in names))
    assert evaluate(*reversed(cycles)).verdict == found.verdict
    assert len(found.cycles) == len(cycles)


# -- the gate of a policy ----------------------------------------------------------------------------------------------


def of_models(*cycles: PromotionCycle, **changes: Any) -> Evidence:
    """Evidence of cycles, on the models of the first one."""
    new, old = (condition.adapter_revision for condition in cycles[0].conditions if condition)
    models = {
        "adapter": AdapterRef(id=str(new), digest="1" * 64),
        "incumbent": AdapterRef(id=str(old), digest="0" * 64),
        "compared_with": str(old),
    }
    return evidence(**models, cycles=cycles, **changes)


def row_of(known: Evidence, **gate: Any) -> GateRow:
    asked = GatePolicy.model_validate({"version": "1", "gates": {"cycles": gate}})
    found = judge(asked, known)
    (row,) = found.gates
    assert found.overall_passed == row.passed
    return row


def test_the_gate_passes_by_two_cycles_and_shows_every_kpi() -> None:
    row = row_of(of_models(promotion_cycle(1), promotion_cycle(2)))
    assert (row.status, row.value, row.bound) == (GateStatus.PASSED, 2, 2)
    assert [check.measure for check in row.checks] == [
        "distinct cycles",
        *(f"cycle {number}: {kpi}" for number in (1, 2) for kpi in KPIS),
    ]
    assert row.evidence


def test_the_gate_without_cycles_says_how_to_name_them() -> None:
    row = row_of(evidence())
    assert row.status is GateStatus.MISSING_EVIDENCE
    assert "mens receipts create" in row.message
    assert row.evidence is None


def test_one_cycle_is_missing_evidence_and_a_loss_is_a_failure() -> None:
    alone = row_of(of_models(promotion_cycle(1)))
    assert alone.status is GateStatus.MISSING_EVIDENCE
    assert "2 distinct cycles are needed" in alone.message
    worse = row_of(of_models(promotion_cycle(1, gain=-0.1), promotion_cycle(2)))
    assert worse.status is GateStatus.FAILED
    assert "cycle 1: task_success went from 1 to 0.9; > 0.05 is required" in worse.message


def test_a_policy_may_require_more_cycles() -> None:
    known = of_models(promotion_cycle(1), promotion_cycle(2))
    assert "3 distinct cycles are needed, but only 2 are" in row_of(known, min_cycles=3).message


def test_the_cycles_have_to_be_about_the_models_of_the_receipt() -> None:
    known = of_models(promotion_cycle(1), promotion_cycle(2))
    for field in ("adapter", "incumbent"):
        other = AdapterRef(id="other@1", digest="2" * 64)
        changed = {field: other} | ({"compared_with": other.id} if field == "incumbent" else {})
        row = row_of(known.model_copy(update=changed))
        role = "candidate" if field == "adapter" else "incumbent"
        assert row.status is GateStatus.MISSING_EVIDENCE
        assert row.message == f"no cycle's {role} is other@1"


def test_one_cycle_has_to_compare_the_two_models_with_each_other() -> None:
    with_another_incumbent = with_condition(promotion_cycle(1), "old", adapter_revision="weak@1")
    with_another_candidate = with_condition(promotion_cycle(1), "new", adapter_revision="stranger@1")
    known = of_models(promotion_cycle(1)).model_copy(
        update={"cycles": (with_another_incumbent, with_another_candidate)}
    )
    row = row_of(known)
    assert row.status is GateStatus.MISSING_EVIDENCE
    assert f"no cycle compares {known.adapter.id} with {known.compared_with}" in row.message


def test_a_new_alias_is_compared_with_its_base() -> None:
    def with_base(seed: int) -> PromotionCycle:
        base = with_condition(promotion_cycle(seed), "old", backend="base", adapter_revision=None, model_id="tiny")
        events = [
            event.model_copy(update={"backend": "base"}) if event.condition_id == "old" else event
            for event in base.events
        ]
        return base.model_copy(update={"events": events})

    cycles = (with_base(1), with_base(2))
    known = of_models(promotion_cycle(1)).model_copy(
        update={"cycles": cycles, "incumbent": None, "compared_with": "tiny"}
    )
    assert row_of(known).status is GateStatus.PASSED
    assert row_of(known.model_copy(update={"compared_with": None})).status is GateStatus.NOT_APPLICABLE


def test_a_policy_may_require_the_backends_as_the_original_did() -> None:
    def with_burn(seed: int) -> PromotionCycle:
        cycle = with_condition(promotion_cycle(seed), "new", backend="burn")
        events = [
            event.model_copy(update={"backend": "burn"}) if event.condition_id == "new" else event
            for event in cycle.events
        ]
        return cycle.model_copy(update={"events": events})

    original = {"candidate_backend": "burn", "incumbent_backend": "qlora"}
    assert row_of(of_models(with_burn(1), with_burn(2)), **original).status is GateStatus.PASSED
    row = row_of(of_models(promotion_cycle(1), promotion_cycle(2)), **original)
    assert row.status is GateStatus.MISSING_EVIDENCE
    assert row.message == "the candidate has the backend qlora, but the policy requires burn"
