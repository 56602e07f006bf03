"""Faults that a whole installation outlives: a worker's disk, with real mounts; an emptied queue; a locked database.

Jobs wait for the end of the fault and succeed. `docs/faults.md` lists the faults and their tests.
"""

from __future__ import annotations

import sqlite3
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest
from redis import Redis

from tests.support.waiting import eventually
from tests.system.loop import SECONDS, Installation

pytestmark = pytest.mark.long  # `tests/worker/jobs/test_runner.py` has the same without an installation

JOBS = 3
LOCKED_SECONDS = 8.0
"""Longer than a lease and than what a statement waits for a lock."""


def _mount(*arguments: str) -> None:
    done = subprocess.run(["mount", *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"this test may not mount: {done.stderr.strip()}")


@contextmanager
def _mounted(folder: Path, *arguments: str) -> Iterator[None]:
    _mount(*arguments, str(folder))
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


@contextmanager
def read_only(folder: Path) -> Iterator[None]:
    """The folder, read-only: as ext4 becomes after an error of the disk."""
    with _mounted(folder, "--bind", str(folder)):
        _mount("-o", "remount,bind,ro", str(folder))
        yield


def full(folder: Path) -> AbstractContextManager[None]:
    """A file system in the folder's place that has hardly any room."""
    return _mounted(folder, "-t", "tmpfs", "-o", "size=16k", "tmpfs")


@pytest.fixture
def runs(home: Path, installation: Installation) -> Path:
    installation.wait_for_success(installation.train(name="before", publish=False, epochs=1))
    return home / "runs"


@pytest.mark.parametrize("fault", [read_only, full])
def test_queued_jobs_wait_for_a_bad_disk(
    installation: Installation, home: Path, runs: Path, fault: Callable[[Path], AbstractContextManager[None]]
) -> None:
    log = home / "logs" / "worker.log"
    before = len(log.read_text())
    with fault(runs):
        jobs = [installation.train(name=f"waits-{number}", publish=False, epochs=1) for number in range(JOBS)]
        eventually(lambda: "this worker takes no job" in log.read_text()[before:], SECONDS, "the fault is found")
        assert {installation.job(job)["state"] for job in jobs} == {"queued"}
    for job in jobs:
        assert installation.wait_for_success(job)["attempt"] == 1


def test_running_job_outlives_a_bad_disk(installation: Installation, runs: Path) -> None:
    job = installation.train(name="outlives", publish=False, checkpoint_every=5)
    installation.wait_for_step(job, 10)
    with read_only(runs):
        installation.wait(job, lambda job: job["state"] != "running")
        assert installation.job(job)["state"] == "queued"
    done = installation.wait_for_success(job)
    assert done["attempt"] > 1
    codes = {event["data"]["error"]["code"] for event in done["events"] if "error" in event["data"]}
    assert codes == {"STORAGE_UNAVAILABLE"}
    assert installation.resumptions(job), "it continued from its checkpoint"


def test_jobs_whose_messages_are_lost_are_run(installation: Installation) -> None:
    """The database is the truth: the sweep sends the message of each waiting job again."""
    first = installation.train(name="runs", publish=False)
    installation.wait_for_step(first, 1)
    waiting = [installation.train(name=f"lost-{number}", publish=False, epochs=1) for number in range(JOBS)]
    with Redis.from_url(installation.stack.settings["MENS_BROKER_URL"]) as broker:
        assert broker.flushall()
    for job in (first, *waiting):
        assert installation.wait_for_success(job)["attempt"] == 1


def test_running_job_outlives_a_locked_database(installation: Installation, home: Path) -> None:
    job = installation.train(name="locked", checkpoint_every=5)
    installation.wait_for_step(job, 5)
    with sqlite3.connect(home / "mens.db", isolation_level=None, timeout=SECONDS) as database:
        database.execute("BEGIN IMMEDIATE")
        time.sleep(LOCKED_SECONDS)
        database.execute("ROLLBACK")
    done = installation.wait_for_success(job)
    installation.assert_one_result(done)
    codes = {event["data"]["error"]["code"] for event in done["events"] if "error" in event["data"]}
    assert codes <= {"LEASE_EXPIRED", "DATABASE_UNAVAILABLE"}
