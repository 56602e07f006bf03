"""A bench's command line: exit codes, a goal's line, and the defaults of a smoke run."""

from __future__ import annotations

import json
import os
import signal
import sys

import pytest

from bench import data, gateway
from bench.harness.command import BenchFailed, PeerMissing, bench_parser, parse_options, print_goal, run_bench


def raiser(error: Exception):
    def bench() -> bool:
        raise error

    return bench


@pytest.mark.parametrize(("met", "code"), [(True, 0), (False, 1)])
def test_exit_code_says_whether_goals_are_met(met, code):
    assert run_bench(lambda: met) == code


def test_failed_variant_exits_1_with_its_message(capsys):
    assert run_bench(raiser(BenchFailed("hf has failed"))) == 1
    assert "hf has failed" in capsys.readouterr().err


def test_missing_peer_exits_2_with_its_message(capsys):
    assert run_bench(raiser(PeerMissing("not installed: trl"))) == 2
    assert "not installed: trl" in capsys.readouterr().err


def test_sigterm_runs_finally_blocks_and_restores_the_handler():
    before, stopped = signal.getsignal(signal.SIGTERM), []

    def bench() -> bool:
        try:
            os.kill(os.getpid(), signal.SIGTERM)
            signal.pause()
            return True
        finally:
            stopped.append(True)

    with pytest.raises(SystemExit) as ending:
        run_bench(bench)
    assert ending.value.code == 128 + signal.SIGTERM
    assert stopped
    assert signal.getsignal(signal.SIGTERM) == before


@pytest.mark.parametrize("met", [True, False])
def test_goal_line_has_ratio_target_and_verdict(capsys, met):
    assert print_goal("C1", ratio=4.7, target=4.0, met=met, smoke=False) is met
    assert json.loads(capsys.readouterr().out) == {"goal": "C1", "ratio": 4.7, "target": 4.0, "pass": met}


def test_goal_line_of_a_smoke_run_has_no_verdict(capsys):
    assert print_goal("C1", ratio=0.5, target=4.0, met=False, smoke=True)
    line = json.loads(capsys.readouterr().out)
    assert line == {"goal": "C1", "ratio": 0.5, "target": 4.0, "pass": None, "smoke": True}


@pytest.mark.parametrize(
    ("arguments", "rounds"), [([], 5), (["--smoke"], 1), (["--smoke", "--rounds", "3"], 3), (["--rounds", "3"], 3)]
)
def test_given_options_win_over_defaults_of_a_smoke_run(monkeypatch, arguments, rounds):
    monkeypatch.setattr(sys, "argv", ["bench", *arguments])
    parser = bench_parser("bench.data", None)
    parser.add_argument("--rounds", type=int, default=5)
    assert parse_options(parser, {"rounds": 1}).rounds == rounds


@pytest.mark.parametrize(
    ("bench", "arguments", "peer"),
    [
        (gateway, [], "aiohttp"),
        (gateway, ["--smoke"], "aiohttp"),
        (gateway, ["--vllm"], "vllm"),
        (data, ["--only", "validation"], "pydantic"),
        (data, ["--only", "preparation", "--smoke"], "fastokens"),
    ],
)
def test_bench_without_a_peer_names_it_and_exits_2(monkeypatch, capsys, bench, arguments, peer):
    monkeypatch.setattr(sys, "argv", ["bench", *arguments])
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name == peer else object())
    assert bench.main() == 2
    out, err = capsys.readouterr()
    assert f"not installed: {peer}. `make install`" in err
    assert not out
