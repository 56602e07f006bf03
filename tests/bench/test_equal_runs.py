"""The goal of equal runs: one outcome per job, and at least two runs of it that claim equal bytes."""

from __future__ import annotations

import json

import pytest

from bench.equal_runs import COMPARED, EqualRun, report
from bench.harness.command import BenchFailed

EXACT, OTHER = EqualRun("a" * 64, "bit_exact", 1), EqualRun("a" * 64, "state_exact", 1)
TWICE = [("plain", EXACT), ("plain", EXACT)]


def test_two_exact_runs_with_equal_bytes_meet_it(capsys):
    assert report(TWICE, wanted_exact=COMPARED, smoke=False)
    goal = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (goal["outcomes_of_a_job"], goal["fewest_bit_exact_runs"], goal["pass"]) == (1, 2, True)


def test_other_bytes_miss_it():
    assert not report([*TWICE, ("plain", EqualRun("b" * 64, "bit_exact"))], wanted_exact=COMPARED, smoke=False)


@pytest.mark.parametrize("outcomes", [[OTHER, OTHER], [EXACT, OTHER]], ids=["none", "one"])
def test_a_job_without_two_exact_runs_misses_it(outcomes):
    runs = [*TWICE, *(("two-threads", outcome) for outcome in outcomes)]
    assert not report(runs, wanted_exact=COMPARED, smoke=False)
    with pytest.raises(BenchFailed, match="a comparison needs"):
        report(runs, wanted_exact=COMPARED, smoke=True)


def test_runs_with_mkls_defaults_need_not_be_exact():
    assert report([("plain", OTHER), ("plain", OTHER)], wanted_exact=0, smoke=False)
