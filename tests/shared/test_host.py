"""Memory that a process may use under each kind of limit, processes that exit with their parent, disks."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest

from shared.errors import Code, Unavailable
from shared.host import (
    _DISK_UNAVAILABLE,
    allowed_memory,
    available_memory,
    disk_errors,
    measure_folder,
    setting_of,
)
from tests.support.processes import is_gone
from tests.support.waiting import eventually

GIB = 1 << 30
UNLIMITED = str((1 << 63) - 4096)


def machine(root: Path, membership: str, files: dict[str, str]) -> tuple[Path, Path]:
    """A machine of 8 GiB, 7 of them free, with these control groups."""
    (root / "proc" / "self").mkdir(parents=True)
    (root / "proc" / "meminfo").write_text("MemTotal:        8388608 kB\nMemAvailable:    7340032 kB\n")
    (root / "proc" / "self" / "cgroup").write_text(membership)
    for name, text in files.items():
        path = root / "cgroup" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")
    return root / "proc", root / "cgroup"


LIMITS = {
    "no groups": ("", {}, 8 * GIB),
    "unified, unlimited": ("0::/a/b\n", {"a/b/memory.max": "max", "a/memory.max": "max"}, 8 * GIB),
    "unified": ("0::/a/b\n", {"a/b/memory.max": str(2 * GIB), "a/memory.max": "max"}, 2 * GIB),
    "unified, a group around it": (
        "0::/a/b\n",
        {"a/b/memory.max": str(6 * GIB), "a/memory.max": str(3 * GIB)},
        3 * GIB,
    ),
    "unified, in a container": ("0::/\n", {"memory.max": str(GIB)}, GIB),
    "unified, a path of outside": ("0::/../../kubepods/x\n", {"memory.max": str(GIB)}, GIB),
    "legacy": ("5:cpu:/x\n4:memory:/a\n", {"memory/a/memory.limit_in_bytes": str(GIB)}, GIB),
    "legacy, two controllers": ("4:cpu,memory:/a\n", {"memory/memory.limit_in_bytes": str(GIB)}, GIB),
    "legacy, unlimited": ("4:memory:/a\n", {"memory/a/memory.limit_in_bytes": UNLIMITED}, 8 * GIB),
    "more than there is": ("0::/a\n", {"a/memory.max": str(64 * GIB)}, 8 * GIB),
    "of another controller": ("5:cpu:/x\n", {"memory/x/memory.limit_in_bytes": str(GIB)}, 8 * GIB),
}


@pytest.mark.parametrize("name", LIMITS)
def test_allowed_memory_is_the_lowest_limit(name, tmp_path):
    membership, files, allowed = LIMITS[name]
    assert allowed_memory(*machine(tmp_path, membership, files)) == allowed


AVAILABLE = {
    "no groups": ("", {}, 7 * GIB),
    "unlimited": ("0::/a\n", {"a/memory.max": "max", "a/memory.current": str(2 * GIB)}, 7 * GIB),
    "unified": ("0::/a\n", {"a/memory.max": str(3 * GIB), "a/memory.current": str(2 * GIB)}, GIB),
    "unified, a group around it": (
        "0::/a/b\n",
        {"a/b/memory.max": str(4 * GIB), "a/memory.max": str(5 * GIB), "a/memory.current": str(3 * GIB)},
        2 * GIB,
    ),
    "unified, file cache is reclaimed": (
        "0::/\n",
        {"memory.max": str(3 * GIB), "memory.current": str(3 * GIB), "memory.stat": f"anon 5\ninactive_file {2 * GIB}"},
        2 * GIB,
    ),
    "legacy": (
        "4:memory:/\n",
        {
            "memory/memory.limit_in_bytes": str(3 * GIB),
            "memory/memory.usage_in_bytes": str(2 * GIB),
            "memory/memory.stat": f"inactive_file 0\ntotal_inactive_file {GIB}",
        },
        2 * GIB,
    ),
    "more used than allowed": ("0::/\n", {"memory.max": str(GIB), "memory.current": str(2 * GIB)}, 0),
}


@pytest.mark.parametrize("name", AVAILABLE)
def test_available_memory_is_the_lowest_remainder(name, tmp_path):
    membership, files, available = AVAILABLE[name]
    assert available_memory(*machine(tmp_path, membership, files)) == available


def test_this_machine_has_memory():
    assert 1 << 20 < available_memory() <= allowed_memory() < 1 << 50


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_full_disk_is_a_retryable_error(number):
    with pytest.raises(Unavailable) as caught, disk_errors():
        raise OSError(number, "full")
    assert (caught.value.code, caught.value.retryable) == (Code.STORAGE_FULL, True)


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_full_disk_is_known_by_the_text_of_a_library_that_has_errors_of_its_own(number):
    """As safetensors has them: an Exception, no OSError."""
    with pytest.raises(Unavailable) as caught, disk_errors():
        raise RuntimeError(f"Error while serializing: I/O error: No space left on device (os error {number})")
    assert caught.value.code == Code.STORAGE_FULL


@pytest.mark.parametrize("number", sorted(_DISK_UNAVAILABLE))
def test_disk_that_cannot_be_used_is_a_retryable_error_without_the_path(number):
    for error in (OSError(number, os.strerror(number), "/secret"), RuntimeError(f"/secret: bad (os error {number})")):
        with pytest.raises(Unavailable) as caught, disk_errors():
            raise error
        assert (caught.value.code, caught.value.retryable) == (Code.STORAGE_UNAVAILABLE, True)
        assert os.strerror(number) in caught.value.message
        assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    "error",
    [
        FileNotFoundError(errno.ENOENT, "no"),
        ConnectionRefusedError(errno.ECONNREFUSED, "no"),
        TimeoutError(),
        RuntimeError("(os error 2)"),
    ],
)
def test_other_errors_are_unchanged(error):
    with pytest.raises(type(error)), disk_errors():
        raise error


def test_folder_is_measured_with_its_subfolders(tmp_path):
    (tmp_path / "sub").mkdir()
    for path, moment in ((tmp_path / "a", 1000), (tmp_path / "sub" / "b", 2000)):
        path.write_bytes(b"x" * moment)
        os.utime(path, (moment, moment))
    assert measure_folder(tmp_path) == (3000, datetime.fromtimestamp(2000, UTC))


def test_absent_folder_has_no_bytes(tmp_path):
    assert measure_folder(tmp_path / "none") == (0, datetime(1970, 1, 1, tzinfo=UTC))


PARENT = """
import multiprocessing, sys, time
from shared.host import exit_with_parent

def child():
    exit_with_parent()
    print(multiprocessing.current_process().pid, flush=True)
    time.sleep(60)

if __name__ == "__main__":
    exit_with_parent()  # no child of multiprocessing: nothing happens
    multiprocessing.get_context(sys.argv[1]).Process(target=child).start()
    time.sleep(60)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel's death signal is Linux's")
@pytest.mark.parametrize("method", ["spawn", "fork"])
def test_child_ends_with_a_killed_parent(tmp_path, method):
    script = tmp_path / "parent.py"
    script.write_text(PARENT)
    parent = subprocess.Popen(
        [sys.executable, str(script), method], stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        child = int(parent.stdout.readline())
        assert not is_gone(child)
        parent.kill()
        parent.wait(10)
        eventually(lambda: is_gone(child), 60, "the child exits")
    finally:
        if not is_gone(child):
            os.killpg(parent.pid, signal.SIGKILL)
        parent.stdout.close()


def test_setting_to_blame_for_a_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "file"
    file.touch()
    home = tmp_path / "home"
    home.mkdir()
    for variable, path in (
        ("MENS_HOME", home), ("MENS_CATALOG_PATH", tmp_path), ("MENS_RUNS_DIR", file), ("MENS_SIGNING_KEY", tmp_path / "no/such/key.pem"),
        ("MENS_PREPARED_DIR", tmp_path / ("x" * 300)),
    ):  # fmt: skip
        monkeypatch.setenv(variable, str(path))
    found = {
        tmp_path: "MENS_CATALOG_PATH",  # the home folder lies in it
        file / "job-1" / "plan.json": "MENS_RUNS_DIR",  # a file instead of a folder
        tmp_path / "no": "MENS_SIGNING_KEY",  # a folder of it is missing
        home / "rows.jsonl": None,  # a sound folder is not to blame for somebody's file in it
        tmp_path.parent: None,  # nor for one around it
        tmp_path / ("x" * 300) / "y": "MENS_PREPARED_DIR",  # a name that no file system has
    }
    assert {path: setting_of(path) for path in found} == found
