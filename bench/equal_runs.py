"""Check whether equal jobs give equal bytes: ``python -m bench.equal_runs --runs 40 --at-once 4``.

Trains a few small jobs many times each, several at once next to programs that keep the processors busy. Starts differ
in everything that a machine may change between them: free memory, priority, hash seed, heap, size of the environment.
Some processes are stopped for a moment, others are killed with `kill -9` or paused at some step, and the run resumes
from its last checkpoint as under the worker. The adapter's weights, its config and `metrics.csv` of every run are then
compared with those of the same job's other runs.

The goal is a single outcome per job among the runs that report `bit_exact`; each job needs at least two of them. With
``--mkl-defaults``, MKL keeps its vendor's defaults: such runs may differ and must then report `state_exact`, so none
need be exact.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from bench.harness.command import BenchFailed, bench_parser, parse_options, print_goal, run_bench
from bench.harness.processes import ROOT, variant_processes
from bench.training.recipe import InputsRequest
from bench.training.shapes import Shape
from shared.artifacts.manifests import CONFIG_NAME, MANIFEST_NAME, WEIGHTS_NAME
from shared.base_models.catalog import BaseModelEntry, LocalSource
from shared.contract.contracts import FineTuneContract
from shared.contract.plan import TrainingRun, plan_finetune
from shared.hashing import digest_file, digest_json
from worker.child_runtime import EXIT_PAUSED, PAUSE_SIGNAL
from worker.run_folder import (
    ADAPTER_FOLDER,
    LOG_NAME,
    METRICS_NAME,
    SUMMARY_NAME,
    TELEMETRY_NAME,
    list_checkpoints,
    read_json,
)

SMOKE = {"runs": 2, "at_once": 2, "jobs": ["two-threads"], "epochs": 1, "hidden": 64, "burners": 0, "seed": 0}
"""A smoke run's options. With this seed, one run ends normally, and the other is held, killed after its checkpoint and
resumed.
"""
JOBS: dict[str, dict[str, Any]] = {
    "plain": {"threads": 1, "adapter": {"rank": 8, "alpha": 16}},
    "two-threads": {"threads": 2, "adapter": {"rank": 4, "alpha": 8}},
    "dropout-8bit": {
        "threads": 2,
        "adapter": {"rank": 8, "alpha": 16, "dropout": 0.1},
        "optimizer": {"kind": "paged_adamw_8bit"},
    },
}
"""Jobs, each trained many times: threads of its processes, and sections of its contract."""
KILLED, PAUSED, STOPPED = 0.4, 0.15, 0.3
"""Shares of the attempts that are killed, paused, or held for a moment."""
MAX_DISTURBED = 4
"""Number of attempts at one run that may be disturbed; the next one is not disturbed."""
DISTURBED_STEPS = 5
"""Steps of an epoch (of six) after which a disturbance may happen."""
COMPARED = 2
"""Number of runs of a job that must report `bit_exact`; with fewer, nothing would be compared."""
MKL_DEFAULTS = {"MKL_CBWR": "OFF", "MKL_DYNAMIC": "TRUE"}
RUN_SECONDS = 900.0
OVER = threading.Event()
"""Set when the bench ends, normally or early; trainers that are still running are then killed."""


@dataclass
class EqualRun:
    """A finished run.

    Attributes:
        digest: digest of all its results.
        guarantee: the guarantee that the run reports.
        attempts, kills, pauses, holds: number of each during the run.
    """

    digest: str = ""
    guarantee: str = ""
    attempts: int = 0
    kills: int = 0
    pauses: int = 0
    holds: int = 0


def main() -> int:
    parser = bench_parser("bench.equal_runs", __doc__)
    parser.add_argument("--runs", type=int, default=12, help="runs of each job")
    parser.add_argument("--at-once", type=int, default=4, help="number of concurrent runs")
    parser.add_argument("--jobs", nargs="+", default=list(JOBS), choices=JOBS)
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--hidden", type=int, default=128, help="width of the base")
    parser.add_argument("--burners", type=int, default=2, help="processes that only keep a processor busy")
    parser.add_argument("--calm", action="store_true", help="do not kill, pause or hold any process")
    parser.add_argument("--mkl-defaults", action="store_true", help="keep MKL's default settings")
    parser.add_argument("--seed", type=int, default=0)
    options = parse_options(parser, SMOKE)
    return run_bench(lambda: compare(options))


def compare(options: argparse.Namespace) -> bool:
    """Train all, compare, print; return whether the goal is met."""
    with tempfile.TemporaryDirectory(prefix="bench-equal-runs-") as name:
        folder = Path(name)
        plans = make_jobs(folder, options)
        draw = random.Random(options.seed)
        tasks = [(job, number, draw.random()) for number in range(options.runs) for job in plans]
        with busy_processors(options.burners), ThreadPoolExecutor(options.at_once) as threads:
            pending = [
                (
                    job,
                    threads.submit(train, plans[job], folder / f"{job}-{number}", JOBS[job]["threads"], options, seed),
                )
                for job, number, seed in tasks
            ]
            try:
                outcomes = [(job, future.result()) for job, future in pending]
            finally:
                OVER.set()
                threads.shutdown(wait=False, cancel_futures=True)
    return report(outcomes, wanted_exact=0 if options.mkl_defaults else COMPARED, smoke=options.smoke)


def make_jobs(folder: Path, options: argparse.Namespace) -> dict[str, Path]:
    """Make a base, its data, and for each job the plan that all its runs share."""
    request = InputsRequest(
        base=Shape.of_width(options.hidden, 2048),
        rows=24,
        held_out_rows=4,
        execution={"seq_len": 192, "batch_size": 4, "grad_accum": 1, "checkpoint_every": 3},
    )
    python, preloaded = Path(sys.executable), ("worker.pretrain", "worker.train")
    with variant_processes(smoke=options.smoke, python=python, preloaded=preloaded) as processes:
        processes.run(python, "bench.training.training_inputs", json.dumps(asdict(request)), str(folder))
    run = TrainingRun.model_validate_json((folder / "plan.json").read_bytes())
    entry = BaseModelEntry(
        name=run.plan.base.name, source=LocalSource(path=run.inputs.base), digests=run.plan.base.digests
    )
    plans = {}
    for job in options.jobs:
        fields = run.plan.contract.model_dump(mode="json")
        for section, values in JOBS[job].items():
            if section != "threads":
                fields[section] = {**fields[section], **values}
        fields["exec"] |= {"epochs": options.epochs}
        contract = FineTuneContract.model_validate(fields)
        plan = plan_finetune(contract, entry, run.plan.train, run.plan.validation, "equal")
        plans[job] = folder / f"{job}.json"
        plans[job].write_text(TrainingRun(plan=plan, inputs=run.inputs).to_json())
    return plans


@contextmanager
def busy_processors(count: int) -> Iterator[None]:
    """Keep the given number of processors busy with processes."""
    burners = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for burner in burners:
            burner.kill()
            burner.wait()


def train(plan: Path, folder: Path, threads: int, options: argparse.Namespace, seed: float) -> EqualRun:
    """Make one run, in as many attempts as it takes.

    Args:
        seed: random seed of all its disturbances.

    Raises:
        BenchFailed: an attempt failed on its own.
    """
    draw, outcome = random.Random(seed), EqualRun()
    checkpoint: Path | None = None
    while True:
        outcome.attempts += 1
        run_dir = folder / f"attempt-{outcome.attempts:04d}"
        run_dir.mkdir(parents=True)
        disturbed = not options.calm and outcome.attempts <= MAX_DISTURBED
        exit_code = attempt(
            plan,
            run_dir,
            checkpoint,
            threads,
            draw,
            outcome,
            mkl_defaults=options.mkl_defaults,
            disturbed_steps=DISTURBED_STEPS * options.epochs if disturbed else 0,
        )
        if exit_code == 0:
            break
        if exit_code not in (-signal.SIGKILL, EXIT_PAUSED):
            raise BenchFailed(f"{run_dir.name} ended with {exit_code}:\n{(run_dir / LOG_NAME).read_text()[-2000:]}")
        if left := list_checkpoints(run_dir):
            checkpoint = left[-1]
    outcome.digest, outcome.guarantee = result_of(run_dir)
    print(f"  {folder.name:<20} {outcome.digest[:12]} {outcome.guarantee}, attempts: {outcome.attempts}", flush=True)
    shutil.rmtree(folder)
    return outcome


def attempt(
    plan: Path,
    run_dir: Path,
    checkpoint: Path | None,
    threads: int,
    draw: random.Random,
    outcome: EqualRun,
    *,
    mkl_defaults: bool,
    disturbed_steps: int,
) -> int:
    """Run one process of the trainer, disturbed within `disturbed_steps` steps; return its exit code."""
    free_bytes = draw.choice([0, 1 << 40])  # none for a cache of dequantised weights, or plenty
    command = [sys.executable, "-m", "bench.training.starved_trainer", str(free_bytes), str(plan), str(run_dir)]
    command += ["--resume", str(checkpoint)] if checkpoint else []
    with (run_dir / LOG_NAME).open("wb") as log:
        process = subprocess.Popen(
            ["nice", "-n", str(draw.randrange(10)), *command],
            cwd=ROOT,
            # Threads wait for each other asleep: busy waiting would take the processors that all these runs share.
            env=os.environ
            | surroundings(draw)
            | (MKL_DEFAULTS if mkl_defaults else {})
            | {"OMP_NUM_THREADS": str(threads), "OMP_WAIT_POLICY": "passive"},
            stderr=log,
        )
    try:
        if disturbed_steps:
            disturb(process, run_dir, draw, outcome, disturbed_steps)
        deadline = time.monotonic() + RUN_SECONDS
        while process.poll() is None and time.monotonic() < deadline and not OVER.is_set():
            time.sleep(0.05)
        return -signal.SIGTERM if process.poll() is None else process.wait()
    finally:
        process.kill()
        process.wait()


def surroundings(draw: random.Random) -> dict[str, str]:
    """Return environment variables that must not affect the result."""
    return {
        "PYTHONHASHSEED": str(draw.randrange(1000)),
        "MALLOC_ARENA_MAX": str(draw.randint(1, 4)),
        "MALLOC_TOP_PAD_": str(draw.randrange(1 << 20)),
        "MALLOC_MMAP_THRESHOLD_": str(draw.choice([1 << 12, 1 << 17, 1 << 25])),
        "MENS_BENCH_PADDING": "x" * draw.randrange(4096),
    }


def disturb(
    process: subprocess.Popen[bytes], run_dir: Path, draw: random.Random, outcome: EqualRun, steps: int
) -> None:
    """Hold, kill or pause the process during its first steps, or while it starts or ends."""
    fate = draw.random()
    after = draw.randrange(steps)
    deadline = time.monotonic() + RUN_SECONDS
    while process.poll() is None and steps_done(run_dir) < after and time.monotonic() < deadline and not OVER.is_set():
        time.sleep(0.01)
    if process.poll() is None and draw.random() < STOPPED:
        process.send_signal(signal.SIGSTOP)
        time.sleep(draw.random())
        process.send_signal(signal.SIGCONT)
        outcome.holds += 1
    time.sleep(0.1 * draw.random())
    if process.poll() is not None:
        return
    if fate < KILLED:
        process.kill()
        outcome.kills += 1
    elif fate < KILLED + PAUSED and after:  # before that, no process may exist for the signal
        process.send_signal(PAUSE_SIGNAL)
        outcome.pauses += 1


def steps_done(run_dir: Path) -> int:
    """Return the number of steps that this attempt has reported so far."""
    path = run_dir / TELEMETRY_NAME
    return path.read_bytes().count(b'"event": "step"') if path.exists() else 0


def result_of(run_dir: Path) -> tuple[str, str]:
    """Return the digest of all the run's results, and its guarantee."""
    files = [run_dir / ADAPTER_FOLDER / name for name in (WEIGHTS_NAME, CONFIG_NAME, MANIFEST_NAME)]
    summary = read_json(run_dir / SUMMARY_NAME) or {}
    digest = digest_json([digest_file(path) for path in (*files, run_dir / METRICS_NAME)])
    return digest, str(summary["resume"]["guarantee"])


def report(outcomes: list[tuple[str, EqualRun]], *, wanted_exact: int, smoke: bool) -> bool:
    """Print a line per job and one for the goal; return whether the goal is met.

    Args:
        wanted_exact: number of runs of each job that must report `bit_exact`.

    Raises:
        BenchFailed: a smoke run misses the goal.
    """
    print(f"{'job':<20}{'runs':>6}{'attempts':>10}{'killed':>8}{'paused':>8}{'held':>6}  outcomes (bit_exact, others)")
    exact = {}
    for job in dict.fromkeys(job for job, _ in outcomes):
        ones = [outcome for name, outcome in outcomes if name == job]
        exact[job] = Counter(run.digest for run in ones if run.guarantee == "bit_exact")
        others = Counter(run.digest for run in ones if run.guarantee != "bit_exact")
        sums = [sum(getattr(run, name) for run in ones) for name in ("attempts", "kills", "pauses", "holds")]
        print(f"{job:<20}{len(ones):>6}{sums[0]:>10}{sums[1]:>8}{sums[2]:>8}{sums[3]:>6}", end="  ")
        print(f"{sorted(exact[job].values(), reverse=True)}, {sorted(others.values(), reverse=True)}", flush=True)
    most, fewest = max(map(len, exact.values())), min(counts.total() for counts in exact.values())
    if smoke and most > 1:
        raise BenchFailed("equal jobs that report bit_exact differ in their bytes")
    if smoke and fewest < wanted_exact:
        raise BenchFailed(f"{fewest} runs of a job report bit_exact; a comparison needs {wanted_exact}")
    met = most <= 1 and fewest >= wanted_exact
    return print_goal("T1", outcomes_of_a_job=most, fewest_bit_exact_runs=fewest, target=1, met=met, smoke=smoke)


if __name__ == "__main__":
    sys.exit(main())
