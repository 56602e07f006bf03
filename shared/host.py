"""This machine: memory that a process may use, processes that exit with their parent, faults of disks, sizes of folders."""

from __future__ import annotations

import errno
import multiprocessing
import os
import re
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path, PurePosixPath

from shared.contained.limits import end_with_parent
from shared.errors import Code, InvalidRequest, Unavailable

_DISK_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
_DISK_UNAVAILABLE = frozenset(
    {
        errno.EACCES, errno.EIO, errno.EMFILE, errno.ENFILE, errno.ENODEV, errno.ENOTCONN, errno.ENXIO,
        errno.EPERM, errno.EREMOTEIO, errno.EROFS, errno.ESHUTDOWN, errno.ESTALE, errno.EUCLEAN,
    }
)  # fmt: skip
"""A read-only, disconnected, defective or forbidden disk, and too many open files."""
_PATH_FAULTS = frozenset(
    {
        errno.EACCES, errno.EEXIST, errno.EISDIR, errno.ELOOP, errno.ENAMETOOLONG, errno.ENOENT, errno.ENOTDIR, errno.ENOTEMPTY,
        errno.EPERM, errno.EROFS,
    }
)  # fmt: skip
"""A folder where a file is needed, a file where a folder is, a path that does not exist or may not be used."""

# For cgroup v2 and v1: the files with a group's limit and use, and the part of the use that is reclaimed first.
_UNIFIED = ("memory.max", "memory.current", "inactive_file")
_LEGACY = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")


def exit_with_parent(parent: int | None = None, signal_number: signal.Signals = signal.SIGKILL) -> None:
    """Ask the kernel to send this process a signal when its parent dies.

    vLLM runs its engine in a child process. When the server is killed outright (kill -9, the kernel out of memory),
    that child would run indefinitely and keep the GPU's memory, so that the next start finds none.

    Args:
        parent: pid of the process that started this one. If it has died before this call, this process ends
            immediately. None: the process that started this one through `multiprocessing`; without one, nothing is
            done.
        signal_number: the signal.
    """
    if parent is None:
        # The parent that multiprocessing recorded: if that one has died, the process already has another parent.
        parent = getattr(multiprocessing.parent_process(), "pid", None)
    if parent is None or not sys.platform.startswith("linux"):
        return
    end_with_parent(parent, signal_number)


@contextmanager
def disk_errors() -> Iterator[None]:
    """Turn a disk's fault into a coded, retryable error without the path; other errors pass unchanged.

    Raises:
        Unavailable: ``STORAGE_FULL``, ``STORAGE_UNAVAILABLE``.
    """
    try:
        yield
    except Exception as error:
        # Libraries raise errors of their own classes for faults of the disk.
        if (fault := disk_fault(error)) is None:
            raise
        raise fault from error


def disk_fault(error: BaseException) -> Unavailable | None:
    """Return the coded error of a disk's fault; None if the error has another cause."""
    number = _system_error(error)
    if number in _DISK_FULL:
        return storage_full()
    return storage_unavailable(os.strerror(number)) if number in _DISK_UNAVAILABLE else None


@contextmanager
def path_errors() -> Iterator[None]:
    """Turn the error of a path that cannot be used into a coded one with the path; other errors pass unchanged.

    Raises:
        InvalidRequest: ``PATH_INVALID``.
    """
    try:
        yield
    except OSError as error:
        if (fault := path_fault(error)) is None:
            raise
        raise fault from error


def path_fault(error: OSError) -> InvalidRequest | None:
    """Return the coded error for a user-supplied path that cannot be used, with the setting that names it; None if the
    error has another cause.
    """
    # A rename or a copy has two paths, and the first may be a temporary one.
    path = error.filename2 or error.filename
    if error.errno not in _PATH_FAULTS or not isinstance(path, str | os.PathLike):
        return None
    message = f"{path} cannot be used: {os.strerror(error.errno)}."
    needed = "a path that you may write to: a file where a file is needed, a folder where a folder is needed."
    if variable := setting_of(Path(os.fsdecode(path))):
        return InvalidRequest(
            Code.PATH_INVALID, f"{variable}: {message}", remedy=f"Set {variable} to {needed}", param=variable
        )
    return InvalidRequest(Code.PATH_INVALID, message, remedy=f"Name {needed}", param=str(path))


def setting_of(path: Path) -> str | None:
    """Return the environment variable that causes the fault of a path: its value is this path, or one of the two paths
    is inside the other, which is not a folder.
    """
    path = path.absolute()
    candidates = []
    for variable, value in os.environ.items():
        if variable.startswith("MENS_") and value:
            named = Path(os.path.expanduser(value)).absolute()  # noqa: PTH111 (Path's raises for unknown users)
            is_around = named in path.parents and not os.path.isdir(named)  # noqa: PTH112 (Path's raises where it may not look)
            is_within = path in named.parents and not os.path.isdir(path)  # noqa: PTH112
            if path == named or is_around or is_within:
                candidates.append((path == named, len(named.parts), variable))
    return max(candidates)[2] if candidates else None


def storage_full() -> Unavailable:
    """Return the error of a full disk or an exhausted quota."""
    return Unavailable(
        Code.STORAGE_FULL, "The storage has no space left.", remedy="Free or add disk space, then try again."
    )


def storage_unavailable(reason: str) -> Unavailable:
    """Return the error of a disk that cannot be used; ``reason`` is the system's, e.g. ``Read-only file system``."""
    return Unavailable(
        Code.STORAGE_UNAVAILABLE,
        f"The storage cannot be used: {reason}.",
        remedy="Check that machine's disk, its mount, permissions and limit of open files, then try again.",
    )


def _system_error(error: BaseException) -> int:
    """Return the operating system's number of an error; 0 if it has none."""
    if isinstance(error, OSError):
        return error.errno or 0
    # Libraries written in Rust (safetensors) raise their own errors, which have the system's number only in their
    # message.
    match = re.search(r"\(os error (\d+)\)", str(error))
    return int(match[1]) if match else 0


def measure_folder(folder: Path) -> tuple[int, datetime]:
    """Return the total bytes of all files below a folder, and the time of the last write; 0 and 1970 without files."""
    size, newest = 0, 0.0
    for path, _, names in os.walk(folder):
        for name in names:
            # A file may be removed while this walks.
            with suppress(FileNotFoundError):
                stat = Path(path, name).lstat()
                size, newest = size + stat.st_size, max(newest, stat.st_mtime)
    return size, datetime.fromtimestamp(newest, UTC)


def allowed_memory(proc: Path = Path("/proc"), groups: Path = Path("/sys/fs/cgroup")) -> int:
    """Return the bytes that this process and its children may use: the machine's memory, or a control group's limit.

    Args:
        proc: mount point of procfs.
        groups: mount point of control groups: the unified tree, or the older one with a folder per controller.
    """
    return min([_meminfo(proc, "MemTotal"), *(limit for limit, _ in _group_limits(proc, groups))])


def available_memory(proc: Path = Path("/proc"), groups: Path = Path("/sys/fs/cgroup")) -> int:
    """Return the bytes that this process can still use: the machine's free memory, or the rest of its control group's.

    Args:
        proc: the same as for `allowed_memory`.
        groups: the same as for `allowed_memory`.
    """
    left = (max(0, limit - used) for limit, used in _group_limits(proc, groups))
    return min([_meminfo(proc, "MemAvailable"), *left])


def allowed_cores(proc: Path = Path("/proc"), groups: Path = Path("/sys/fs/cgroup")) -> int:
    """Return the cores that this process may use, at least one: those it may run on, or its control group's share.

    Args:
        proc: the same as for `allowed_memory`.
        groups: the same as for `allowed_memory`, but only for the unified tree.
    """
    runnable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    shares = [float(runnable)]
    for folder, names in _group_folders(proc, groups):
        with suppress(OSError, ValueError):
            if names is _UNIFIED:
                quota, period = (folder / "cpu.max").read_text().split()
                # Without a limit, the file contains "max", which is not a number.
                shares.append(int(quota) / int(period))
    return max(1, int(min(shares)))


def _meminfo(proc: Path, field: str) -> int:
    facts = dict(line.split(":", 1) for line in (proc / "meminfo").read_text().splitlines())
    return int(facts[field].split()[0]) * 1024


def _group_limits(proc: Path, groups: Path) -> Iterator[tuple[int, int]]:
    """Yield limit and use in bytes of this process's group and of every enclosing group with a limit."""
    for folder, (limit_name, use_name, reclaimable) in _group_folders(proc, groups):
        try:
            limit = (folder / limit_name).read_text().strip()
            # Without a limit, the file contains "max".
            if limit.isdigit():
                yield int(limit), _group_use(folder, use_name, reclaimable)
        except OSError:
            # The root group has no limit file, and a container does not see the groups around it.
            continue


def _group_use(folder: Path, use_name: str, reclaimable: str) -> int:
    """Return the bytes in use, without the file cache that the kernel reclaims first: reading models fills it."""
    use = folder / use_name
    if not use.is_file():
        return 0
    stat = folder / "memory.stat"
    facts = dict(line.split() for line in stat.read_text().splitlines()) if stat.is_file() else {}
    return max(0, int(use.read_text()) - int(facts.get(reclaimable, 0)))


def _group_folders(proc: Path, groups: Path) -> Iterator[tuple[Path, tuple[str, str, str]]]:
    membership = proc / "self" / "cgroup"
    for line in membership.read_text().splitlines() if membership.is_file() else ():
        number, controllers, path = line.split(":", 2)
        # Hierarchy 0 is the unified one (cgroup v2); version 1 has a line for each hierarchy of controllers.
        if number == "0":
            root, names = groups, _UNIFIED
        elif "memory" in controllers.split(","):
            root, names = groups / "memory", _LEGACY
        else:
            continue
        group = PurePosixPath(path)
        for ancestor in (group, *group.parents):
            yield root / ancestor.relative_to("/"), names
