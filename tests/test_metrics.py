"""docs/metrics.md names every metric of every tier as its registry has it, and nothing else."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.support.metric_names import MetricName, metric_names

PAGE = (Path(__file__).resolve().parents[1] / "docs" / "metrics.md").read_text()
ROW = re.compile(r"^\| `(mens_\w+)` \| (\w+) \| ([^|]+) \| (.+) \|$", re.MULTILINE)
NONE = "\N{EN DASH}"


def documented(tier: str) -> list[MetricName]:
    section = PAGE.partition(f"\n## {tier}\n")[2].partition("\n## ")[0]
    rows = ROW.findall(section)
    return [
        MetricName(name, kind, tuple(labels.split(", ")) if labels != NONE else (), text)
        for name, kind, labels, text in rows
    ]


@pytest.mark.parametrize("tier", ["API", "Worker", "Serving"])
def test_every_metric_is_documented_as_it_is(tier: str) -> None:
    assert documented(tier) == metric_names()[tier]


def test_names_are_prometheus_own_style() -> None:
    for metric in (metric for tier in metric_names().values() for metric in tier):
        assert re.fullmatch(r"mens_[a-z_]+", metric.name)
        assert metric.help.endswith("."), metric.name
        assert (metric.type == "counter") == metric.name.endswith("_total"), metric.name


def test_no_two_tiers_have_a_metric_of_one_name() -> None:
    names = [metric.name for tier in metric_names().values() for metric in tier]
    assert len(names) == len(set(names))
