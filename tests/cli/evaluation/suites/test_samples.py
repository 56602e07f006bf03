"""The files that lm-evaluation-harness writes, read as paired scores of items."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from cli.evaluation.suites.samples import Metric, paired, read_scores
from shared.errors import ArtifactInvalid, Code, InvalidRequest

TIME = "2026-11-23T00-59-15.800405"


def line(number: int, **more: Any) -> dict[str, Any]:
    """One line of the harness's item log, as release 0.4.13 writes it."""
    digests = {"doc_hash": f"doc-{number}", "prompt_hash": f"prompt-{number}", "target_hash": f"target-{number}"}
    told = {"doc_id": number, "doc": {"question": f"{number}?"}, "target": "0", "filter": "none", "filtered_resps": []}
    return told | digests | {"metrics": ["acc"], "acc": 1.0} | more


def write(folder: Path, lines: list[dict[str, Any]], *, higher: dict[str, bool] | None = None) -> Path:
    inner = folder / "model"
    inner.mkdir(parents=True)
    results = {
        "results": {"my_task": {"alias": "my_task", "acc,none": 0.5, "acc_stderr,none": 0.1, "sample_len": 2}},
        "higher_is_better": {"my_task": {"acc": True} if higher is None else higher},
    }
    (inner / f"results_{TIME}.json").write_text(json.dumps(results))
    (inner / f"samples_my_task_{TIME}.jsonl").write_text("".join(json.dumps(each) + "\n" for each in lines))
    return folder


ACC = Metric("my_task", "none", "acc")


def test_items_have_their_scores_and_the_task_its_figure(tmp_path: Path) -> None:
    found = read_scores(write(tmp_path, [line(0), line(1, acc=0.0)]))
    assert list(found.by_metric[ACC].values()) == [1.0, 0.0]
    assert found.totals == {ACC: 0.5}
    assert found.left_out == {}


@pytest.mark.parametrize(
    ("more", "higher", "reason"),
    [
        ({"acc": [1, 2]}, None, "no number"),
        ({"acc": float("nan")}, None, "no number"),
        ({"acc": 1.5}, None, "from 0 to 1"),
        ({}, {"acc": False}, "lower is better"),
        ({}, {}, "does not say"),
    ],
)
def test_what_is_not_a_score_is_left_out_with_its_reason(tmp_path: Path, more, higher, reason) -> None:
    found = read_scores(write(tmp_path, [line(0), line(1, **more)], higher=higher))
    assert ACC not in found.by_metric, "a metric of some items only would be another metric"
    assert reason in found.left_out[ACC]


def test_items_are_paired_whatever_their_order(tmp_path: Path) -> None:
    old = read_scores(write(tmp_path / "old", [line(0, acc=0.0), line(1)]))
    new = read_scores(write(tmp_path / "new", [line(1, acc=0.0), line(0)]))
    ((metric, pairs),) = paired(old, new)
    assert metric == ACC
    assert [(key[0], before, after) for key, before, after in pairs] == [(0, 0.0, 1.0), (1, 1.0, 0.0)]


@pytest.mark.parametrize("other", [line(1, prompt_hash="else"), line(1, doc_hash="else"), line(2)])
def test_runs_with_different_prompts_are_not_compared(tmp_path: Path, other) -> None:
    old = read_scores(write(tmp_path / "old", [line(0), line(1)]))
    new = read_scores(write(tmp_path / "new", [line(0), other]))
    with pytest.raises(InvalidRequest) as refused:
        list(paired(old, new))
    assert refused.value.code == Code.SUITE_ITEMS_DIFFER


def test_each_filter_is_a_metric_of_its_own(tmp_path: Path) -> None:
    found = read_scores(write(tmp_path, [line(0), line(0, filter="strict", acc=0.0)]))
    assert {metric.filter for metric in found.by_metric} == {"none", "strict"}


def test_folder_without_one_result_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ArtifactInvalid) as refused:
        read_scores(tmp_path)
    assert refused.value.code == Code.SUITE_OUTPUT_INVALID
    write(tmp_path / "a", [line(0)])
    write(tmp_path / "b", [line(0)])
    with pytest.raises(ArtifactInvalid):
        read_scores(tmp_path)
    (tmp_path / "a" / "model" / f"samples_my_task_{TIME}.jsonl").write_text("{}\n")
    with pytest.raises(ArtifactInvalid):
        read_scores(tmp_path / "a")
