"""Variants in processes of their own: ``python -m module`` each time, or in a smoke run a fork of a preloaded process."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from bench.command import BenchFailed

ROOT = Path(__file__).resolve().parents[1]
ENVIRONMENT = {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false", "OMP_NUM_THREADS": "1"}
"""Of every variant, where it is given nothing else: offline, and one thread."""


class VariantFailed(BenchFailed):
    """A variant's process ended with an error.

    Attributes:
        reason: its last line.
    """

    def __init__(self, module: str, output: str) -> None:
        super().__init__(f"{module} failed:\n{output[-3000:]}")
        self.reason = (output.strip().splitlines() or ["no output"])[-1][:300]


class Processes(Protocol):
    """Runs modules, each in a process of its own."""

    def run(self, python: Path, module: str, *arguments: str, **environment: str) -> str:
        """Standard output of ``python -m module arguments``, run offline in the checkout.

        Args:
            python: the interpreter.
            environment: variables to add.

        Raises:
            VariantFailed: it ended with an error.
        """
        ...


class NewProcesses:
    """Starts an interpreter for each run, as a measurement needs it."""

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
    """Forks one process that has imported the slow libraries already (``bench/fork_server.py``).

    Importing torch and its friends takes most of the time of a variant that runs for a moment.

    Args:
        server: the process.
    """

    def __init__(self, server: subprocess.Popen[str]) -> None:
        assert server.stdin is not None
        assert server.stdout is not None
        self._requests, self._exit_codes = server.stdin, server.stdout

    def run(self, python: Path, module: str, *arguments: str, **environment: str) -> str:  # noqa: ARG002
        """See :class:`Processes`; the interpreter is the server's, whatever ``python`` says."""
        with tempfile.TemporaryDirectory() as folder:
            output, errors = Path(folder) / "stdout", Path(folder) / "stderr"
            request = {
                "module": module,
                "arguments": arguments,
                "environment": environment,
                "stdout": str(output),
                "stderr": str(errors),
            }
            try:
                self._requests.write(json.dumps(request) + "\n")
                self._requests.flush()
                exit_code = self._exit_codes.readline().strip()
            except BrokenPipeError:
                exit_code = ""
            if exit_code != "0":
                # A server that has died has written its own error to the standard error of this process.
                tail = errors.read_text(errors="replace") if errors.exists() else "the process that forks has ended"
                raise VariantFailed(module, tail)
            return output.read_text()


@contextmanager
def variant_processes(*, smoke: bool, python: Path, preloaded: tuple[str, ...]) -> Iterator[Processes]:
    """Processes for a bench's variants.

    Args:
        smoke: fork them from one process instead of starting each.
        python: the interpreter of that process; it must have what any variant imports.
        preloaded: modules that it imports first.
    """
    if not smoke:
        yield NewProcesses()
        return
    with subprocess.Popen(
        [str(python), "-m", "bench.fork_server", *preloaded],
        cwd=ROOT,
        env=os.environ | ENVIRONMENT | {"MENS_BENCH_PARENT": str(os.getpid())},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as server:
        try:
            yield ForkedProcesses(server)
        finally:
            server.terminate()
