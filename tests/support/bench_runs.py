"""Smoke runs of benches, each in its own process, which must leave no process behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from uuid import uuid4

from bench.harness.processes import FORK_SERVER, pipes_of

ROOT = Path(__file__).resolve().parents[2]
SECONDS, END_SECONDS = 600, 20
RUN = "MENS_BENCH_RUN"
"""Environment variable that marks a run's processes, and the process from which its variants are forked."""
HOTLOAD_ROWS = (
    "direct: load and request|gateway: job finished, request|gateway, certified before|  job's last transaction"
)
"""First column of the table of `bench.hotload`."""
NO_SAMPLES = {"MENS_SAMPLE_ANSWERS": "0"}
"""Setting that makes the product's trainer skip the sample answers after its last step: no figure includes them, and
they take a third of its time here.
"""


def run_smoke(
    folder: Path, *arguments: str, server: subprocess.Popen[bytes] | None = None, **environment: str
) -> list[str]:
    """Run a bench with `--smoke`, which must succeed; return the lines of its standard output.

    Args:
        folder: folder for its output.
        arguments: arguments of the interpreter, after `-m`.
        server: process from which its variants are forked, with a `RUN` of its own; killed when the run fails. None: the bench
            starts one.
        environment: variables to add.
    """
    run, pipes = uuid4().hex, pipes_of(server) if server else ()
    runs = {f"{RUN}={run}".encode(), *(_runs_of(server.pid) if server else ())}
    output, errors = folder / "stdout", folder / "stderr"
    with output.open("wb") as out, errors.open("wb") as err:
        process = subprocess.Popen(
            [sys.executable, "-m", *arguments, "--smoke"],
            cwd=ROOT,
            env={**os.environ, **NO_SAMPLES, RUN: run, FORK_SERVER: " ".join(map(str, pipes)), **environment},
            stdout=out,
            stderr=err,
            start_new_session=True,
            pass_fds=pipes,
        )
    exit_code: int | None = None
    left: list[int] = []
    try:
        exit_code = process.wait(SECONDS)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGTERM)
        process.wait(END_SECONDS)
        raise
    finally:
        if server and exit_code != 0:
            server.kill()  # it may still wait for a variant
            server.wait()
        left = wait_for_end(runs, server)
        for pid in left:
            os.kill(pid, signal.SIGKILL)
    assert exit_code == 0, errors.read_text()[-3000:]
    assert not left
    return output.read_text().splitlines()


def check_printed(printed: list[str], expected: str, rows: str) -> None:
    """Check that a smoke run has printed its goals, unjudged, and a row of each variant.

    Args:
        expected: names of the goals.
        rows: first columns, with `|` between them.
    """
    goals = [json.loads(line) for line in printed if line.startswith("{")]
    assert {goal["goal"] for goal in goals} == set(expected.split())
    assert [goal for goal in goals if (goal["smoke"], goal["pass"]) != (True, None) or "target" not in goal] == []
    assert [row for row in rows.split("|") if not any(line.startswith(f"{row} ") for line in printed)] == []


def wait_for_end(runs: set[bytes], server: subprocess.Popen[bytes] | None) -> list[int]:
    """Processes of these runs, except the server, that still exist after some seconds."""
    deadline = time.monotonic() + END_SECONDS
    while left := _processes_of(runs) - ({server.pid} if server else set()):
        if time.monotonic() > deadline:
            break
        time.sleep(0.1)
    return sorted(left)


def _processes_of(runs: set[bytes]) -> set[int]:
    pids = {int(folder.name) for folder in Path("/proc").glob("[0-9]*")}
    return {pid for pid in pids if runs & _runs_of(pid)}


def _runs_of(pid: int) -> set[bytes]:
    """The environment variable `RUN` of a process, with its value."""
    try:
        environment = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:  # it has ended, or is not ours
        return set()
    return {line for line in environment if line.startswith(f"{RUN}=".encode())}
