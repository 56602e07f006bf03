"""Rates against limits, and that repeating a receipt does not help a model to pass."""

from __future__ import annotations

import random
from functools import cache

from shared.gates.evaluate import judge
from shared.gates.policy import GatePolicy
from shared.gates.receipt import GateRow
from shared.statistics.exact import wilson_interval
from tests.support.gate_evidence import evidence, run_scores

ITEMS, LEAST = 60, 0.6
POLICY = GatePolicy.model_validate(
    {
        "version": "1",
        "runs": {"bench": {"eval": "eval-1", "file": "file-1", "temperature": 1}},
        "gates": {"evals": {"quality": {"run": "bench", "criterion": "exact", "min_score": LEAST}}},
    }
)


@cache
def judged(passed: int, attempt: int) -> GateRow:
    """Return the gate of a model that passed this many items, at its k-th receipt."""
    run = run_scores([1.0] * passed + [0.0] * (ITEMS - passed), None, "exact")
    return judge(POLICY, evidence(runs={"bench": run}, attempt=attempt)).gates[0]


def test_a_repeated_receipt_has_to_show_what_the_first_only_measures() -> None:
    assert [judged(39, attempt).status for attempt in (0, 1, 2)] == ["passed", "passed", "missing_evidence"]
    repeated = judged(39, 2)
    assert repeated.interval and repeated.interval[0] < LEAST < repeated.interval[1]
    needed, confidence = repeated.items_needed or 0, repeated.checks[0].confidence or 0
    before, after = (wilson_interval(0.65 * count, count, confidence)[0] for count in (needed - 1, needed))
    assert before < LEAST <= after
    assert repeated.message.endswith(f"{needed} are needed")
    assert [judged(54, attempt).status for attempt in (2, 5)] == ["passed", "passed"]
    assert (judged(30, 2).status, judged(36, 2).items_needed) == ("failed", None), (
        "no number of items shows a rate at its bound"
    )


def test_chance_passes_no_rate_however_often_it_is_tried() -> None:
    """200 models exactly at the bound, nine repetitions each."""
    generator = random.Random(1337)
    tries = [
        [judged(sum(generator.random() < LEAST for _ in range(ITEMS)), attempt) for attempt in range(2, 11)]
        for _ in range(200)
    ]
    assert sum(any(row.passed for row in rows) for rows in tries) / 200 <= 0.05
    by_number = [any(row.value is not None and row.value >= LEAST for row in rows) for rows in tries]
    assert sum(by_number) / 200 > 0.9, "the number alone would let nearly all of them pass"
