"""The goals' lines of the bench of linear attention, without its steps."""

from __future__ import annotations

import json

import pytest

from bench.training import hybrid_step

pytestmark = pytest.mark.torch


def test_each_length_with_the_goal_has_its_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    seconds = {256: (1.0, 1.0), 1024: (1.0, 2.5), 4096: (2.0, 3.0)}
    monkeypatch.setattr(hybrid_step, "seconds_of_both", lambda tokens, rounds: seconds[tokens])
    monkeypatch.setattr("sys.argv", ["hybrid_step"])
    assert hybrid_step.main() == 1
    goals = [json.loads(line) for line in capsys.readouterr().out.splitlines() if line.startswith("{")]
    assert [(goal["goal"], goal["tokens"], goal["ratio"], goal["pass"]) for goal in goals] == [
        ("H1", 1024, 2.5, True),
        ("H1", 4096, 1.5, False),
    ]
    monkeypatch.setattr("sys.argv", ["hybrid_step", "--smoke"])
    assert hybrid_step.main() == 0
    assert '"smoke": true' in capsys.readouterr().out.splitlines()[-1]
