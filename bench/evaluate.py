"""Overhead of an evaluation beyond its requests (goal C9): a run of 2,000 items, compared with the same requests from a
bare client.

    python -m bench.evaluate [--rounds 3] [--items 2000] [--answer-ms 100]

The API runs as ``python -m api`` in front of a fake replica that answers each chat after a set time. In turns, a worker
executes a run with a trivial grader (from claim to success: every item requested, judged and stored), and a client with
the same number of connections sends the same bodies and reads the answers' texts. The bench also measures items per
second of a trivial Python grader in the sandbox.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from bench.harness.command import BenchFailed, bench_parser, parse_options, print_goal, run_bench
from bench.harness.peers import require
from bench.harness.processes import NewProcesses
from bench.serving.gateway_variants import FakeInstallation
from shared.artifacts.folder_storage import FolderStorage
from shared.database.connection import Database
from shared.database.evaluation.evals import Evals
from shared.database.jobs import Jobs
from shared.database.records import Kind, Submission
from shared.evaluation.plan import ModelTarget, PlannedItems, plan_run
from shared.evaluation.prompts import messages_of, request_of
from shared.evaluation.types import EvalSpec, RunSpec
from shared.sandbox.client import Sandbox
from shared.sandbox.probe import probe
from shared.settings import Settings

MAX_RATIO, MIN_GRADED = 1.1, 200.0
SMOKE = {"rounds": 1, "items": 24, "answer_ms": 5.0, "graded": 20, "warm_up": 8}
SOURCE = "def grade(sample, item):\n    return float(sample['output_text'] == item['expected'])\n"
CRITERION = {
    "type": "string_check",
    "name": "exact",
    "input": "{{ sample.output_text }}",
    "reference": "{{ item.expected }}",
    "operation": "eq",
}
MODULE = "bench.serving.evaluate_variants"


class Evaluations:
    """Runs on an installation.

    Args:
        installation: fake replica and API.
        home: the installation's home folder.
        concurrency: concurrent requests of the worker and of the client.
    """

    def __init__(self, installation: FakeInstallation, home: Path, concurrency: int) -> None:
        self._installation, self._home, self._concurrency = installation, home, concurrency
        self._database = Database(Settings(home=home).database_url)
        self._eval = Evals(self._database).create("bench", {}, {}).id
        self._processes = NewProcesses()

    def evaluate(self, items: int) -> float:
        """Return the duration of a run in seconds."""
        plan = self._plan(items)
        submission = Submission(
            kind=Kind.EVALUATE,
            base_model=self._installation.alias,
            name="bench",
            contract={},
            plan=plan.model_dump(mode="json"),
            eval_id=self._eval,
        )
        job, _ = Jobs(self._database).submit(submission)
        return self._seconds("evaluate", job.id)

    def client(self, items: int) -> float:
        """Return the duration of the same requests alone, in seconds."""
        plan = self._plan(items)
        assert plan.input_messages
        bodies = [
            request_of(plan, plan.models[0], messages_of(plan.input_messages, row["item"]), 0) for row in _rows(items)
        ]
        path = self._home / "bodies.json"
        path.write_text(json.dumps(bodies))
        return self._seconds("client", str(path), str(self._concurrency))

    def _plan(self, items: int) -> Any:
        storage = FolderStorage(Settings(home=self._home).storage_dir)
        with storage.writer() as writer:
            writer.write(b"".join(json.dumps(row).encode() + b"\n" for row in _rows(items)))
            sha256 = writer.finish()
            writer.commit()
        template = {"type": "template", "template": [{"role": "user", "content": "{{ item.question }}"}]}
        source = {
            "type": "completions",
            "source": {"type": "file_id", "id": "file-bench"},
            "model": self._installation.alias,
            "input_messages": template,
            "sampling_params": {"temperature": 0, "max_completion_tokens": 16},
        }
        spec = EvalSpec.model_validate(
            {
                "data_source_config": {"type": "custom", "item_schema": {"type": "object"}},
                "testing_criteria": [CRITERION],
            }
        )
        planned = PlannedItems(file_id="file-bench", sha256=sha256, count=items)
        model = ModelTarget(name=self._installation.alias, served=self._installation.adapter)
        return plan_run(self._eval, spec, RunSpec.model_validate({"data_source": source}), planned, [model], 1)

    def _seconds(self, *arguments: str) -> float:
        environment = {
            "MENS_HOME": str(self._home),
            "MENS_API_URL": self._installation.api_url,
            "MENS_API_KEY": self._installation.key,
            "MENS_EVALUATION_CONCURRENCY": str(self._concurrency),
        }
        output = self._processes.run(Path(sys.executable), MODULE, *arguments, **environment)
        return float(output.split()[-1])


def _rows(items: int) -> list[dict[str, Any]]:
    texts = (f"Say the number {number}." for number in range(items))
    return [{"item": {"question": text, "expected": text}} for text in texts]


def measure_runs(options: argparse.Namespace) -> dict[str, list[float]]:
    """Return the seconds of each variant, by rounds."""
    seconds: dict[str, list[float]] = {"evaluate": [], "client": []}
    with tempfile.TemporaryDirectory() as folder, FakeInstallation(Path(folder), options.answer_ms / 1000) as made:
        runs = Evaluations(made, Path(folder), options.concurrency)
        runs.client(options.warm_up)
        for number in range(options.rounds):
            # The order alternates, so that after-effects of the first variant hit a different one each time.
            for name in list(seconds)[:: 1 if number % 2 else -1]:
                seconds[name].append(getattr(runs, name)(options.items))
    return seconds


def measure_sandbox(items: int) -> tuple[str, float]:
    """Return the sandbox's level, and items per second of a trivial grader, called by as many threads as the sandbox
    grades concurrently.

    Raises:
        BenchFailed: this machine has no sandbox, or a score is wrong.
    """
    report = probe()
    if report.level is None:
        raise BenchFailed(f"no sandbox: {report}")
    rows = [row["item"] for row in _rows(items)]
    parallel = os.cpu_count() or 1
    with Sandbox.open(report, parallel=parallel) as sandbox, ThreadPoolExecutor(parallel) as pool:

        def grade(item: dict[str, Any]) -> float:
            return sandbox.grade(SOURCE, {"output_text": item["expected"]}, item)

        list(pool.map(grade, rows[: 2 * parallel]))
        started = time.perf_counter()
        scores = list(pool.map(grade, rows))
        seconds = time.perf_counter() - started
    if set(scores) != {1.0}:
        raise BenchFailed(f"scores of the sandbox: {sorted(set(scores))}")
    return report.level, items / seconds


def measure(options: argparse.Namespace) -> bool:
    """Measure both and report; return whether the goals are met."""
    require("uvicorn", "httpx")
    level, graded = measure_sandbox(options.graded)
    runs = measure_runs(options)
    print(f"{'variant':<28}{'seconds':>10}{'items/s':>10}   load {os.getloadavg()[0]:.1f}")
    for name, label in (("evaluate", "evaluation"), ("client", "bare client")):
        seconds = statistics.median(runs[name])
        print(f"{label:<28}{seconds:>10.2f}{options.items / seconds:>10.0f}")
    print(f"{f'sandbox, {level}':<28}{options.graded / graded:>10.2f}{graded:>10.0f}")
    # In rounds, so that a slow moment of the machine affects both.
    ratio = statistics.median(run / bare for run, bare in zip(runs["evaluate"], runs["client"], strict=True))
    facts = {"items": options.items, "concurrency": options.concurrency, "answer_ms": options.answer_ms}
    met = [
        print_goal("C9", ratio=round(ratio, 3), **facts, target=MAX_RATIO, met=ratio <= MAX_RATIO, smoke=options.smoke),
        print_goal(
            "C9-sandbox",
            items_per_second=round(graded),
            level=level,
            target=MIN_GRADED,
            met=graded >= MIN_GRADED,
            smoke=options.smoke,
        ),
    ]
    return all(met)


def main() -> int:
    """Entry point."""
    parser = bench_parser("bench.evaluate", __doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--items", type=int, default=2000)
    parser.add_argument("--answer-ms", type=float, default=100.0, help="milliseconds until the fake replica answers")
    parser.add_argument("--concurrency", type=int, default=16, help="requests at once")
    parser.add_argument("--graded", type=int, default=2000, help="number of items graded in the sandbox")
    parser.add_argument("--warm-up", type=int, default=100, help="requests before the first round")
    options = parse_options(parser, SMOKE)
    return run_bench(lambda: measure(options))


if __name__ == "__main__":
    sys.exit(main())
