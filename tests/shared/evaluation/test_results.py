"""Results of a run: comparisons of its two models."""

from __future__ import annotations

from typing import Any

import pytest

from shared.evaluation.plan import EvaluationPlan
from shared.evaluation.results import Totals, outcome_of
from shared.evaluation.types import ItemResult
from shared.statistics.paired import Comparison

CRITERION = {"type": "string_check", "name": "equals", "input": "a", "reference": "a", "operation": "eq"}


def answer(score: float) -> dict[str, Any]:
    return {"results": [{"name": "equals", "type": "string_check", "passed": score == 1.0, "score": score}]}


def compared(samples: int) -> Comparison:
    """Ten items, of which each model wins five, in each of their answers."""
    items = {"file_id": "file-1", "sha256": "a" * 64, "count": 10}
    models = [{"name": name, "served": name} for name in ("new", "old")]
    plan = EvaluationPlan.model_validate(
        {"eval_id": "e", "testing_criteria": [CRITERION], "items": items, "models": models, "samples": samples}
    )
    results = [
        ItemResult.model_validate(
            {
                "item_index": number,
                "sample_index": sample,
                "item": {},
                "answer": answer(number % 2.0),
                "incumbent": answer(1.0 - number % 2),
            }
        )
        for number in range(10)
        for sample in range(samples)
    ]
    return outcome_of("run-1", plan, Totals.of(plan), results).comparisons["equals"]


def test_several_answers_to_an_item_are_not_as_many_items() -> None:
    once, often = compared(1).interval, compared(8).interval
    assert once and often and often[0] == pytest.approx(once[0], abs=0.1)
