"""Items of runs as scores, pairs and texts."""

from __future__ import annotations

from typing import Any

import pytest

from cli.evaluation.run_items import answer, as_line, errors, lost, pairs_between, pairs_within, question, worst
from shared.errors import Code, InvalidRequest

REFUSED = {"code": "CONTEXT_LENGTH_EXCEEDED", "message": "Too long."}


def item(number: int, *results: Any, text: str = "4", status: str = "pass", **mens: Any) -> dict[str, Any]:
    """An output item; a result is (name, score), or (name, error)."""
    found = [
        {"name": name, "score": value, "passed": value == 1.0}
        if isinstance(value, float)
        else {"name": name, "score": 0.0, "passed": False, "mens": {"error": value}}
        for name, value in results
    ]
    sample = {"input": [{"role": "user", "content": f"{number}?"}], "output": [{"role": "assistant", "content": text}]}
    told = {"datasource_item_id": number, "datasource_item": {"q": number}, "status": status}
    return told | {"results": found, "sample": sample, "mens": mens}


def test_pairs_of_a_run_with_two_models() -> None:
    items = [
        item(0, ("exact", 1.0), incumbent=item(0, ("exact", 0.0))),
        item(1, ("exact", 0.0), incumbent=item(1, ("exact", 1.0))),
        item(2, ("exact", REFUSED), incumbent=item(2, ("exact", 1.0))),
        item(3, ("exact", 1.0)),
    ]
    found = pairs_within(items)
    assert [(pair.old, pair.new) for pair in found.by_criterion["exact"]] == [(0.0, 1.0), (1.0, 0.0)]
    assert found.unpaired == 2, "what could not be judged is no loss and no win"
    assert sum(found.problems.values()) == 1
    assert [pair.item["datasource_item_id"] for pair in lost(found)] == [1]
    comparison = found.comparisons(0.05)["exact"]
    assert (comparison.items, comparison.difference, comparison.status) == (2, 0.0, "missing_evidence")


def test_runs_are_paired_by_item_whatever_their_order() -> None:
    old = [item(0, ("a", 0.0)), item(1, ("a", 1.0)), item(2, ("a", 1.0))]
    new = [item(1, ("a", 0.5)), item(0, ("a", 1.0), ("b", 1.0)), item(7, ("a", 1.0))]
    found = pairs_between(old, new)
    assert [(pair.item["datasource_item_id"], pair.old, pair.new) for pair in found.by_criterion["a"]] == [
        (1, 1.0, 0.5),
        (0, 0.0, 1.0),
    ]
    assert set(found.by_criterion) == {"a"}, "a criterion of one run only compares nothing"
    assert found.unpaired == 2


def test_answers_to_one_item_are_paired_by_their_number() -> None:
    old = [item(0, ("a", 0.0), sample_index=0), item(0, ("a", 1.0), sample_index=1)]
    new = [item(0, ("a", 1.0), sample_index=1), item(0, ("a", 0.5), sample_index=0)]
    assert [(pair.old, pair.new) for pair in pairs_between(old, new).by_criterion["a"]] == [(1.0, 1.0), (0.0, 0.5)]


def test_several_answers_to_an_item_are_not_as_many_items() -> None:
    once = [item(number, ("a", number % 2.0), incumbent=item(number, ("a", 1.0 - number % 2))) for number in range(10)]
    often = [answered | {"mens": answered["mens"] | {"sample_index": n}} for answered in once for n in range(8)]
    few, many = (pairs_within(items).comparisons(0.05)["a"].interval for items in (once, often))
    assert few and many and many[0] == pytest.approx(few[0], abs=0.1)


def test_scores_of_a_range_of_their_own_are_compared_within_it() -> None:
    points = [(10.0 * (number % 2), 10.0 * (number % 3 == 0)) for number in range(60)]
    of_ten = [
        item(number, ("judge", new), incumbent=item(number, ("judge", old))) for number, (old, new) in enumerate(points)
    ]
    of_one = [
        item(number, ("judge", new / 10), incumbent=item(number, ("judge", old / 10)))
        for number, (old, new) in enumerate(points)
    ]
    assert pairs_within(of_ten).comparisons(0.05) == pairs_within(of_one).comparisons(0.05)


def test_runs_of_other_items_are_not_compared() -> None:
    with pytest.raises(InvalidRequest) as refused:
        pairs_between([item(0, ("a", 1.0))], [item(1, ("a", 1.0))])
    assert refused.value.code == Code.EVAL_ITEMS_INVALID


def test_worst_items_come_first_and_those_that_pass_never() -> None:
    items = [item(0, ("a", 1.0)), item(1, ("a", 0.5), status="fail"), item(2, ("a", 0.0), status="fail")]
    assert [each["datasource_item_id"] for each in worst(items)] == [2, 1]


def test_texts_have_prompts_and_answers() -> None:
    whole = item(0, ("a", 1.0))
    assert (question(whole), answer(whole)) == ("0?", "4")
    whole["sample"]["output"] = [{"content": None, "tool_calls": [{"function": {"name": "f", "arguments": "{}"}}]}]
    assert answer(whole) == '[{"name": "f", "arguments": "{}"}]'
    failed = item(0, text="", status="error", error=REFUSED)
    failed["sample"]["error"] = REFUSED
    assert answer(failed) == "CONTEXT_LENGTH_EXCEEDED: Too long."
    assert errors(failed) == ["CONTEXT_LENGTH_EXCEEDED: Too long."]
    failed["sample"] = {"input": [], "output": []}
    assert question(failed) == '{"q": 0}'


def test_exported_line_has_both_models() -> None:
    line = as_line(item(3, ("a", 1.0), incumbent=item(3, ("a", 0.0), text="5")))
    assert line == {
        "item": {"q": 3},
        "item_index": 3,
        "status": "pass",
        "answer": "4",
        "scores": {"a": 1.0},
        "incumbent": {"answer": "5", "scores": {"a": 0.0}},
    }
