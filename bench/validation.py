"""Validation of training files beside what others do (goal C3); run by ``python -m bench.data``.

For each corpus of ``bench/corpora.py``, every lane reads the same file in a process of its own, in turns (A B C A B C …),
and medians are compared. A process's start and imports are not counted. The goal is set on the corpus ``export``; the
others are shown beside it and do not decide. Speeds per CPU second, of all threads, are shown too: they stay the same on
a machine that has other work.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from bench.corpora import CORPORA, write_file
from bench.venv import ensure_venv

ROOT = Path(__file__).resolve().parents[1]
GOAL_CORPUS = "export"
DEFAULT_CORPORA = ("plain", "short", "export")
MEMORY_LIMIT = 120_000_000
PEERS = ("orjson", "datasets")
LANES = ("mens", "mens-bad", "orjson", "pydantic", "datasets", "report")
GOALS = (
    ("C3-datasets", "mens", "datasets", 5.0),
    ("C3-pydantic", "mens", "pydantic", 10.0),
    ("C3-orjson", "mens", "orjson", 1.0),
    ("C3-errors", "mens-bad", "mens", 0.5),
)
Speeds = dict[str, dict[str, list[float]]]
"""Megabytes per second of every round: by clock (``seconds``, ``cpu_seconds``) and lane."""


def run(rounds: int, size: int = 200_000_000, corpora: Sequence[str] = DEFAULT_CORPORA) -> bool:
    """Measure all lanes on all corpora, print the tables and the goals.

    Returns:
        Whether every goal is met on the goal's corpus; True when that is not among ``corpora``.
    """
    python = str(ensure_venv())
    found = {name: measure(name, size, rounds, python) for name in corpora}
    print(f"{rounds} rounds, {size / 1e6:.0f} MB a file; median (lowest-highest)")
    for clock, unit in (("seconds", "MB/s"), ("cpu_seconds", "MB per CPU second")):
        print(f"\n{unit:<18}" + "".join(f"{name:>20}" for name in corpora))
        for lane in LANES:
            print(f"{lane:<18}" + "".join(f"{_cell(found[name][clock][lane]):>20}" for name in corpora))
    passed = {name: [goal(name, speeds, *wanted) for wanted in GOALS] for name, speeds in found.items()}
    return all(passed.get(GOAL_CORPUS, []))


def measure(name: str, size: int, rounds: int, python: str) -> Speeds:
    """All lanes on one corpus, in turns.

    Args:
        python: the interpreter that has the peers.
    """
    speeds: Speeds = {clock: {lane: [] for lane in LANES} for clock in ("seconds", "cpu_seconds")}
    with tempfile.TemporaryDirectory() as folder:
        good, bad = Path(folder) / "good.jsonl", Path(folder) / "bad.jsonl"
        write_file(good, CORPORA[name], size)
        write_file(bad, CORPORA[name], size, bad_every=100)
        for _ in range(rounds):
            for lane in LANES:
                path = bad if lane == "mens-bad" else good
                facts = run_lane(python if lane in PEERS else sys.executable, lane, path)
                for clock, values in speeds.items():
                    values[lane].append(path.stat().st_size / 1e6 / facts[clock])
    return speeds


def goal(corpus: str, speeds: Speeds, name: str, ours: str, theirs: str, target: float) -> bool:
    ratio, cpu_ratio = (
        statistics.median(by_lane[ours]) / statistics.median(by_lane[theirs]) for by_lane in speeds.values()
    )
    fact = {"goal": name, "corpus": corpus, "ratio": round(ratio, 2), "cpu_ratio": round(cpu_ratio, 2)}
    print(json.dumps({**fact, "target": target, "pass": ratio >= target}))
    return ratio >= target


def report_memory(size: int) -> bool:
    """Stream one file of the goal's corpus and report how far the process grew."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "good.jsonl"
        write_file(path, CORPORA[GOAL_CORPUS], size)
        facts = run_lane(sys.executable, "mens", path)
        print(f"{path.stat().st_size / 1e6:.0f} MB in {facts['seconds']:.1f} s, {facts['rows']:.0f} rows")
    print(f"peak RSS {facts['peak_bytes'] / 1e6:.1f} MB, of which reading {facts['grown_bytes'] / 1e6:.1f} MB")
    passed = facts["peak_bytes"] <= MEMORY_LIMIT
    print(json.dumps({"goal": "C3-memory", "corpus": GOAL_CORPUS, **facts, "target": MEMORY_LIMIT, "pass": passed}))
    return passed


def run_lane(python: str, lane: str, path: Path) -> dict[str, float]:
    command = [python, str(ROOT / "bench" / "data_lanes.py"), lane, str(path)]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    facts: dict[str, float] = json.loads(run.stdout.splitlines()[-1])
    return facts


def _cell(speeds: list[float]) -> str:
    return f"{statistics.median(speeds):.0f} ({min(speeds):.0f}-{max(speeds):.0f})"
