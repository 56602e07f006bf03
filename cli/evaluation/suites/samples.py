"""Results of lm-evaluation-harness for each item, as scores that can be paired: the harness's own comparison of two
models is not paired.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from shared.errors import ArtifactInvalid, Code, InvalidRequest

ItemKey = tuple[int, str, str, str]
"""Number of the item in its task, and digests of the item, of its prompt and of its target."""


@dataclass(frozen=True, slots=True, order=True)
class Metric:
    """A metric of a task. ``filter`` names the step that processes answers before scoring, usually ``none``."""

    task: str
    filter: str
    name: str


@dataclass(slots=True)
class SuiteScores:
    """Scores of one model.

    Attributes:
        by_metric: a score from 0 to 1, higher is better, for each item.
        left_out: metrics without such a score for an item, each with the reason.
        totals: the harness's own figure for each metric.
        items: the item itself, by task and key.
    """

    by_metric: dict[Metric, dict[ItemKey, float]] = field(default_factory=dict)
    left_out: dict[Metric, str] = field(default_factory=dict)
    totals: dict[Metric, float] = field(default_factory=dict)
    items: dict[tuple[str, ItemKey], dict[str, Any]] = field(default_factory=dict)


def read_scores(output: Path) -> SuiteScores:
    """Read the results that one run of the harness wrote into its output folder.

    Raises:
        ArtifactInvalid: ``SUITE_OUTPUT_INVALID``: no results, several, or an invalid line.
    """
    results = sorted(output.rglob("results_*.json"))
    if len(results) != 1:
        raise _invalid(f"{output} has {len(results)} result files of lm-evaluation-harness, not one.")
    try:
        report = json.loads(results[0].read_bytes())
        suite_scores = SuiteScores()
        for path in sorted(results[0].parent.glob("samples_*.jsonl")):
            # samples_TASK_TIME.jsonl, and a task's name may have an underscore
            task = path.stem.removeprefix("samples_").rpartition("_")[0]
            with path.open(encoding="utf-8") as lines:
                for line in lines:
                    _take(suite_scores, task, json.loads(line), report.get("higher_is_better", {}).get(task, {}))
    except (ValueError, KeyError, TypeError) as error:
        raise _invalid(f"{results[0].parent} cannot be read: {type(error).__name__}: {error}.") from error
    for metric in suite_scores.by_metric.keys() & suite_scores.left_out.keys():
        del suite_scores.by_metric[metric]
    for task, figures in report["results"].items():
        for key, value in figures.items():
            name, comma, chosen = key.partition(",")
            if comma and isinstance(value, int | float) and not name.endswith("_stderr"):
                suite_scores.totals[Metric(task, chosen, name)] = float(value)
    return suite_scores


def paired(old: SuiteScores, new: SuiteScores) -> Iterator[tuple[Metric, list[tuple[ItemKey, float, float]]]]:
    """Yield, for every metric that both models have, each item with its old and new score, in the task's order.

    Raises:
        InvalidRequest: ``SUITE_ITEMS_DIFFER``: the models did not get the same items.
    """
    for metric in sorted(old.by_metric.keys() | new.by_metric.keys()):
        before, after = old.by_metric.get(metric, {}), new.by_metric.get(metric, {})
        if before.keys() != after.keys():
            differing = len(before.keys() ^ after.keys())
            raise InvalidRequest(
                Code.SUITE_ITEMS_DIFFER,
                f"{metric.task}: {differing} items or prompts differ between the models, so they cannot be paired.",
                remedy="Run both with the same tasks, data, tokenizer and limit.",
            )
        yield metric, [(key, before[key], after[key]) for key in sorted(before)]


def _take(suite_scores: SuiteScores, task: str, line: Mapping[str, Any], higher: Mapping[str, bool]) -> None:
    key = (int(line["doc_id"]), line["doc_hash"], line["prompt_hash"], line["target_hash"])
    suite_scores.items[task, key] = {name: line.get(name) for name in ("doc", "target", "filtered_resps")}
    for name in line["metrics"]:
        metric = Metric(task, line["filter"], name)
        if reason := _no_score(line[name], higher.get(name)):
            suite_scores.left_out[metric] = reason
        else:
            suite_scores.by_metric.setdefault(metric, {})[key] = float(line[name])


def _no_score(value: Any, higher_is_better: bool | None) -> str:
    """Return why a value is not a score from 0 to 1; empty if it is one."""
    if higher_is_better is not True:
        return "lower is better, or the task does not say"
    if not isinstance(value, int | float) or not math.isfinite(value):
        return "it has no number for each item"
    return "" if 0 <= value <= 1 else "its values are not from 0 to 1"


def _invalid(message: str) -> ArtifactInvalid:
    return ArtifactInvalid(Code.SUITE_OUTPUT_INVALID, message, remedy="Run the suite again, into an empty folder.")
