"""Servers on this machine: find a free port, wait for a response, and stop the server."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
STOP_SECONDS = 20.0


def free_port() -> int:
    """Return a port on which no server is listening."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


@contextmanager
def server(
    arguments: list[str],
    url: str,
    seconds: float,
    environment: Mapping[str, str],
    log: Path | None = None,
    python: Path = Path(sys.executable),
) -> Iterator[None]:
    """Run a Python process that responds at ``url`` within the block, and stop it with all its children afterwards.

    Args:
        arguments: arguments of the interpreter.
        url: responds once it is ready.
        seconds: longest wait for that.
        environment: variables to add.
        log: receives its output; None discards it.
        python: the interpreter.

    Raises:
        OSError: it has ended, or is not ready in time.
    """
    with (log or Path(os.devnull)).open("wb") as output:
        process = subprocess.Popen(
            [str(python), *arguments],
            cwd=ROOT,
            env=os.environ | environment,
            stdout=output,
            stderr=subprocess.STDOUT,
            process_group=0,
        )
    try:
        wait(url, seconds, process)
        yield
    finally:
        stop_group(process)


def stop_group(process: subprocess.Popen[bytes]) -> None:
    """Stop a process that leads a group, and kill the rest of the group."""
    try:
        process.terminate()
        process.wait(STOP_SECONDS)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def wait(url: str, seconds: float, process: subprocess.Popen[bytes] | None = None) -> None:
    """Wait until a server responds.

    Args:
        seconds: longest wait.
        process: the server's process; once it has ended, waiting stops.

    Raises:
        OSError: it did not respond.
    """
    deadline = time.monotonic() + seconds
    # A proxy that the environment names would look for the server on its own machine.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    while True:
        try:
            with opener.open(url, timeout=2):
                return
        except OSError:
            has_ended = process is not None and process.poll() is not None
            if has_ended or time.monotonic() > deadline:
                raise
            time.sleep(0.1)
