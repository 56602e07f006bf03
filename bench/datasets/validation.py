"""The report on a training file, compared with only loading it with ``datasets`` (goal C3); run by ``python -m
bench.data``.

For each corpus of ``bench/datasets/corpora.py``, every variant reads the same file in a separate process, in turns (A B
C A B C …), and medians are compared. A process's start and imports are not counted. The goal applies to every corpus.
The table also shows plain parsers, pydantic and the pass that only checks rows; these have no goal. Speeds per CPU
second, summed over all threads and processes, are shown too: they do not depend on the machine's other load.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import tempfile
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path

from bench.datasets.corpora import CORPORA, write_file
from bench.harness.command import BenchFailed, print_goal
from bench.harness.peers import peers_python, require
from bench.harness.processes import Processes, variant_processes

MEMORY_CORPUS = "export"
MEMORY_LIMIT = 120_000_000
PEERS = ("orjson", "datasets")
VARIANTS = ("report", "report-near", "datasets", "check", "check-bad", "orjson", "pydantic")
GOALS = (
    ("C3-report", "report", "datasets", 1.0),
    ("C3-near", "report-near", "datasets", 1.0),
    ("C3-errors", "check-bad", "check", 0.5),
)
PRELOADED = ("datasets", "orjson", "pydantic", "shared.datasets.report")
Speeds = dict[str, dict[str, list[float]]]
"""Megabytes per second of every round, by clock (``seconds``, ``cpu_seconds``) and variant."""


class Validation:
    """Measures the variants on corpora.

    Args:
        size: size of a file in bytes.
        rounds: rounds of each variant.
        smoke: whether goals are not judged.

    Raises:
        PeerMissing: a library that a variant needs is not installed.
    """

    def __init__(self, size: int, rounds: int, *, smoke: bool) -> None:
        require("pydantic")
        self._size, self._rounds, self._smoke = size, rounds, smoke
        self._peers = peers_python()

    def compare(self, corpora: Sequence[str]) -> bool:
        """Measure all variants on all corpora, print the tables and the goals.

        Returns:
            whether every goal is met on every corpus.
        """
        with self._processes() as processes:
            speeds = {name: self._measure(processes, name) for name in corpora}
        print(f"{self._rounds} rounds, {self._size / 1e6:.0f} MB per file; median (lowest-highest)")
        for clock, unit in (("seconds", "MB/s"), ("cpu_seconds", "MB per CPU second")):
            print(f"\n{unit:<18}" + "".join(f"{name:>20}" for name in corpora))
            for variant in VARIANTS:
                rounds = [speeds[name][clock][variant] for name in corpora]
                cells = [f"{statistics.median(ones):.0f} ({min(ones):.0f}-{max(ones):.0f})" for ones in rounds]
                print(f"{variant:<18}" + "".join(f"{cell:>20}" for cell in cells))
        met = [self._goal(name, speeds[name], *goal) for name in corpora for goal in GOALS]
        return all(met)

    def report_memory(self) -> bool:
        """Stream one file and report how much memory the process took."""
        with tempfile.TemporaryDirectory() as folder, self._processes() as processes:
            path = Path(folder) / "good.jsonl"
            lines = write_file(path, CORPORA[MEMORY_CORPUS], self._size)
            facts = self._run(processes, "check", path, lines)
            print(f"{path.stat().st_size / 1e6:.0f} MB in {facts['seconds']:.1f} s, {facts['rows']:.0f} rows")
        print(f"peak RSS {facts['peak_bytes'] / 1e6:.1f} MB, including {facts['grown_bytes'] / 1e6:.1f} MB for reading")
        met = facts["peak_bytes"] <= MEMORY_LIMIT
        return print_goal("C3-memory", corpus=MEMORY_CORPUS, **facts, target=MEMORY_LIMIT, met=met, smoke=self._smoke)

    def _processes(self) -> AbstractContextManager[Processes]:
        return variant_processes(smoke=self._smoke, python=self._peers, preloaded=PRELOADED)

    def _measure(self, processes: Processes, corpus: str) -> Speeds:
        """Return the speeds of all variants on one corpus, run in turns."""
        speeds: Speeds = {clock: {variant: [] for variant in VARIANTS} for clock in ("seconds", "cpu_seconds")}
        with tempfile.TemporaryDirectory() as folder:
            good, bad = Path(folder) / "good.jsonl", Path(folder) / "bad.jsonl"
            lines = write_file(good, CORPORA[corpus], self._size)
            bad_lines = write_file(bad, CORPORA[corpus], self._size, bad_every=100)
            for _ in range(self._rounds):
                for variant in VARIANTS:
                    path, expected_lines = (bad, bad_lines) if variant == "check-bad" else (good, lines)
                    facts = self._run(processes, variant, path, expected_lines)
                    for clock, values in speeds.items():
                        values[variant].append(path.stat().st_size / 1e6 / facts[clock])
        return speeds

    def _run(self, processes: Processes, variant: str, path: Path, lines: int) -> dict[str, float]:
        """Return one variant's measurements on a file.

        Raises:
            BenchFailed: it did not read every line.
        """
        python = self._peers if variant in PEERS else Path(sys.executable)
        output = processes.run(python, "bench.datasets.data_variants", variant, str(path), **environment_of(variant))
        facts: dict[str, float] = json.loads(output.splitlines()[-1])
        if facts["rows"] != lines:
            raise BenchFailed(f"{variant} read {facts['rows']} of {lines} lines")
        return facts

    def _goal(self, corpus: str, speeds: Speeds, name: str, ours: str, theirs: str, target: float) -> bool:
        ratio, cpu_ratio = (
            statistics.median(by_variant[ours]) / statistics.median(by_variant[theirs])
            for by_variant in speeds.values()
        )
        facts = {"corpus": corpus, "ratio": round(ratio, 2), "cpu_ratio": round(cpu_ratio, 2)}
        return print_goal(name, **facts, target=target, met=ratio >= target, smoke=self._smoke)


def environment_of(variant: str) -> dict[str, str]:
    """Return additions to a variant's environment: the peer may use every processor, as the report does."""
    return {"OMP_NUM_THREADS": str(len(os.sched_getaffinity(0)))} if variant == "datasets" else {}
