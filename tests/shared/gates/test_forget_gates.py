"""The gate `forget`: a comparison for each run, and missing evidence where a run is absent."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from shared.gate_outcome import GateStatus
from shared.gates.evaluate import judge
from shared.gates.evidence import ForgetEvidence, RunScores
from shared.gates.forget_gates import GENERAL, parents_run
from shared.gates.policy import GatePolicy
from shared.gates.receipt import GateRow, Receipt
from tests.support.gate_evidence import AT, NEW, OLD, evidence, run_scores

OWN = parents_run("support")


def judged(runs: dict[str, RunScores], missing: dict[str, str] | None = None, **gate: Any) -> Receipt:
    policy = GatePolicy.model_validate({"version": "1", "gates": {"forget": gate}})
    found = ForgetEvidence(compared_with=OLD.id, runs=runs, missing=missing or {})
    return judge(policy, evidence(incumbent=None, compared_with="tiny", forget=found))


def row_of(*given: Any, **gate: Any) -> GateRow:
    [row] = judged(*given, **gate).gates
    return row


def answers(right_before: int, lost: int, gained: int = 0, items: int = 200) -> RunScores:
    before = [1.0] * right_before + [0.0] * (items - right_before)
    after = [0.0] * lost + [1.0] * (right_before + gained - lost) + [0.0] * (items - right_before - gained)
    return run_scores(after, before)


@pytest.mark.parametrize(
    ("run", "status"),
    [
        (answers(120, 0), "passed"),
        (answers(120, 3, 3), "passed"),
        (answers(120, 100), "failed"),
        (answers(120, 25), "failed"),
        (answers(120, 6), "missing_evidence"),
        (answers(0, 0, 5), "missing_evidence"),
        (run_scores([]), "missing_evidence"),
        (run_scores([1.0] * 200), "missing_evidence"),
    ],
    ids=["kept", "as many", "forgotten", "a fifth lost", "undecided", "knew nothing", "no items", "no comparison"],
)
def test_verdicts_on_the_general_questions(run: RunScores, status: str) -> None:
    assert row_of({GENERAL: run}).status == status


def test_the_bound_is_a_share_of_what_was_known() -> None:
    row = row_of({GENERAL: answers(120, 4, 4)}, max_degradation=0.1)
    assert (row.status, row.bound, row.n) == (GateStatus.PASSED, pytest.approx(0.1 * 0.6), 200)
    assert row.message.startswith("mean score of general questions went from 0.6 to 0.6: ")


def test_every_run_has_to_pass() -> None:
    kept, lost = answers(120, 0), answers(120, 100)
    assert row_of({GENERAL: kept, OWN: kept}).passed
    row = row_of({GENERAL: kept, OWN: lost})
    assert (row.status, len(row.checks)) == (GateStatus.FAILED, 2)
    assert row.message.startswith("mean score of the parent's support went from 0.6 to 0.1: ")
    assert row_of({GENERAL: lost, OWN: kept}).status is GateStatus.FAILED


def test_what_was_not_measured_is_missing_evidence() -> None:
    row = row_of({GENERAL: answers(120, 0)}, {OWN: "EVAL_NOT_FOUND: The eval 'e' does not exist."})
    assert (row.status, row.passed) == (GateStatus.MISSING_EVIDENCE, False)
    assert row.message == "the parent's support: EVAL_NOT_FOUND: The eval 'e' does not exist."
    assert row_of({}).message == "the general questions were not asked"
    policy = GatePolicy.model_validate({"version": "1", "gates": {"forget": {}}})
    assert judge(policy, evidence()).gates[0].message == "the general questions were not asked"


def test_another_incumbent_than_the_policys_is_allowed_and_another_parents_is_not() -> None:
    assert judged({GENERAL: answers(120, 0)}).overall_passed
    with pytest.raises(ValueError, match="compares with demo@0, not with other@1"):
        evidence(forget=ForgetEvidence(compared_with="other@1", runs={GENERAL: answers(1, 0)}))
    with pytest.raises(ValueError, match=f"evaluates demo@9, not {NEW.id}"):
        run = answers(1, 0).model_copy(update={"candidate": "demo@9"})
        evidence(forget=ForgetEvidence(compared_with=OLD.id, runs={GENERAL: run}))


def test_receipt_expires_with_the_runs() -> None:
    old = answers(120, 0).model_copy(update={"measured_at": AT - timedelta(days=3)})
    assert judged({GENERAL: old}).valid_until == AT + timedelta(days=27)
