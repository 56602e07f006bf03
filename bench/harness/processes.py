"""Variants in separate processes: ``python -m module`` each time, or in a smoke run a fork of a preloaded process."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Protocol

from bench.harness.command import BenchFailed

ROOT = Path(__file__).resolve().parents[2]
ENVIRONMENT = {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false", "OMP_NUM_THREADS": "1"}
"""Default environment of every variant: offline, and one thread."""
FORK_SERVER = "MENS_BENCH_FORK_SERVER"
"""Two descriptors: the standard input and output of a process that variants of smoke runs are forked from."""
LINE_BYTES = 64
"""Largest length of a line with an exit code, in bytes."""


class VariantFailed(BenchFailed):
    """A variant's process ended with an error.

    Attributes:
        reason: its last line.
    """

    def __init__(self, module: str, output: str) -> None:
        super().__init__(f"{module} failed:\n{output[-3000:]}")
        self.reason = (output.strip().splitlines() or ["no output"])[-1][:300]


class Processes(Protocol):
    """Runs modules, each in a separate process."""

    def run(self, python: Path, module: str, *arguments: str, **environment: str) -> str:
        """Return the standard output of ``python -m module arguments``, run offline in the checkout.

        Args:
            python: the interpreter.
            environment: variables to add.
        """
        ...


class NewProcesses:
    """Starts an interpreter for each run, as measurements require."""

    def run(self, python: Path, module: str, *arguments: str, **environment: str) -> str:
        """See :class:`Processes`."""
        run = subprocess.run(
            [str(python), "-m", module, *arguments],
            cwd=ROOT,
            env=os.environ | ENVIRONMENT | environment,
            capture_output=True,
            text=True,
            check=False,
        )
        if run.returncode:
            raise VariantFailed(module, run.stdout[-500:] + run.stderr)
        return run.stdout


class ForkedProcesses:
    """Forks one process that has already imported the slow libraries (``bench/harness/fork_server.py``).

    Importing torch and related libraries takes most of the time of a short variant.

    Args:
        requests, exit_codes: descriptors of the process's standard input and output.
        preloaded: modules that it imports first, unless it has imported them for another bench.
    """

    def __init__(self, requests: int, exit_codes: int, preloaded: tuple[str, ...]) -> None:
        self._requests, self._exit_codes = requests, exit_codes
        with suppress(BrokenPipeError):  # the first run reports it
            self._send({"preloaded": preloaded})

    def run(self, python: Path, module: str, *arguments: str, **environment: str) -> str:  # noqa: ARG002
        """See :class:`Processes`; the interpreter is the server's, and ``python`` is ignored."""
        with tempfile.TemporaryDirectory() as folder:
            output, errors = Path(folder) / "stdout", Path(folder) / "stderr"
            request = {
                "module": module,
                "arguments": arguments,
                "environment": os.environ | ENVIRONMENT | environment,
                "stdout": str(output),
                "stderr": str(errors),
            }
            try:
                self._send(request)
                exit_code = os.read(self._exit_codes, LINE_BYTES).decode().strip()
            except BrokenPipeError:
                exit_code = ""
            if exit_code != "0":
                # A server that has died has written its own error to the standard error of this process.
                tail = errors.read_text(errors="replace") if errors.exists() else "the fork server has ended"
                raise VariantFailed(module, tail)
            return output.read_text()

    def _send(self, request: dict[str, Any]) -> None:
        os.write(self._requests, json.dumps(request).encode() + b"\n")


@contextmanager
def variant_processes(*, smoke: bool, python: Path, preloaded: tuple[str, ...]) -> Iterator[Processes]:
    """Yield processes for a bench's variants.

    Args:
        smoke: fork them from one process instead of starting each: the one whose pipes ``MENS_BENCH_FORK_SERVER``
            names, which several benches share, otherwise a new one.
        python: the interpreter of that process; it must have the modules that any variant imports.
        preloaded: modules that it imports first.
    """
    if not smoke:
        yield NewProcesses()
    elif shared := os.environ.get(FORK_SERVER):
        requests, exit_codes = map(int, shared.split())
        yield ForkedProcesses(requests, exit_codes, preloaded)
    else:
        with fork_server(python) as server:
            yield ForkedProcesses(*pipes_of(server), preloaded)


@contextmanager
def fork_server(python: Path, **environment: str) -> Iterator[subprocess.Popen[bytes]]:
    """Run a process that variants are forked from, for the duration of the block.

    Args:
        python: its interpreter.
        environment: variables to add to its own; a variant gets those of its bench.
    """
    parent = {"MENS_BENCH_PARENT": str(os.getpid())}
    with subprocess.Popen(
        [str(python), "-m", "bench.harness.fork_server"],
        cwd=ROOT,
        env=os.environ | ENVIRONMENT | parent | environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as server:
        try:
            yield server
        finally:
            server.terminate()


def pipes_of(server: subprocess.Popen[bytes]) -> tuple[int, int]:
    """Return descriptors of a process's standard input and output."""
    assert server.stdin is not None
    assert server.stdout is not None
    return server.stdin.fileno(), server.stdout.fileno()
