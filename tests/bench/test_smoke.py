"""Every bench runs all of its variants, at its smallest size, with its real peers and servers."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from uuid import uuid4

import pytest

pytestmark = [pytest.mark.bench, pytest.mark.timeout(660)]

ROOT = Path(__file__).resolve().parents[2]
SECONDS, END_SECONDS = 600, 20
RUNS = {
    "bench.data": (
        "C3-memory C3-report C3-near C3-errors C3-convert C3-convert-memory C2",
        "report|report-near|datasets|check|check-bad|orjson|pydantic|convert|report-lenient|  mens|  mens, tokenizers|  trl, 1 process|  trl, 2 processes",
    ),
    "bench.train": ("C1 C1-trl", "mens|hf|trl|TRL, tokens per CPU second: packed"),
    "bench.gpu --device cpu --size tiny": (
        "G1 G1-naive G2 G3-cache G3-nf4 G4 G4-estimate G5",
        "mens|mens-nf4|mens-cache|mens-bf16|mens-quiet|hf|trl-packed|trl-packed-large|trl-padding-free",
    ),
    "bench.merge": ("C4", "mens|peft-f32|peft-bf16"),
    "bench.equal_runs": ("T1", "two-threads"),
    "bench.gateway": ("C7 C7-names", "direct|gateway|bare|names|foreign"),
    "bench.gateway --vllm": ("C7", "direct|gateway|bare"),
    "bench.poll": ("C5 C5-load", "unchanged|changed|constant|quiet|busy"),
    "bench.evaluate": ("C9 C9-sandbox", "evaluation|bare client|sandbox,"),
    "bench.queue": ("C8 C8-poll", "bare|job|alone|queued"),
    "bench.hotload": (
        "C6",
        "direct: load and request|gateway: job finished, request|gateway, certified before|  job's last transaction",
    ),
}
"""By command: the goals of its JSON lines, and the first column of its tables."""
RunBench = Callable[..., str]


def processes_with(variable: str) -> list[int]:
    """Processes in whose environment a variable is set so."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if variable.encode() in (folder / "environ").read_bytes().split(b"\0"):
                found.append(int(folder.name))
        except OSError:  # it has ended, or is not ours
            continue
    return found


def wait_for_end(variable: str) -> list[int]:
    """Processes with a variable that are still there after some seconds."""
    deadline = time.monotonic() + END_SECONDS
    while (left := processes_with(variable)) and time.monotonic() < deadline:
        time.sleep(0.1)
    return left


@pytest.fixture
def run_bench(tmp_path: Path) -> RunBench:
    """Runs a bench with `--smoke`; returns its standard output. It must leave no process behind."""

    def run(*arguments: str) -> str:
        name, value = "MENS_BENCH_RUN", uuid4().hex
        output, errors = tmp_path / "stdout", tmp_path / "stderr"
        with output.open("wb") as out, errors.open("wb") as err:
            process = subprocess.Popen(
                [sys.executable, "-m", *arguments, "--smoke"],
                cwd=ROOT,
                env=os.environ | {name: value},
                stdout=out,
                stderr=err,
                start_new_session=True,
            )
        try:
            exit_code = process.wait(SECONDS)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGTERM)
            process.wait(END_SECONDS)
            raise
        finally:
            left = wait_for_end(f"{name}={value}")
            for pid in left:
                os.kill(pid, signal.SIGKILL)
        assert exit_code == 0, errors.read_text()[-3000:]
        assert not left
        return output.read_text()

    return run


@pytest.mark.parametrize("command", RUNS)
def test_smoke_run_has_every_variant_and_goal(run_bench: RunBench, command: str) -> None:
    expected, rows = RUNS[command]
    printed = run_bench(*command.split()).splitlines()
    goals = [json.loads(line) for line in printed if line.startswith("{")]
    assert {goal["goal"] for goal in goals} == set(expected.split())
    assert [goal for goal in goals if (goal["smoke"], goal["pass"]) != (True, None) or "target" not in goal] == []
    assert [row for row in rows.split("|") if not any(line.startswith(f"{row} ") for line in printed)] == []
