"""Confinement of a process: a user of its own, limits, files, system calls. Each step is irrevocable."""

from __future__ import annotations

import ctypes
import os
import resource
import struct
from collections.abc import Iterable
from pathlib import Path

from shared.contained.limits import dump_nothing, limit
from shared.sandbox import landlock, seccomp
from shared.sandbox.levels import Limits

FIRST_UID = 0x4D00_0000
"""First user id of graders: above all ids that systems give to people or services."""
UIDS = 1 << 26
# A container may map only 65,536 users: these are above the ids of its own services, and below that limit.
_FIRST_UID_OF_CONTAINER = 20_000
_UIDS_OF_CONTAINER = 40_000

_PR_SET_KEEPCAPS = 8
_CAPABILITY_VERSION_3 = 0x20080522
_CAP_DAC_READ_SEARCH = 2
_libc = ctypes.CDLL(None, use_errno=True)


def own_uid(number: int) -> int:
    """Return a user id for a grader that is mapped on this machine or in the container.

    Args:
        number: random number, so that concurrent graders have different users.
    """
    ranges = [[int(word) for word in line.split()] for line in _read("/proc/self/uid_map").splitlines()]
    largest = max((inside + count for inside, _, count in ranges), default=1 << 32)
    if largest >= FIRST_UID + UIDS:
        return FIRST_UID + number % UIDS
    return _FIRST_UID_OF_CONTAINER + number % _UIDS_OF_CONTAINER


def _read(path: str) -> str:
    # Within bubblewrap /proc does not exist; no user ids are mapped there.
    try:
        return Path(path).read_text()
    except OSError:
        return ""


def become(uid: int, *, read_everything: bool) -> None:
    """Turn from root into a user, and give up every capability.

    Args:
        read_everything: whether to keep the one capability that lets root read all files, needed for a Python
            installation below /root. Landlock then decides which files may be read at all.

    Raises:
        OSError: this root may not change its user, as in a container without capabilities.
    """
    # Groups first: after the change of user this process may no longer change them.
    os.setgroups([])
    os.setresgid(uid, uid, uid)
    if read_everything:
        # The change of user would otherwise drop all capabilities.
        _checked(_libc.prctl(_PR_SET_KEEPCAPS, 1, 0, 0, 0))
    os.setresuid(uid, uid, uid)
    if read_everything:
        kept = 1 << _CAP_DAC_READ_SEARCH
        header = struct.pack("=Ii", _CAPABILITY_VERSION_3, 0)
        _checked(_libc.capset(header, struct.pack("=6I", kept, kept, 0, 0, 0, 0)))


def limit_server(limits: Limits) -> None:
    """Limit memory, files and dumps of this process and its children."""
    limit(resource.RLIMIT_AS, limits.memory_bytes)
    limit(resource.RLIMIT_FSIZE, limits.file_bytes)
    limit(resource.RLIMIT_NOFILE, limits.files)
    dump_nothing()
    limit(resource.RLIMIT_MEMLOCK, 0)
    # Message queues are memory of the kernel, which the limit of the address space does not count.
    limit(resource.RLIMIT_MSGQUEUE, 0)


def limit_item(limits: Limits, threads: int) -> None:
    """Limit processor time, and tasks of this process's user."""
    # One second more than its elapsed time, which ends it first unless it has threads.
    limit(resource.RLIMIT_CPU, int(limits.wall_seconds) + 1)
    if threads:
        limit(resource.RLIMIT_NPROC, threads)


def close_in(
    readable: Iterable[Path], writable: Iterable[Path], program: bytes, executable: Iterable[Path] = ()
) -> None:
    """Give up access to all files except these and all system calls except the program's. If programs may be executed,
    files may also be moved.
    """
    executable = [*executable]
    landlock.restrict_files(readable, writable, executable, moves=bool(executable))
    seccomp.apply(program)


def _checked(result: int) -> None:
    if result:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
