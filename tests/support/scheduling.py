"""Which process of a parallel run gets which tests, and when: those that share slow servers go to one process and first,
those with servers or a real model of their own last. The servers end with the last test that shares them.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from xdist.scheduler import LoadFileScheduling

TOGETHER = ("tests/system/", "tests/vllm/", "tests/console/")
"""Folders whose files share an installation or a replica for the whole session: started twice, it would cost a minute."""
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
"""Their files that start servers of their own."""
LONGEST = (
    "tests/system/",
    "tests/bench/test_smoke.py",
    "tests/vllm/",
    "tests/console/",
    "tests/worker/training/test_several_processes.py",
)
"""In the order in which they are started. A long one that came last would leave the other process without work."""
LAST = ("tests/worker/training/model/test_cpu_memory.py", *ALONE)
"""Started after all other files, because most of their tests are long: a run whose time is up leaves these out."""
MINUTES = "MENS_TEST_MINUTES"
"""Variable: minutes after which a run begins no further long test. Without it, a run has all the time it needs."""
EARLY_SHARE = 1 / 2
"""Share of these minutes after which it begins only the long tests that come last, so that the others get their time."""


def folder_of(path: str) -> str | None:
    """The folder of shared servers in which a path lies."""
    return next((folder for folder in TOGETHER if path.startswith(folder)), None)


def unit_of(path: str) -> str:
    """What a file's tests stay together with, by its path from the repository's root: a folder, or the file itself."""
    return path if path in ALONE else folder_of(path) or path


def rank(path: str) -> int:
    """The place of a file's unit: the longest have the first places, all files that are not named share the next."""
    unit = unit_of(path)
    if unit in LAST:
        return len(LONGEST) + 1 + LAST.index(unit)
    return LONGEST.index(unit) if unit in LONGEST else len(LONGEST)


class ServerScheduling(LoadFileScheduling):
    """A file goes to one process, and so do all files of a folder that share their servers."""

    def _split_scope(self, nodeid: str) -> str:
        return unit_of(nodeid.partition("::")[0])


class SharedServers:
    """Ends the session fixtures of a folder after its last test, because an idle installation takes a tenth of a core; a
    plugin of pytest.
    """

    def __init__(self) -> None:
        self._running: list[tuple[str, pytest.FixtureDef[Any], pytest.FixtureRequest]] = []

    @pytest.hookimpl(tryfirst=True)
    def pytest_fixture_setup(self, fixturedef: pytest.FixtureDef[Any], request: pytest.FixtureRequest) -> None:
        """Note a fixture that is about to be made."""
        folder = folder_of(f"{fixturedef.baseid}/")
        if fixturedef.scope == "session" and folder:
            self._running.append((folder, fixturedef, request))

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_teardown(self, nextitem: pytest.Item | None) -> Iterator[None]:
        """End what the next test does not share, last made first."""
        yield
        next_folder = nextitem and folder_of(nextitem.nodeid)
        ended = [running for running in self._running if running[0] != next_folder]
        self._running = [running for running in self._running if running[0] == next_folder]
        for _, fixturedef, request in reversed(ended):
            fixturedef.finish(request)


class TimeLimit:
    """Skips the long tests that a run has no time for, so that on a slow machine it still ends with all others; a plugin of pytest.

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
        """The limit of `MINUTES`."""
        minutes = os.environ.get(MINUTES)
        return cls(float(minutes) if minutes else None)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        """Skip a long test that begins too late."""
        if self._minutes is None or not item.get_closest_marker("long"):
            return
        # After all other files nothing waits for the time that is left.
        share = 1 if unit_of(item.nodeid.partition("::")[0]) in LAST else EARLY_SHARE
        if self._clock() - self._start > share * self._minutes * 60:
            pytest.skip("MENS_TEST_MINUTES leaves no time for this long test")
