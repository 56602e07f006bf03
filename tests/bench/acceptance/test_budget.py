"""The parts of a stage within its time: the command names parts that were not done, failed or missed a goal, and then
fails.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from typing import Any

import pytest

from bench.acceptance.budget import StageWork, run_work
from bench.acceptance.results import Goal, PartResult
from bench.harness.command import BenchFailed, PeerMissing
from bench.harness.processes import VariantFailed


def measured(figure: float = 1.0, at_most: bool = True) -> PartResult:
    return PartResult({"ms": figure}, [Goal("A", figure, 1.0, at_most=at_most)])


def printed(capsys: pytest.CaptureFixture[str]) -> tuple[dict[str, str], list[dict[str, Any]]]:
    """The table's rows by part, and the lines of JSON."""
    lines = capsys.readouterr().out.splitlines()
    table = lines[next(at for at, line in enumerate(lines) if line.startswith("part ")) + 1 :]
    return {line.split()[0]: line for line in table if line[0] != "{"}, [json.loads(x) for x in table if x[0] == "{"]


def test_a_stage_whose_goals_are_met_passes(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_work("s", StageWork({"one": measured, "two": measured}), smoke=False)
    rows, goals = printed(capsys)
    assert list(rows) == ["one", "two"]
    assert "ms 1" in rows["one"]
    assert [(goal["goal"], goal["pass"]) for goal in goals] == [("A", True)] * 2


@pytest.mark.parametrize(
    ("figure", "at_most"), [(1.1, True), (0.9, False), (float("nan"), True), (float("nan"), False)]
)
def test_a_goal_that_is_missed_fails_the_stage(figure: float, at_most: bool) -> None:
    assert not run_work("s", StageWork({"one": lambda: measured(figure, at_most)}), smoke=False)


def test_a_stage_that_is_cut_says_what_it_did_not_do(capsys: pytest.CaptureFixture[str]) -> None:
    """The part that is cut waits for a process, which is killed."""
    concluded = []

    def endless() -> PartResult:
        subprocess.run([sys.executable, "-c", "import time; time.sleep(600)"], check=True)
        raise AssertionError

    def conclude() -> bool:
        concluded.append(True)
        return True

    began = time.monotonic()
    assert not run_work(
        "s", StageWork({"one": measured, "two": endless, "three": measured}, conclude), smoke=False, seconds=1
    )
    assert time.monotonic() - began < 60
    rows, lines = printed(capsys)
    assert ["not run" in rows[name] for name in ("one", "two", "three")] == [False, True, True]
    assert lines[-1] == {"stage": "s", "not_done": ["two", "three"], "pass": False}
    assert concluded


@pytest.mark.parametrize(
    ("failure", "reason"),
    [
        (VariantFailed("m", "before\nCUDA error: no kernel image"), "CUDA error: no kernel image"),
        (PeerMissing("not installed: trl."), "not installed: trl."),
    ],
)
def test_a_part_that_fails_does_not_end_the_others(
    capsys: pytest.CaptureFixture[str], failure: Exception, reason: str
) -> None:
    def fail() -> PartResult:
        raise failure

    work = StageWork({"one": fail, "two": measured})
    assert not run_work("s", work, smoke=False)
    rows, lines = printed(capsys)
    assert rows["one"].endswith(f"failed: {reason}")
    assert (lines[0]["goal"], lines[-1]["not_done"]) == ("A", ["one"])
    with pytest.raises((BenchFailed, PeerMissing)):
        run_work("s", work, smoke=True)


def test_what_the_parts_show_together_can_fail_the_stage() -> None:
    assert not run_work("s", StageWork({"one": measured}, lambda: False), smoke=False)
