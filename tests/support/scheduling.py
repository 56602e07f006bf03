"""The distribution of tests over the processes of a parallel run, and their order: tests that share slow servers go to
one process and run first; those with their own servers or a real model run last. A server ends with the last test that
shares it.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from xdist.scheduler import LoadFileScheduling

TOGETHER = ("tests/system/", "tests/vllm/", "tests/console/")
"""Folders whose files share an installation or a replica for the whole session; starting it twice would take a minute
more.
"""
ALONE = (
    "tests/system/test_real_model.py",
    "tests/system/test_real_demo.py",
    "tests/system/test_real_preferences.py",
    "tests/system/test_real_bench.py",
    "tests/system/test_base_families.py",
    "tests/system/test_live_checkpoints.py",
    "tests/system/test_hostile.py",
    "tests/system/test_marker_adapters.py",
)
"""Files in these folders that start their own servers."""
LONGEST = (
    "tests/system/",
    "tests/bench/test_smoke.py",
    "tests/vllm/",
    "tests/console/",
    "tests/worker/training/test_several_processes.py",
)
"""Files that start early, in this order. If a long file came last, the other process would have nothing to do."""
LAST = ("tests/worker/training/model/test_cpu_memory.py", *ALONE)
"""Files that start after all others, because most of their tests are long: a run that exceeds its time leaves these
out.
"""
MINUTES = "MENS_TEST_MINUTES"
"""Environment variable: minutes after which a run begins no further long test. Without it, a run has no time limit."""
EARLY_SHARE = 1 / 2
"""Share of these minutes after which only the long tests of the last files may begin, so that those get time too."""


def folder_of(path: str) -> str | None:
    """The folder with shared servers that contains a path."""
    return next((folder for folder in TOGETHER if path.startswith(folder)), None)


def unit_of(path: str) -> str:
    """The unit to which a file's tests belong, by its path from the repository's root: a folder, or the file itself."""
    return path if path in ALONE else folder_of(path) or path


def rank(path: str) -> int:
    """The position of a file's unit: the longest come first, and all unnamed files share the next position."""
    unit = unit_of(path)
    if unit in LAST:
        return len(LONGEST) + 1 + LAST.index(unit)
    return LONGEST.index(unit) if unit in LONGEST else len(LONGEST)


class ServerScheduling(LoadFileScheduling):
    """A scheduler that sends each file to one process, and all files of a folder with shared servers to the same one."""

    def _split_scope(self, nodeid: str) -> str:
        return unit_of(nodeid.partition("::")[0])


class SharedServers:
    """A pytest plugin that ends the session fixtures of a folder after its last test, because an idle installation uses
    a tenth of a core.
    """

    def __init__(self) -> None:
        self._running: list[tuple[str, pytest.FixtureDef[Any], pytest.FixtureRequest]] = []

    @pytest.hookimpl(tryfirst=True)
    def pytest_fixture_setup(self, fixturedef: pytest.FixtureDef[Any], request: pytest.FixtureRequest) -> None:
        """Record a fixture before it is created."""
        folder = folder_of(f"{fixturedef.baseid}/")
        if fixturedef.scope == "session" and folder:
            self._running.append((folder, fixturedef, request))

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_teardown(self, nextitem: pytest.Item | None) -> Iterator[None]:
        """End the fixtures that the next test does not share, in reverse order of creation."""
        yield
        next_folder = nextitem and folder_of(nextitem.nodeid)
        ended = [running for running in self._running if running[0] != next_folder]
        self._running = [running for running in self._running if running[0] == next_folder]
        for _, fixturedef, request in reversed(ended):
            fixturedef.finish(request)


class TimeLimit:
    """A pytest plugin that skips long tests for which a run has no time, so that on a slow machine the run still
    completes all others.

    Args:
        minutes: the time of the run; None does not limit it.
        clock: seconds since any moment; the run begins now.
    """

    def __init__(self, minutes: float | None, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._start = clock()
        self._minutes = minutes

    @classmethod
    def from_environment(cls) -> TimeLimit:
        """Return the time limit from `MINUTES`."""
        minutes = os.environ.get(MINUTES)
        return cls(float(minutes) if minutes else None)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        """Skip a long test that would begin too late."""
        if self._minutes is None or not item.get_closest_marker("long"):
            return
        # After all other files nothing waits for the time that is left.
        share = 1 if unit_of(item.nodeid.partition("::")[0]) in LAST else EARLY_SHARE
        if self._clock() - self._start > share * self._minutes * 60:
            pytest.skip("MENS_TEST_MINUTES leaves no time for this long test")
