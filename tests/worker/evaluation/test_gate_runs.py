"""The scores of a run, as evidence."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from shared.evaluation.types import ItemResult
from shared.graders.types import StringCheck
from worker.evaluation.gate_runs import answer_pairs

EQUALS = StringCheck(type="string_check", name="equals", input="a", reference="a", operation="eq")


def answer(score: float) -> dict[str, Any]:
    return {"results": [{"name": "equals", "type": "string_check", "passed": score == 1.0, "score": score}]}


def test_answers_are_read_item_by_item_and_not_all_at_once() -> None:
    read: list[int] = []

    def results() -> Iterator[ItemResult]:
        for position in range(6):
            number, sample = divmod(position, 2)
            read.append(position)
            fields = {"item_index": number, "sample_index": sample, "item": {"context": f"c{number}"}}
            yield ItemResult.model_validate(fields | {"answer": answer(1.0), "incumbent": answer(float(sample))})

    pairs = answer_pairs(results(), [EQUALS])
    first = next(pairs)
    assert read == [0, 1, 2], "the texts of the first item, and the beginning of the second"
    assert (first.item_index, first.context) == (0, "c0")
    assert [given.scores for given in first.incumbent] == [{"equals": 0.0}, {"equals": 1.0}]
    assert [pair.item_index for pair in pairs] == [1, 2]
