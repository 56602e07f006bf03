"""kill -9 of each process of an installation on one machine: each is back within a stated time, and works again.

For a replica, the test kills the engine, and the replica ends with it; `make long` kills the replica's own process
during a job (`test_chaos.py`). It also kills supervisord, with which all other processes end, only in `make long`;
`tests/cli/commands/test_up.py` kills one that runs trivial programs.
"""

from __future__ import annotations

import os
import signal
from contextlib import suppress

import psutil
import pytest

from cli.standalone.stack import SUPERVISORD
from tests.support.waiting import eventually
from tests.system.loop import BASE, Installation

BACK_SECONDS = 60
"""As docs/architecture.md states, of all but a replica, which takes as long as vLLM needs to start."""
REPLICA_BACK_SECONDS = 180
HAVE_CHILDREN = ("control", "serving")
"""Programs with permanent child processes: the beat, and the engine.

Other children are temporary, such as those in which a worker and the API probe their sandboxes and compilers some
seconds after their start; they have the name of the program that they run.
"""


def descendants(installation: Installation) -> dict[int, str]:
    """Every process of the installation that stays, by its id: the program that it is, or that it is a child of."""
    found = {}
    for program in installation.stack.processes():
        with suppress(psutil.NoSuchProcess):  # it has ended since it was listed
            parent = psutil.Process(program["pid"])
            children = parent.children(recursive=True) if program["name"] in HAVE_CHILDREN else ()
            found |= {process.pid: program["name"] for process in (parent, *children) if _stays(process)}
    return found


def _stays(process: psutil.Process) -> bool:
    """Return whether the process lives as long as its program, and has not ended since it was listed."""
    try:
        command = " ".join(process.cmdline())
    except psutil.NoSuchProcess:  # of a zombie as well
        return False
    return "compile_server" not in command  # a replica starts it with its first structured output


def victim_of(installation: Installation, which: str) -> int:
    """Id of a program's process, or of a child of it."""
    program, _, child = which.partition("'s ")
    if program == SUPERVISORD:
        return psutil.Process(installation.stack.pid("api")).ppid()
    parent = psutil.Process(installation.stack.pid(program))
    if not child:
        return parent.pid
    if child == "engine":
        return next(process.pid for process in parent.children() if "EngineCore" in " ".join(process.cmdline()))
    return parent.children()[0].pid


@pytest.mark.parametrize(
    "program",
    [
        "valkey",
        "worker",
        "control",
        "control's beat",
        "api",
        "serving's engine",
        pytest.param(SUPERVISORD, marks=pytest.mark.long),
    ],
)
def test_killed_process_is_back(installation: Installation, program: str) -> None:
    name = "serving" if program == SUPERVISORD else program.partition("'")[0]  # the last to be ready
    before = sorted(descendants(installation).values())
    victim = victim_of(installation, program)
    installation.stack.new_events()
    os.kill(victim, signal.SIGKILL)
    events: list[str] = []

    def is_back() -> bool:
        events.extend(installation.stack.new_events())
        return f"{name} is ready again" in events

    eventually(is_back, REPLICA_BACK_SECONDS if name == "serving" else BACK_SECONDS, f"{program} is back")
    eventually(lambda: sorted(descendants(installation).values()) == before, BACK_SECONDS, "all processes are there")
    assert victim not in descendants(installation)
    assert installation.call("GET", "/ready")
    assert installation.ask(BASE)


def test_everything_works_after_all_that(installation: Installation) -> None:
    """A job needs the API, the broker, the control worker's schedule, a worker, its trainer and a replica."""
    job = installation.wait_for_success(installation.train(name="after-kills", epochs=1, publish=False))
    assert job["attempt"] == 1
