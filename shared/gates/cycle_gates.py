"""The gate on cycles of scorecards, and the decision without a policy that ``mens scorecard promote`` shows.

The original's rule (two cycles, deltas in syntax, semantic and runtime repair), for any two models. A cycle names both
conditions, so that none can be chosen by its result. Insufficient data gives ``insufficient_evidence``, with what is
missing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Literal

from pydantic import Field

from shared.gate_outcome import GateStatus
from shared.gates.cycle_kpis import KPIS, MIN_GAIN, Group, KpiDelta, compare_kpis
from shared.gates.evidence import Evidence, PromotionCycle
from shared.gates.measures import missing
from shared.gates.policy import CyclesGate
from shared.gates.receipt import GateCheck
from shared.hashing import digest_json
from shared.scorecard.records import ScorecardEvent
from shared.scorecard.spec import ScorecardCondition, ScorecardValue

MEASURE = "distinct cycles"
Verdict = Literal["eligible", "not_eligible", "insufficient_evidence"]


class CycleResult(ScorecardValue):
    """Result of one cycle.

    Attributes:
        id: digest of the eval, its items, the seeds and both adapters.
        repeats: id of an earlier cycle with the same items and training seeds, in which case this cycle is the same
            evidence again.
    """

    id: str
    candidate: str
    incumbent: str
    repeats: str | None
    missing: list[str] = Field(description="Missing evidence; each entry makes the candidate ineligible.")
    failed: list[str] = Field(description="KPIs in which the candidate does not meet the requirement.")
    unused_conditions: list[str] = Field(description="Conditions with events that no comparison used.")
    deltas: list[KpiDelta]


class PromotionResult(ScorecardValue):
    """Decision whether the candidate is eligible, with reasons."""

    verdict: Verdict
    eligible: bool
    reason: str
    missing: list[str]
    cycles: list[CycleResult]

    @property
    def distinct(self) -> int:
        """Number of cycles that do not repeat an earlier one."""
        return sum(cycle.repeats is None for cycle in self.cycles)


def cycle_checks(gate: CyclesGate, evidence: Evidence) -> list[GateCheck]:
    """Check a gate on cycles: their number and completeness, and each KPI of each cycle."""
    if not evidence.cycles:
        reason = "no cycles were given; name them with `mens receipts create … --cycles FILE`"
        return [missing(MEASURE, "at_least", gate.min_cycles, reason)]
    outcome = judge_cycles(evidence.cycles, gate, [*_of_other_models(evidence)])
    first = GateCheck(
        measure=MEASURE,
        status=GateStatus.MISSING_EVIDENCE if outcome.missing else GateStatus.PASSED,
        message="; ".join(outcome.missing) or outcome.reason.rstrip("."),
        relation="at_least",
        value=outcome.distinct,
        bound=gate.min_cycles,
    )
    return [first, *(_check(number, delta) for number, cycle in enumerate(outcome.cycles, 1) for delta in cycle.deltas)]


def judge_cycles(
    cycles: Sequence[PromotionCycle], gate: CyclesGate | None = None, missing: Sequence[str] = ()
) -> PromotionResult:
    """Judge a promotion.

    Args:
        cycles: cycles in any order, which does not affect the verdict.
        gate: the requirements; None: the defaults.
        missing: further known gaps.
    """
    gate = gate or CyclesGate()
    results = [*_results(cycles)]
    distinct = sum(result.repeats is None for result in results)
    lacking = [*missing, *_across(cycles), *_of_other_backends(cycles, gate)]
    if distinct < gate.min_cycles:
        lacking.append(
            f"{gate.min_cycles} distinct cycles are needed, but only {distinct} {'is' if distinct == 1 else 'are'} "
            "distinct; "
            "cycles are distinct when their items or their training seeds differ"
        )
    lacking += [f"cycle {number}: {gap}" for number, result in enumerate(results, start=1) for gap in result.missing]
    failed = sorted({name for result in results for name in result.failed})
    verdict: Verdict = "insufficient_evidence" if lacking else "not_eligible" if failed else "eligible"
    reasons = {
        "insufficient_evidence": "Not shown: " + "; ".join(lacking) + ".",
        "not_eligible": f"The candidate does not meet the requirement in: {', '.join(failed)}.",
        "eligible": f"The candidate gains in {distinct} distinct cycles, and loses in no KPI.",
    }
    return PromotionResult(
        verdict=verdict, eligible=verdict == "eligible", reason=reasons[verdict], missing=lacking, cycles=results
    )


def _check(number: int, delta: KpiDelta) -> GateCheck:
    """Make the check of one KPI in one cycle."""
    kpi, name = KPIS[delta.kpi], f"cycle {number}: {delta.kpi}"
    return GateCheck(
        measure=name,
        status=GateStatus.PASSED if delta.holds else GateStatus.FAILED,
        message=f"{name} went from {delta.incumbent:.3g} to {delta.candidate:.3g}; {delta.required} is required",
        relation="at_least" if kpi.is_rate else "at_most",
        value=delta.delta,
        bound=MIN_GAIN if kpi.must_gain else 0.0,
        n=delta.items,
        interval=delta.interval,
        smallest_visible=delta.smallest_visible,
        items_needed=delta.items_needed,
    )


def _of_other_models(evidence: Evidence) -> Iterator[str]:
    """Iterate over the reasons why no cycle compares a receipt's models; cycles after the first may use other training
    seeds.
    """
    pairs = [tuple(_name_of(condition) for condition in cycle.conditions) for cycle in evidence.cycles]
    compared_models = (evidence.adapter.id, evidence.compared_with)
    absent = [number for number, name in enumerate(compared_models) if name not in {pair[number] for pair in pairs}]
    yield from (f"no cycle's {('candidate', 'incumbent')[number]} is {compared_models[number]}" for number in absent)
    if not absent and compared_models not in pairs:
        yield f"no cycle compares {compared_models[0]} with {compared_models[1]}"


def _name_of(condition: ScorecardCondition | None) -> str | None:
    return (condition.adapter_revision or condition.model_id) if condition else None


def _of_other_backends(cycles: Sequence[PromotionCycle], gate: CyclesGate) -> Iterator[str]:
    """Iterate over the roles whose backend is not the one that the policy requires."""
    for number, (role, required) in enumerate(
        (("candidate", gate.candidate_backend), ("incumbent", gate.incumbent_backend))
    ):
        backends = {condition.backend for cycle in cycles if (condition := cycle.conditions[number])}
        if required and (others := sorted(backends - {required})):
            yield f"the {role} has the backend {', '.join(others)}, but the policy requires {required}"


def cycle_id(cycle: PromotionCycle) -> str:
    """Return a digest of a cycle's definition: eval, items, seeds and both models; its results are not included."""
    spec = cycle.spec
    eval_of = spec.model_dump(include={"prompt_pack_version", "max_retries", "validator", "system_prompt", "sampling"})
    return digest_json(
        {
            "eval": eval_of,
            "items": spec.items_digest(),
            "models": [_model_of(spec.condition(name)) for name in (cycle.candidate, cycle.incumbent)],
        }
    )


def _model_of(condition: ScorecardCondition | None) -> dict[str, object]:
    fields = {"backend", "model_id", "adapter_revision", "training_seed"}
    return condition.model_dump(include=fields) if condition else {}


def _results(cycles: Sequence[PromotionCycle]) -> Iterator[CycleResult]:
    seen: dict[tuple[object, ...], str] = {}
    for cycle in cycles:
        spec = cycle.spec
        seeds = [_model_of(spec.condition(name)).get("training_seed") for name in (cycle.candidate, cycle.incumbent)]
        id_of_cycle, key = cycle_id(cycle), (spec.items_digest(), *seeds)
        missing = [*_missing(cycle)]
        # The numbers of an incomplete cycle would not cover the tasks that they claim to cover.
        deltas = [] if missing else compare_kpis(_events(cycle, cycle.candidate), _events(cycle, cycle.incumbent))
        shown = {delta.kpi for delta in deltas}
        missing += [
            f"{name} ({kpi.group}) does not have a value" for name, kpi in KPIS.items() if deltas and name not in shown
        ]
        missing += [f"{delta.kpi}: {delta.open_question}" for delta in deltas if delta.open_question]
        yield CycleResult(
            id=id_of_cycle,
            candidate=cycle.candidate,
            incumbent=cycle.incumbent,
            repeats=seen.get(key),
            missing=missing,
            failed=[delta.kpi for delta in deltas if not delta.holds],
            unused_conditions=sorted(
                {event.condition_id for event in cycle.events} - {cycle.candidate, cycle.incumbent}
            ),
            deltas=deltas,
        )
        seen.setdefault(key, id_of_cycle)


def _events(cycle: PromotionCycle, condition_id: str) -> dict[str, ScorecardEvent]:
    return {event.task_id: event for event in cycle.events if event.condition_id == condition_id}


def _missing(cycle: PromotionCycle) -> Iterator[str]:
    """Iterate over the faults because of which a cycle is not evidence, whatever its results are."""
    spec = cycle.spec
    conditions = [spec.condition(name) for name in (cycle.candidate, cycle.incumbent)]
    for role, name, condition in zip(
        ("candidate", "incumbent"), (cycle.candidate, cycle.incumbent), conditions, strict=True
    ):
        if condition is None:
            yield f"the spec does not have a condition {name}, which is named as the {role}"
            continue
        yield from _missing_of(role, condition)
        tasks = Counter(event.task_id for event in cycle.events if event.condition_id == name)
        if lacking := [task.id for task in spec.tasks if tasks[task.id] != 1]:
            yield f"{name} does not have exactly one event for each task: {', '.join(lacking[:5])}"
        if unknown := sorted(tasks.keys() - {task.id for task in spec.tasks}):
            yield f"{name} has events of tasks that are not in the spec: {', '.join(unknown[:5])}"
        if any(event.backend != condition.backend for event in cycle.events if event.condition_id == name):
            yield f"the backend of events of {name} differs from that of its condition"
    candidate, incumbent = conditions
    if candidate and incumbent and _identity(candidate) == _identity(incumbent):
        yield "candidate and incumbent are the same model"
    if not all(task.semantic_expected_contains for task in spec.tasks):
        yield f"{Group.SEMANTIC}: tasks have no semantic_expected_contains"
    if spec.max_retries == 0:
        yield f"{Group.RUNTIME_REPAIR}: max_retries is 0, so repair was not tested"


def _missing_of(role: str, condition: ScorecardCondition) -> Iterator[str]:
    if condition.mode != "http_generate":
        yield f"{Group.RUNTIME_REPAIR}: the {role} {condition.id} was not sampled; recorded answers have no latencies"
    if condition.backend != "base" and condition.training_seed is None:
        yield f"the {role} {condition.id} has no training_seed"
    if condition.backend != "base" and not condition.adapter_revision:
        yield f"the {role} {condition.id} has no adapter_revision"


def _identity(condition: ScorecardCondition) -> tuple[str | None, str | None]:
    return condition.adapter_revision, None if condition.adapter_revision else condition.model_id


def _across(cycles: Sequence[PromotionCycle]) -> Iterator[str]:
    """Iterate over the differences because of which cycles are not evidence for the same comparison."""
    if len({cycle.spec.prompt_pack_version for cycle in cycles}) > 1:
        yield "the cycles use different prompt packs"
    for role in ("candidate", "incumbent"):
        conditions = [cycle.spec.condition(getattr(cycle, role)) for cycle in cycles]
        backends = sorted({condition.backend for condition in conditions if condition})
        if len(backends) > 1:
            yield f"the {role} has several backends: {', '.join(backends)}"
