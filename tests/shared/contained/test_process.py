"""A contained process answers within its time, and ends with everything that it started."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from shared.contained.process import ContainedProcess
from tests.support.waiting import eventually

ECHO = "import sys\nfor line in sys.stdin: print(line.strip()[::-1], flush=True)"
WITH_CHILD = "import os, time\nchild = os.fork()\nif child: print(child, flush=True)\ntime.sleep(60)"
STUBBORN = (
    "import signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\nprint('ready', flush=True)\ntime.sleep(60)"
)

Start = Callable[..., ContainedProcess]


@pytest.fixture
def start() -> Iterator[Start]:
    started: list[ContainedProcess] = []

    def start(code: str, **more: object) -> ContainedProcess:
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
        started.append(ContainedProcess([sys.executable, "-S", "-c", code], **{**pipes, **more}))  # type: ignore[arg-type]
        return started[-1]

    yield start
    for process in started:
        process.end()


def is_gone(pid: int) -> bool:
    """Return whether a process has ended; one that is not waited for has, too."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().split()[2] == "Z"
    except FileNotFoundError:
        return True


def test_lines_are_answered(start: Start) -> None:
    process = start(ECHO)
    for text in (b"abc", b"defg"):
        process.send(text + b"\n")
        assert process.read_line(30) == text[::-1] + b"\n"
    process.end_input()
    assert process.end(30) == 0


def test_the_time_of_an_answer_is_limited(start: Start) -> None:
    process = start("import time; time.sleep(60)")
    assert process.read_line(0.05) is None
    assert process.is_running()


def test_a_process_that_has_ended_gives_an_incomplete_line(start: Start) -> None:
    process = start("print('half', end='', flush=True)")
    assert process.read_line(30) == b"half"
    process.process.wait(30)
    process.send(b"not read\n" * 100_000)
    assert process.read_line(30) == b""


def test_its_children_end_with_it(start: Start) -> None:
    process = start(WITH_CHILD)
    child = int(process.read_line(30) or 0)
    assert os.getpgid(child) == process.first
    assert process.end() == -signal.SIGKILL
    eventually(lambda: is_gone(child))


def test_it_may_end_by_itself_first(start: Start) -> None:
    assert start("import time; time.sleep(0.1); raise SystemExit(3)").end(30) == 3
    process = start(STUBBORN)
    process.read_line(30)
    assert process.end(0.05) == -signal.SIGKILL
    assert process.end() == -signal.SIGKILL, "a second end changes nothing"


def test_it_is_in_a_group_of_its_own(start: Start) -> None:
    assert os.getpgid(start(STUBBORN).first) != os.getpgrp()


def test_it_has_the_given_environment_alone(start: Start) -> None:
    process = start("import os; print(sorted(os.environ))", environment={"A": "1", "LC_CTYPE": "C.UTF-8"})
    assert process.read_line(30) == b"['A', 'LC_CTYPE']\n"


def test_the_first_process_of_namespaces_is_ended_before_the_rest(start: Start) -> None:
    """A wrapper that starts another process and reports it, as bubblewrap does."""

    def wrap(command: Sequence[str], info: int) -> list[str]:
        code = (
            "import json, os, subprocess, sys\n"
            "child = subprocess.Popen(sys.argv[2:], start_new_session=True)\n"
            "os.write(int(sys.argv[1]), json.dumps({'child-pid': child.pid}).encode()); os.close(int(sys.argv[1]))\n"
            "sys.exit(10 - child.wait())"
        )
        return [sys.executable, "-S", "-c", code, str(info), *command]

    process = start(STUBBORN, wrap=wrap)
    assert process.read_line(30) == b"ready\n"
    assert process.first != process.process.pid
    assert process.end() == 10 + signal.SIGKILL
    assert is_gone(process.first)


def test_a_wrapper_that_cannot_make_namespaces_reports_no_process(start: Start) -> None:
    process = start("", wrap=lambda command, info: ["/bin/false"])
    assert process.first == process.process.pid
    assert process.end(30) == 1


def test_a_program_that_does_not_exist() -> None:
    with pytest.raises(FileNotFoundError):
        ContainedProcess(["/does/not/exist"])
