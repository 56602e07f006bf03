"""Judge an adapter by a policy. Every configured gate gives exactly one row, whatever the evidence.

A gate is a list of checks: a number against a bound, or a comparison with the incumbent. The comparisons of all
blocking gates are judged together, by Holm's procedure, so that adding comparisons does not make a false pass more
likely.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

from pydantic import BaseModel

from shared.gate_outcome import GateStatus
from shared.gates.cycle_gates import cycle_checks
from shared.gates.evidence import Evidence
from shared.gates.forget_gates import forget_conditions
from shared.gates.measures import Loss, compared
from shared.gates.policy import CyclesGate, ForgetGate, Gate, GatePolicy, RunGate, ShadowGate
from shared.gates.policy_file import policy_digest
from shared.gates.receipt import GateCheck, GateRow, PolicyRef, Receipt
from shared.gates.run_gates import run_conditions
from shared.gates.shadow_gates import shadow_check
from shared.gates.training_gates import training_check
from shared.hashing import digest_json
from shared.sandbox.levels import weakest
from shared.statistics.multiple import spent_alpha
from shared.statistics.paired import CONFIDENCE, Status, compare

DECIDING = (GateStatus.FAILED, GateStatus.MISSING_EVIDENCE, GateStatus.PASSED)
"""Statuses in order of precedence: the first one that any check of a gate has is the gate's own."""


def judge(policy: GatePolicy, evidence: Evidence, name: str = "policy") -> Receipt:
    """Judge an adapter by a policy. The same policy and evidence give the same receipt.

    Args:
        policy: its gates and runs.
        evidence: evidence on the adapter.
        name: name that the policy is stored under.
    """
    alpha = spent_alpha(1 - CONFIDENCE, evidence.attempt) if evidence.attempt else 1 - CONFIDENCE
    gates = dict(policy.gates.configured())
    conditions = {row: _conditions(row, gate, policy, evidence) for row, gate in gates.items()}
    blocking = [loss for row, gate in gates.items() if gate.block for loss in _losses(conditions[row])]
    together = judge_together(blocking, alpha)
    rows = []
    for row, gate in gates.items():
        # A warning is judged alone: it blocks nothing, so it takes no error level from the blocking gates.
        alone = {} if gate.block else judge_together(_losses(conditions[row]), alpha)
        judged = together | alone
        checks = [judged[id(condition)] if isinstance(condition, Loss) else condition for condition in conditions[row]]
        rows.append(_row(row, gate, checks, _digest(gate, evidence)))
    return Receipt(
        timestamp=evidence.judged_at,
        valid_until=_valid_until(policy, evidence),
        adapter=evidence.adapter,
        incumbent=evidence.incumbent,
        compared_with=evidence.compared_with,
        policy=PolicyRef(name=name, digest=policy_digest(policy)),
        serving_base=evidence.serving_base,
        sandbox=weakest(run.sandbox for run in evidence.all_runs.values()),
        attempt=evidence.attempt,
        alpha=alpha,
        unrepeatable={name: run.unrepeatable for name, run in evidence.all_runs.items() if run.unrepeatable},
        overall_passed=all(row.passed for row in rows if row.block),
        gates=tuple(rows),
    )


def _conditions(row: str, gate: Gate, policy: GatePolicy, evidence: Evidence) -> Sequence[GateCheck | Loss]:
    if not gate.applies:
        return []
    if isinstance(gate, RunGate):
        return run_conditions(row, gate, policy, evidence)
    if isinstance(gate, ShadowGate):
        is_left_out = evidence.incumbent is None and policy.without_incumbent == "not_applicable"
        return [] if is_left_out else [shadow_check(gate, evidence)]
    if isinstance(gate, CyclesGate):
        return cycle_checks(gate, evidence) if evidence.compared_with else []
    if isinstance(gate, ForgetGate):
        return forget_conditions(gate, evidence)
    check = training_check(gate, evidence.training)
    if check is None:
        raise TypeError(f"no check exists for the gate {row}")
    return [check]


def _losses(conditions: Sequence[GateCheck | Loss]) -> list[Loss]:
    return [condition for condition in conditions if isinstance(condition, Loss)]


def judge_together(losses: Sequence[Loss], alpha: float) -> dict[int, GateCheck]:
    """Judge comparisons by Holm's procedure; return their checks by the comparison's ``id()``.

    A comparison passes at a confidence if its interval at that confidence is above -margin, which is equivalent to an
    adjusted p-value. The first round accepts those of the m comparisons that pass at confidence 1 - alpha/m, the second
    those of the remaining m' that pass at 1 - alpha/m', and so on until a round accepts none.
    """
    left, checks = list(losses), dict[int, GateCheck]()
    while left:
        confidence = 1 - alpha / len(left)
        results = {id(loss): compare(loss.old, loss.new, loss.margin, confidence) for loss in left}
        checks |= {id(loss): compared(loss, results[id(loss)], confidence) for loss in left}
        remaining = [loss for loss in left if results[id(loss)].status is not Status.PASSED]
        if len(remaining) == len(left):
            break
        left = remaining
    return checks


def _row(name: str, gate: Gate, checks: Sequence[GateCheck], evidence: str | None) -> GateRow:
    """Make the single row of a gate from the check that decides it, with the outcomes of its other checks."""
    if not checks:
        reason = "the policy sets it to not applicable"
        if gate.applies:
            reason = "the alias has no incumbent, and the policy does not require a comparison in this case"
        return GateRow(
            name=name,
            status=GateStatus.NOT_APPLICABLE,
            passed=True,
            block=gate.block,
            message=reason,
            evidence=evidence,
        )
    status = next(status for status in DECIDING if any(check.status is status for check in checks))
    deciding = next(check for check in checks if check.status is status)
    unresolved = [check.message for check in checks if check.status is not GateStatus.PASSED]
    return GateRow(
        name=name,
        status=status,
        passed=status is GateStatus.PASSED,
        block=gate.block,
        message="; ".join(dict.fromkeys(unresolved or [check.message for check in checks])),
        evidence=evidence,
        checks=tuple(checks),
        **deciding.model_dump(include={"value", "bound", "n", "interval", "smallest_visible", "items_needed"}),
    )


def _digest(gate: Gate, evidence: Evidence) -> str | None:
    facts: BaseModel | None = evidence.training
    if isinstance(gate, RunGate):
        facts = evidence.runs.get(gate.run or "")
    elif isinstance(gate, ShadowGate):
        facts = evidence.shadows.get(gate.eval)
    elif isinstance(gate, ForgetGate):
        facts = evidence.forget
    elif isinstance(gate, CyclesGate):
        cycles = [cycle.model_dump(mode="json") for cycle in evidence.cycles]
        return digest_json(cycles) if cycles else None
    return digest_json(facts.model_dump(mode="json")) if facts else None


def _valid_until(policy: GatePolicy, evidence: Evidence) -> datetime:
    """Return when the receipt expires: with its oldest run, shadow or file of cycles. Judging these again does not extend it."""
    ends = [evidence.judged_at + timedelta(days=policy.max_age_days)]
    for name, run in evidence.all_runs.items():
        template = policy.runs.get(name)
        days = min(policy.max_age_days, (template and template.max_age_days) or policy.max_age_days)
        ends.append(run.measured_at + timedelta(days=days))
    ends += [shadow.last_at + timedelta(days=policy.max_age_days) for shadow in evidence.shadows.values()]
    if evidence.cycles_from:
        ends.append(evidence.cycles_from + timedelta(days=policy.max_age_days))
    return min(ends)
