"""The kernel ends a process that exceeds its own limits, or refuses its calls."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from shared.sandbox.environment import ROOT
from tests.support.waiting import eventually

LOOP = "while True: pass"


def run(code: str) -> subprocess.CompletedProcess[str]:
    """Run a program that has imported the limits; without `site`, so that it starts at once."""
    program = (
        f"import resource, os\nfrom shared.contained.limits import *\nfrom shared.contained.limits import limit\n{code}"
    )
    environment = {"PYTHONPATH": str(ROOT)}
    return subprocess.run(
        [sys.executable, "-S", "-c", program], env=environment, capture_output=True, text=True, check=False, timeout=60
    )


def test_a_limit_can_only_be_lowered() -> None:
    done = run(
        "limit(resource.RLIMIT_NOFILE, 30)\nlimit(resource.RLIMIT_NOFILE, 60)\nprint(resource.getrlimit(resource.RLIMIT_NOFILE))"
    )
    assert done.stdout == "(30, 30)\n"


def test_memory_that_is_added_is_limited() -> None:
    done = run("limit_added_memory(64 << 20)\nx = bytes(8 << 20)\nprint('small')\nbytes(256 << 20)")
    assert done.stdout == "small\n"
    assert "MemoryError" in done.stderr


def test_processor_time_that_is_added_is_limited() -> None:
    assert run(f"limit_added_processor_time(1)\n{LOOP}").returncode == -signal.SIGXCPU


def test_a_later_call_replaces_the_time_limit() -> None:
    done = run(
        "for seconds in (5, 50):\n limit_added_processor_time(seconds)\n"
        " print(resource.getrlimit(resource.RLIMIT_CPU)[0] >= seconds)"
    )
    assert done.stdout == "True\nTrue\n"


@pytest.mark.parametrize(
    ("times", "code", "expected"),
    [("0.1, 30", LOOP, signal.SIGPROF), ("30, 0.1", "import time; time.sleep(30)", signal.SIGALRM)],
)
def test_either_time_ends_it(times: str, code: str, expected: int) -> None:
    assert run(f"end_after({times})\n{code}").returncode == -expected


def test_no_dump_is_written_and_it_ends_before_others() -> None:
    done = run(
        "dump_nothing()\nend_first()\nprint(resource.getrlimit(resource.RLIMIT_CORE), open('/proc/self/oom_score_adj').read())"
    )
    assert done.stdout.split("\n")[0] == "(0, 0) 1000"


def test_a_process_that_has_ended_is_not_an_error() -> None:
    assert run("end_first(2 ** 22 + 1)").returncode == 0


def test_it_ends_with_its_parent() -> None:
    child = "from shared.contained.limits import end_with_parent; import os, time; end_with_parent(os.getppid()); print(os.getpid(), flush=True); time.sleep(60)"
    done = run(
        "import subprocess, sys\n"
        f"child = subprocess.Popen([sys.executable, '-S', '-c', {child!r}], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)\n"
        "print(child.stdout.readline().decode(), flush=True)"
    )
    pid = int(done.stdout)

    def is_gone() -> bool:
        try:
            return Path(f"/proc/{pid}/stat").read_text().split()[2] == "Z"
        except FileNotFoundError:
            return True

    eventually(is_gone)


def test_it_ends_at_once_if_its_parent_has_ended() -> None:
    done = run("end_with_parent(1 << 22)\nprint('still here')")
    assert (done.returncode, done.stdout) == (1, "")
