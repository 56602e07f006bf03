"""Real faults: mounts, signals and locks. Each is a context manager; the fault ends with the block."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Protocol

import psutil

from cli.standalone.environment import PROJECT

ROOM_BYTES = 96 << 20
"""Free space of a small disk before it is filled; a worker needs a third of it."""
CHUNK = bytes(1 << 16)
TOP_UP_SECONDS = 0.02


class CannotTry(Exception):
    """This machine does not allow a fault to be made, e.g. a mount."""


def _mount(*arguments: str) -> None:
    done = subprocess.run(["mount", *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        raise CannotTry(f"no right to mount: {done.stderr.strip()}")


@contextmanager
def mounted(folder: Path, *arguments: str) -> Iterator[None]:
    """Mount something in a folder's place."""
    _mount(*arguments, str(folder))
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


@contextmanager
def read_only(folder: Path) -> Iterator[None]:
    """The folder, read-only: as ext4 becomes after an error of the disk."""
    with mounted(folder, "--bind", str(folder)):
        _mount("-o", "remount,bind,ro", str(folder))
        yield


@contextmanager
def small_disk(folder: Path, room: int = ROOM_BYTES) -> Iterator[None]:
    """The folder with its content on a disk of its own, which has some bytes of room; what is written there is kept afterwards."""
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    with tempfile.TemporaryDirectory() as name, mounted(Path(name), "--bind", str(folder)):
        options = f"size={size + room},mode=755"
        with mounted(folder, "-t", "tmpfs", "-o", options, "tmpfs"):
            _copy(Path(name), folder)
            try:
                yield
            finally:
                _copy(folder, Path(name))


def _copy(source: Path, target: Path) -> None:
    """Copy a folder's content over another's. `shutil.copytree` refuses a link that is there already."""
    subprocess.run(["cp", "-a", f"{source}/.", str(target)], check=True)


@contextmanager
def full(folder: Path) -> Iterator[None]:
    """A disk whose every byte is taken from the block's begin on, also those that somebody frees meanwhile."""
    if not os.path.ismount(folder):
        raise CannotTry(f"{folder} is not a disk of its own")
    is_full, over = threading.Event(), threading.Event()
    with tempfile.TemporaryFile(dir=folder, buffering=0) as ballast:

        def fill() -> None:
            while not over.is_set():
                try:
                    ballast.write(CHUNK)
                except OSError:
                    with suppress(OSError):  # the rest, byte by byte of a page
                        ballast.write(CHUNK[: 1 << 12])
                    is_full.set()
                    over.wait(TOP_UP_SECONDS)

        fillers = threading.Thread(target=fill)
        fillers.start()
        try:
            is_full.wait()  # a worker would begin a job that finds room until then
            yield
        finally:
            over.set()
            fillers.join()


@contextmanager
def locked(database: Path) -> Iterator[None]:
    """An SQLite database that somebody else writes to, in one long transaction."""
    with sqlite3.connect(database, isolation_level=None, timeout=60) as connection:
        connection.execute("BEGIN EXCLUSIVE")
        try:
            yield
        finally:
            connection.execute("ROLLBACK")


@contextmanager
def hanging(process: psutil.Process) -> Iterator[None]:
    """A process and its children that are there and do nothing: a machine that swaps, a network that drops packets."""
    stopped = [process, *process.children(recursive=True)]
    for each in stopped:
        each.suspend()
    try:
        yield
    finally:
        for each in stopped:
            with suppress(psutil.NoSuchProcess):
                each.resume()


@contextmanager
def clock_moved(clock: Path, seconds: int) -> Iterator[None]:
    """Programs whose clock jumps forward, or back, by some seconds, and afterwards the other way round. Their monotonic clock does not."""
    set_clock(clock, seconds)
    try:
        yield
    finally:
        set_clock(clock, 0)


def set_clock(clock: Path, seconds: int) -> None:
    """Say by how much the clock differs; programs look once a second."""
    new = clock.with_suffix(".new")
    new.write_text(f"{seconds:+d}\n")
    new.replace(clock)


def movable_clock(clock: Path) -> dict[str, str]:
    """Environment of programs whose clock is moved by a file, in a folder of its own."""
    libraries = sorted(Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1"))
    if not libraries:
        raise CannotTry("libfaketime is not installed; on Debian: apt-get install faketime")
    set_clock(clock, 0)
    # libfaketime 0.9.10 breaks the system call of `time.sleep`, also for the monotonic clock.
    clock.with_name("sitecustomize.py").write_text(
        "import select, time\ntime.sleep = lambda seconds: select.select([], [], [], seconds) and None\n"
    )
    return {
        "PYTHONPATH": f"{clock.parent}:{PROJECT}",
        "LD_PRELOAD": str(libraries[0]),
        "FAKETIME_TIMESTAMP_FILE": str(clock),
        "FAKETIME_CACHE_DURATION": "1",
        "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        "FAKETIME_DONT_RESET": "1",
    }


class Server(Protocol):
    """A server of a test, started by it as the leader of a process group."""

    process: subprocess.Popen[bytes]


@contextmanager
def away(server: Server) -> Iterator[None]:
    """A server that was killed and refuses connections, until it is started again as it was."""
    found = psutil.Process(server.process.pid)
    start = {"cwd": found.cwd(), "env": found.environ()}
    if (user := found.uids().real) != os.getuid():
        start |= {"user": user, "group": found.gids().real, "extra_groups": []}
    os.killpg(found.pid, signal.SIGKILL)
    server.process.wait()
    try:
        yield
    finally:
        null = subprocess.DEVNULL
        server.process = subprocess.Popen(
            server.process.args, stdin=null, stdout=null, stderr=null, process_group=0, **start
        )
