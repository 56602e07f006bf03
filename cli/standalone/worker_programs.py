"""Programs of the worker that the command line runs in separate processes, because it never imports torch."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from shared.errors import ArtifactInvalid, Code, ContractRejected, InvalidRequest, JobFailed, MensError, Unavailable

PROJECT = Path(__file__).resolve().parents[2]
_ERRORS: dict[str, type[MensError]] = {
    kind.__name__: kind for kind in (ArtifactInvalid, ContractRejected, InvalidRequest, JobFailed, Unavailable)
}


def run_worker_program(module: str, *arguments: str, threads: int | None = None) -> None:
    """Run a program of the worker to its end; its output on stderr is shown as it arrives.

    Args:
        module: module for `python -m`.
        arguments: arguments of its command line.
        threads: number of computing threads; None leaves it to the libraries.

    Raises:
        MensError: the error that the program prints as JSON; without one, JobFailed: ``PROGRAM_FAILED``.
    """
    command = [sys.executable, "-m", module, *arguments]
    # None of these programs needs the hub; and the libraries' progress bars would appear between its own lines.
    environment = {**os.environ, "PYTHONPATH": str(PROJECT), "HF_HUB_OFFLINE": "1", "TQDM_DISABLE": "1"}
    environment |= {"OMP_NUM_THREADS": str(threads)} if threads else {}
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=False)
    if not done.returncode:
        return
    if error := _printed_error(done.stdout):
        raise error
    raise JobFailed(
        Code.PROGRAM_FAILED,
        f"{module} ended with exit code {done.returncode}, so the base model was not built.",
        remedy=f"See its output above; to run it again by hand: {' '.join(command)}",
    )


def _printed_error(output: str) -> MensError | None:
    """Return the error in the last line of a program's output; None if the line is not an error."""
    lines = output.splitlines() or [""]
    try:
        fields = json.loads(lines[-1])
        kind = _ERRORS[fields.pop("kind")]
        return kind(fields.pop("code"), fields.pop("message"), **fields)
    except (ValueError, KeyError, AttributeError, TypeError):
        return None
