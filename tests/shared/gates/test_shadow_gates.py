"""The gate on shadow traffic: the counts of judged copies that let an adapter pass."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from shared.gates.evaluate import judge
from shared.gates.evidence import ShadowCounts
from shared.gates.policy import GatePolicy
from shared.gates.receipt import GateRow
from tests.support.gate_evidence import AT, evidence

POLICY = GatePolicy.model_validate({"version": "1", "gates": {"shadow": {"eval": "eval-1", "max_loss": 0.1}}})


def counts(wins: int = 0, losses: int = 0, ties: int = 0, errored: int = 0) -> ShadowCounts:
    return ShadowCounts(wins=wins, losses=losses, ties=ties, errored=errored, last_error="SERVING_FAILED", last_at=AT)


def row(found: ShadowCounts | None, **changes: Any) -> GateRow:
    return judge(POLICY, evidence(shadows={"eval-1": found} if found else {}, **changes)).gates[0]


@pytest.mark.parametrize(
    ("found", "status", "said"),
    [
        (None, "missing_evidence", "--shadow-eval eval-1"),
        (counts(ties=10), "missing_evidence", "requests like these would decide"),
        (counts(ties=60), "passed", "excluded; at most 0.1 is allowed"),
        (counts(wins=40, losses=10), "passed", "won 40, lost 10"),
        (counts(losses=8), "failed", "shown to be worse"),
        (counts(wins=10, losses=60, ties=100), "failed", "shown to be worse"),
        (counts(ties=60, errored=20), "missing_evidence", "20 of 80 copies could not be judged: SERVING_FAILED"),
    ],
)
def test_what_counts_show(found: ShadowCounts | None, status: str, said: str) -> None:
    judged = row(found)
    assert (judged.status, judged.passed) == (status, status == "passed")
    assert said in judged.message


def test_row_has_the_interval_and_how_many_requests_would_decide() -> None:
    judged = row(counts(wins=1, losses=1, ties=40))
    assert judged.status == "missing_evidence"
    assert judged.items_needed
    assert judged.interval
    assert judged.interval[0] < -0.1 < judged.interval[1]
    factor = judged.items_needed / 42
    more = counts(*(round(count * factor) for count in (1, 1, 40)))
    assert row(more).status == "passed"


def test_new_alias_without_an_incumbent_has_no_shadow_to_speak_of() -> None:
    lenient = POLICY.model_copy(update={"without_incumbent": "not_applicable"})
    new = {"incumbent": None, "compared_with": None}
    assert judge(lenient, evidence(**new)).gates[0].status == "not_applicable"
    assert row(None, incumbent=None, compared_with="tiny").status == "missing_evidence"


def test_receipt_is_as_old_as_the_last_request_it_rests_on() -> None:
    old = counts(ties=60).model_copy(update={"last_at": AT - timedelta(days=40)})
    assert judge(POLICY, evidence(shadows={"eval-1": old})).valid_until < AT
