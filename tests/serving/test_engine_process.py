"""The engine's process waits, gets its call and the environment of that moment, and never outlives its server."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import pytest

from serving import engine_process
from serving.engine_process import fork_engine_process
from tests.support.processes import is_gone
from tests.support.serving_installation import ServingInstallation
from tests.support.waiting import eventually

STARTS = """
import os
from serving.engine_process import EngineContext, EngineProcess

context = EngineContext(EngineProcess())
del os.environ["EARLIER"]
os.environ["LATER"] = "later"
for name in ("first", "second"):
    process = context.Process(target=os.system, name=name, kwargs={"command": f"echo {name} $EARLIER $LATER"})
    process.start()
    process.join()
    print(type(process).__name__, process.exitcode, flush=True)
"""
WAITS = """
import sys
from serving.engine_process import EngineProcess

print(EngineProcess().pid, flush=True)
sys.stdin.readline()
"""


def test_first_process_was_there_already_and_gets_what_a_new_one_gets() -> None:
    done = subprocess.run(
        [sys.executable, "-c", STARTS], env=os.environ | {"EARLIER": "earlier"}, capture_output=True, text=True, check=True
    )  # fmt: skip
    assert done.stdout.splitlines() == ["first later", "EngineProcess 0", "second later", "SpawnProcess 0"]


@pytest.mark.parametrize("killed", [True, False])
def test_it_ends_with_a_server_that_starts_no_engine(killed: bool) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", WAITS], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as server:
        assert server.stdout and server.stdin
        waiting = int(server.stdout.readline())
        assert not is_gone(waiting)
        if killed:
            server.kill()
        else:
            server.stdin.write("\n")
            server.stdin.flush()
        assert server.wait(10) == (-9 if killed else 0)
        eventually(lambda: is_gone(waiting), 10, "it has ended")


@pytest.mark.torch
@pytest.mark.parametrize(
    ("changes", "preload", "forks"),
    [
        ({"serving_device": "cuda"}, "", False),
        ({"serving_cpu_threads": 2}, "", False),
        ({"serving_cpu_threads": 2}, "/lib/libgomp.so.1", True),
        ({"serving_cpu_threads": 1}, "", True),
    ],
)
def test_engine_is_a_fork_on_a_cpu_unless_several_threads_lack_openmp(
    serving_installation: ServingInstallation,
    monkeypatch: pytest.MonkeyPatch,
    changes: dict[str, Any],
    preload: str,
    forks: bool,
) -> None:
    made: list[object] = []
    monkeypatch.setenv("LD_PRELOAD", preload)
    monkeypatch.setattr("vllm.v1.engine.utils.get_mp_context", None)
    monkeypatch.setattr(engine_process, "EngineProcess", lambda: made.append(None))
    fork_engine_process(serving_installation.settings(**changes))
    assert bool(made) == forks
