"""Child processes of tests: wait until a server is ready, and stop process groups that must not outlive the tests."""

from __future__ import annotations

import atexit
import os
import signal
import subprocess
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path

import pytest

START_SECONDS = 180
STOP_SECONDS = 10


def is_gone(pid: int) -> bool:
    """Return whether a process has ended; a zombie counts as ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


def stop_at_exit(process: subprocess.Popen[bytes]) -> Callable[[], None]:
    """Return a function that stops a process group: SIGTERM, then SIGKILL after a while. It runs when Python exits at
    the latest.
    """

    def stop() -> None:
        for number in (signal.SIGTERM, signal.SIGKILL):
            try:
                os.killpg(process.pid, number)
                process.wait(STOP_SECONDS)
            except (ProcessLookupError, subprocess.TimeoutExpired):
                continue

    atexit.register(stop)
    return stop


def wait_until_healthy(process: subprocess.Popen[bytes], port: int, log: Path) -> float:
    """Wait until a server's ``/health`` responds; return the seconds. On a timeout, the test fails with the end of the
    log.
    """
    started = time.monotonic()
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    while time.monotonic() - started < START_SECONDS and process.poll() is None:
        try:
            with opener.open(f"http://127.0.0.1:{port}/health", timeout=5):
                return time.monotonic() - started
        except OSError:
            time.sleep(0.2)
    text = log.read_text(errors="replace")
    pytest.fail(f"the server did not start; the end of its log:\n{text[-6000:]}", pytrace=False)
