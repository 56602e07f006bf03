"""Outcomes of a run's items, as scores and strings. Pure: the input is output items in OpenAI's shape, with our block
``mens``.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from shared.errors import Code, InvalidRequest
from shared.hashing import digest_json
from shared.statistics.paired import Comparison, compare, within_bounds
from shared.statistics.wins import WinRate, win_rate

OutputItem = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class ScoredPair:
    """An item on which two models were compared by a criterion."""

    item: OutputItem
    criterion: str
    old: float
    new: float


@dataclass(frozen=True, slots=True)
class PairedItems:
    """Items of two models, by criterion.

    Attributes:
        unpaired: items with a score on only one side.
        problems: number of answers by the reason why they could not be judged.
    """

    by_criterion: dict[str, list[ScoredPair]]
    unpaired: int
    problems: Counter[str] = field(default_factory=Counter)

    def comparisons(self, margin: float) -> dict[str, Comparison]:
        """Return the comparisons by criterion; ``margin`` is the allowed loss of the mean."""
        return {
            name: compare(
                *within_bounds([pair.old for pair in pairs], [pair.new for pair in pairs]),
                margin,
                # Several answers to one item carry little more information than one.
                groups=[pair.item["datasource_item_id"] for pair in pairs],
            )
            for name, pairs in self.by_criterion.items()
        }

    def win_rates(self) -> dict[str, WinRate]:
        """Return, for each criterion, how often the new model's score is higher."""
        return {
            name: win_rate(
                [pair.old for pair in pairs],
                [pair.new for pair in pairs],
                groups=[pair.item["datasource_item_id"] for pair in pairs],
            )
            for name, pairs in self.by_criterion.items()
        }


def scores(item: OutputItem) -> dict[str, float]:
    """Return the scores by criterion; a criterion that could not judge the answer is missing."""
    return {
        str(result["name"]): float(result["score"])
        for result in item["results"]
        if not (result.get("mens") or {}).get("error")
    }


def incumbent(item: OutputItem) -> OutputItem | None:
    """Return the second model's answer to the same item, in an output item's shape."""
    other_answer = (item.get("mens") or {}).get("incumbent")
    return other_answer if isinstance(other_answer, dict) else None


def pairs_within(items: Iterable[OutputItem]) -> PairedItems:
    """Return the pairs of one run with two models."""
    return _paired((item, incumbent(item), item) for item in items)


def pairs_between(old: Iterable[OutputItem], new: Iterable[OutputItem]) -> PairedItems:
    """Return the pairs of two runs, item by item.

    Raises:
        InvalidRequest: ``EVAL_ITEMS_INVALID``: they have no item in common.
    """
    before = {_key(item): item for item in old}
    after = list(new)
    common = [(item, before[_key(item)], item) for item in after if _key(item) in before]
    if not common:
        raise InvalidRequest(
            Code.EVAL_ITEMS_INVALID,
            "The two runs have no item in common, so they cannot be compared.",
            remedy="Run the same file with both models.",
        )
    paired = _paired(common)
    unpaired = paired.unpaired + len(before) + len(after) - 2 * len(common)
    return PairedItems(paired.by_criterion, unpaired, paired.problems)


def _paired(triples: Iterable[tuple[OutputItem, OutputItem | None, OutputItem]]) -> PairedItems:
    by_criterion: dict[str, list[ScoredPair]] = {}
    problems: Counter[str] = Counter()
    unpaired = 0
    for item, old, new in triples:
        before, after = scores(old) if old else {}, scores(new)
        both = before.keys() & after.keys()
        unpaired += not both
        problems.update(reason for side in (old, new) if side for reason in errors(side))
        for name in (name for name in after if name in both):
            by_criterion.setdefault(name, []).append(ScoredPair(item, name, before[name], after[name]))
    return PairedItems(by_criterion, unpaired, problems)


def _key(item: OutputItem) -> tuple[str, int]:
    return digest_json(item["datasource_item"]), int((item.get("mens") or {}).get("sample_index") or 0)


def lost(pairs: PairedItems) -> list[ScoredPair]:
    """Return pairs in which the new model is worse, the largest loss first."""
    worse = [pair for criterion_pairs in pairs.by_criterion.values() for pair in criterion_pairs if pair.new < pair.old]
    return sorted(worse, key=lambda pair: (pair.new - pair.old, pair.item["datasource_item_id"]))


def worst(items: Iterable[OutputItem]) -> list[OutputItem]:
    """Return items that did not pass, the lowest score first."""
    failed = [item for item in items if item["status"] != "pass"]
    return sorted(failed, key=lambda item: (sum(scores(item).values()), item["datasource_item_id"]))


def answer(item: OutputItem) -> str:
    """Return the content of an answer with its tool calls; the error if it has none."""
    sample = item.get("sample") or {}
    error, turns = sample.get("error"), sample.get("output") or []
    text = "".join(str(turn.get("content") or "") for turn in turns)
    calls = [call for turn in turns for call in turn.get("tool_calls") or []]
    if calls:
        text += json.dumps([call["function"] for call in calls], ensure_ascii=False)
    return f"{error.get('code')}: {error.get('message')}" if error and not text else text


def question(item: OutputItem) -> str:
    """Return the last turn that was sent; for an answer that a row contained, the item itself."""
    turns = (item.get("sample") or {}).get("input") or []
    return str(turns[-1]["content"]) if turns else json.dumps(item["datasource_item"], ensure_ascii=False)


def errors(item: OutputItem) -> list[str]:
    """Return each reason why criteria could not judge an answer, or why the answer is missing, once."""
    all_errors = [(item.get("sample") or {}).get("error")]
    all_errors += [(result.get("mens") or {}).get("error") for result in item["results"]]
    return list(dict.fromkeys(f"{error.get('code')}: {error.get('message')}" for error in all_errors if error))


def as_line(item: OutputItem) -> dict[str, Any]:
    """Return an item in its export form: the item, the answers, their scores."""
    second = incumbent(item)
    line = {
        "item": item["datasource_item"],
        "item_index": item["datasource_item_id"],
        "status": item["status"],
        "answer": answer(item),
        "scores": scores(item),
    }
    if problems := errors(item):
        line["errors"] = problems
    return line | ({"incumbent": {"answer": answer(second), "scores": scores(second)}} if second else {})
