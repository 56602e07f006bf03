"""A run's page: what passed and by how much, the smallest detectable difference, and the worst items."""

from __future__ import annotations

from typing import Any

import pytest

from cli.evaluation.run_items import pairs_within
from cli.evaluation.run_page import print_comparison, print_run


def item(number: int, new: float, old: float | None = None, text: str = "five") -> dict[str, Any]:
    def answered(score: float, said: str) -> dict[str, Any]:
        return {
            "datasource_item_id": number,
            "datasource_item": {"expected": "four"},
            "status": "pass" if score == 1 else "fail",
            "results": [{"name": "exact", "score": score, "passed": score == 1}],
            "sample": {"input": [{"role": "user", "content": f"{number}?"}], "output": [{"content": said}]},
        }

    mens = {} if old is None else {"incumbent": answered(old, "four")}
    return answered(new, text) | {"mens": mens}


def run(passed: int, failed: int) -> dict[str, Any]:
    counts = {"total": passed + failed, "passed": passed, "failed": failed, "errored": 0}
    criterion = {"testing_criteria": "exact", "passed": passed, "failed": failed}
    return {"id": "r", "model": "demo", "result_counts": counts, "per_testing_criteria_results": [criterion]}


def test_one_model_has_a_rate_with_its_interval_and_its_worst_items(capsys: pytest.CaptureFixture[str]) -> None:
    items = [*(item(number, 1.0) for number in range(8)), item(8, 0.0), item(9, 0.0)]
    print_run(run(8, 2), items, shown=1)
    printed = capsys.readouterr().out
    assert "demo: 8 of 10 passed, 2 failed, 0 could not be judged" in printed
    assert "exact\t8\t2\t0.800\t0.490 … 0.943\t0.800" in printed
    assert "item 8  fail  exact 0.000" in printed
    assert "  expected  four\n  answer    five" in printed
    assert "1 more did not pass" in printed
    assert "item 9" not in printed


@pytest.mark.parametrize(
    ("items", "shown", "verdict", "lines"),
    [
        ([item(number, 1.0, 0.0) for number in range(100)], True, "not worse", []),
        (
            [item(number, 0.0, 1.0) for number in range(100)],
            False,
            "worse",
            ["item 0  exact 1.000 → 0.000", "old       four"],
        ),
        ([item(0, 1.0, 1.0)], False, "too few items", ["items would decide"]),
        (
            [item(0, 1.0, 1.0), item(1, 0.0, 0.0)],
            False,
            "too few items",
            [
                "new is not worse on any item; 1 answer of it did not pass",
                "item 1  fail",
                "answer    five",
                "old       four",
            ],
        ),
    ],
)
def test_comparison_says_what_it_shows(
    capsys: pytest.CaptureFixture[str], items: list[dict[str, Any]], shown: bool, verdict: str, lines: list[str]
) -> None:
    assert print_comparison("old@1", "new@1", pairs_within(items), 0.03) is shown
    printed = capsys.readouterr().out
    assert f"\t{verdict}\n" in printed
    assert [line for line in lines if line not in printed] == []


def test_nothing_in_common_is_not_shown_to_be_as_good(capsys: pytest.CaptureFixture[str]) -> None:
    assert print_comparison("old@1", "new@1", pairs_within([item(0, 1.0)]), 0.03) is False
    assert print_comparison("old@1", "new@1", pairs_within([item(0, 0.0, 0.0)]), 0.03, shown=0) is False
    assert "five" not in capsys.readouterr().out, "no item is wanted"
    assert print_comparison("old@1", "new@1", pairs_within([item(0, 1.0)]), 0.03) is False
    assert "not compared: 1 item that only one model has" in capsys.readouterr().out


def test_several_answers_to_an_item_narrow_no_interval(capsys: pytest.CaptureFixture[str]) -> None:
    items = [item(number % 10, float(number % 10 < 8)) for number in range(80)]
    print_run(run(64, 16), items, shown=0)
    # As of ten answers, and not of eighty.
    header, row = (line.split("\t") for line in capsys.readouterr().out.splitlines()[1:3])
    interval = dict(zip(header, row, strict=True))["95 %"]
    low, high = map(float, interval.split(" … "))
    assert low < 0.5
    assert high > 0.93


def test_win_rate_is_reported_with_its_interval(capsys: pytest.CaptureFixture[str]) -> None:
    pairs = pairs_within([item(number, float(number < 9), float(number == 9)) for number in range(12)])
    print_comparison("old", "new", pairs, 0.03, shown=0)
    assert "exact: win rate of new 0.833 (9 won, 2 tied, 1 lost; 95 % each end 0." in capsys.readouterr().out


def test_difference_is_reported_with_the_old_models_own(capsys: pytest.CaptureFixture[str]) -> None:
    pairs = pairs_within([item(number, 1.0, float(number != 0)) for number in range(100)])
    print_comparison("old", "new", pairs, 0.03, noise_floors={"exact": 0.02})
    assert "exact: two runs of old differ by 0.020; the difference is noise" in capsys.readouterr().out
    print_comparison("old", "new", pairs, 0.03, noise_floors={"exact": 0.0})
    assert "the difference is larger, but with 100 items it may be chance (p = 1)" in capsys.readouterr().out
    pairs = pairs_within([item(number, 1.0, float(number > 9)) for number in range(100)])
    print_comparison("old", "new", pairs, 0.03, noise_floors={"exact": 0.0})
    assert "the difference is larger than noise" in capsys.readouterr().out
