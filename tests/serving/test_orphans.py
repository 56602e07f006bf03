"""A killed server leaves no engine behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the kernel's death signal is Linux's")

PARENT = """
import multiprocessing, sys, time
from serving.orphans import die_with_server

def child():
    die_with_server()
    print(multiprocessing.current_process().pid, flush=True)
    time.sleep(60)

if __name__ == "__main__":
    die_with_server()  # no child of multiprocessing: nothing happens
    multiprocessing.get_context(sys.argv[1]).Process(target=child).start()
    time.sleep(60)
"""


@pytest.mark.parametrize("method", ["spawn", "fork"])
def test_child_ends_with_a_killed_parent(tmp_path, method):
    script = tmp_path / "parent.py"
    script.write_text(PARENT)
    parent = subprocess.Popen(
        [sys.executable, str(script), method], stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        child = Path("/proc", parent.stdout.readline().strip())
        assert child.is_dir()
        parent.kill()
        parent.wait(10)
        assert ends(child)
    finally:
        if child.is_dir():
            os.killpg(parent.pid, signal.SIGKILL)
        parent.stdout.close()


def ends(process, seconds=10):
    """Whether a process is gone, or only waits to be reaped, before the deadline."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        try:
            if (process / "stat").read_text().rpartition(")")[2].split()[0] == "Z":
                return True
        except FileNotFoundError:
            return True
        time.sleep(0.05)
    return False
