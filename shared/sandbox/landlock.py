"""Landlock: a process gives up access to all files except the named ones, to TCP, and to signals for other processes.
Three system calls, no library.

Source: Linux' `Documentation/userspace-api/landlock.rst`, `include/uapi/linux/landlock.h`.
"""

from __future__ import annotations

import ctypes
import os
import struct
from collections.abc import Iterable
from pathlib import Path

_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446  # the same on every architecture
_VERSION_FLAG = 1
_RULE_PATH_BENEATH = 1
_PR_SET_NO_NEW_PRIVS = 38

_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR = 1 << 0, 1 << 1, 1 << 2, 1 << 3
_REMOVE_DIR, _REMOVE_FILE, _MAKE_DIR, _MAKE_REG = 1 << 4, 1 << 5, 1 << 7, 1 << 8
_ALL_OF_ABI = {1: (1 << 13) - 1, 2: (1 << 14) - 1, 3: (1 << 15) - 1, 5: (1 << 16) - 1}
_REFER, _TRUNCATE = 1 << 13, 1 << 14
_NET_TCP = 0b11  # bind, connect; ABI 4
_SCOPES = 0b11  # abstract UNIX sockets, signals; ABI 6

_FOR_FILES = _EXECUTE | _WRITE_FILE | _READ_FILE | _TRUNCATE
_READ = _READ_FILE | _READ_DIR
_OWN = _READ | _WRITE_FILE | _TRUNCATE | _REMOVE_DIR | _REMOVE_FILE | _MAKE_DIR | _MAKE_REG

_libc = ctypes.CDLL(None, use_errno=True)


def abi_version() -> int:
    """Return the kernel's Landlock version; 0 if it is missing or switched off."""
    return max(0, int(_libc.syscall(_CREATE_RULESET, None, 0, _VERSION_FLAG)))


def restrict_files(
    readable: Iterable[Path], writable: Iterable[Path], executable: Iterable[Path] = (), *, moves: bool = False
) -> None:
    """Irrevocably restrict this process and its children to these paths; and, as far as the kernel supports it, forbid
    TCP and signals to other processes.

    Args:
        readable: files, and folders with all that is in them; those that do not exist are left out.
        writable: files; and folders in which files and folders may be created, written, removed; no links, sockets,
            devices.
        executable: files, and folders with all that is in them, that may be executed, and read.
        moves: allow moves between writable folders. Moves let files escape measurement.

    Raises:
        OSError: the kernel refuses.
    """
    version = abi_version()
    handled = max(rights for since, rights in _ALL_OF_ABI.items() if since <= max(version, 1))
    attributes = struct.pack("QQQ", handled, _NET_TCP if version >= 4 else 0, _SCOPES if version >= 6 else 0)
    own = _OWN | (_REFER if moves else 0)
    size = 24 if version >= 6 else 16 if version >= 4 else 8
    ruleset = _checked(_libc.syscall(_CREATE_RULESET, attributes, size, 0))
    try:
        for rights, paths in ((_READ, readable), (own, writable), (_READ | _EXECUTE, executable)):
            for path in paths:
                _allow(ruleset, path, rights & handled)
        # The kernel requires this of a process without CAP_SYS_ADMIN.
        _checked(_libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
        _checked(_libc.syscall(_RESTRICT_SELF, ruleset, 0))
    finally:
        os.close(ruleset)


def _allow(ruleset: int, path: Path, rights: int) -> None:
    try:
        opened = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    try:
        rule = struct.pack("=Qi", rights if path.is_dir() else rights & _FOR_FILES, opened)
        _checked(_libc.syscall(_ADD_RULE, ruleset, _RULE_PATH_BENEATH, rule, 0))
    finally:
        os.close(opened)


def _checked(result: int) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"Landlock: {os.strerror(number)}")
    return result
