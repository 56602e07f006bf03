"""bubblewrap: separate namespaces without network, without other processes, and with no files but Python's."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from shared.sandbox.environment import DEVICES, ROOT, readable_paths

PROGRAM = "bwrap"
_FOLDER = "/tmp"  # noqa: S108 - of the new file system
# A fork server that is root gives each grader a user of its own, and ends it.
_CAPABILITIES_OF_ROOT = ("CAP_SETUID", "CAP_SETGID", "CAP_KILL", "CAP_CHOWN")


def disk(number: int) -> Path:
    """Return the path, inside, of the file system with this number."""
    return Path(_FOLDER, f"disk{number}")


def is_installed() -> bool:
    """Return whether bubblewrap is installed on this machine."""
    return shutil.which(PROGRAM) is not None


def wrapped(
    command: Sequence[str],
    environment: Mapping[str, str],
    info_fd: int,
    tmpfs_bytes: int,
    bound: Iterable[Path] = (),
    *,
    as_first: bool = True,
    disks: int = 0,
) -> list[str]:
    """Make a command line that runs another in new namespaces, with an empty file system except for Python's needs.

    Args:
        environment: environment of the command, all of it.
        info_fd: descriptor to which bubblewrap writes the process id of the namespaces' first process, as JSON.
        tmpfs_bytes: size of /tmp, which is memory.
        bound: further paths that the command needs, read-only.
        disks: number of further file systems of that size, so that filling one leaves room in the others; see
            :func:`disk`.
        as_first: whether the command is process 1; otherwise bubblewrap is, and waits for processes that the command
            leaves behind.
    """
    words = [
        PROGRAM,
        *(["--as-pid-1"] if as_first else ["--die-with-parent"]),
        "--new-session",
        "--clearenv",
        "--cap-drop",
        "ALL",
        "--info-fd",
        str(info_fd),
    ]
    words += ["--unshare-ipc", "--unshare-pid", "--unshare-net", "--unshare-uts", "--unshare-cgroup-try"]
    if os.geteuid():
        words += ["--unshare-user"]
    else:
        words += [word for name in _CAPABILITIES_OF_ROOT for word in ("--cap-add", name)]
    words += ["--hostname", "sandbox"]
    # Mounted before the rest, because Python itself may be there.
    for folder in [_FOLDER, *(str(disk(number)) for number in range(disks))]:
        words += ["--perms", "0711", "--size", str(tmpfs_bytes), "--tmpfs", folder]
    paths = _bound(bound)
    # Created before their contents, and accessible to every user inside; bubblewrap would make them accessible to root
    # alone.
    for parent in dict.fromkeys(folder for path in [*paths, *DEVICES] for folder in [*reversed(path.parents)][1:]):
        words += ["--perms", "0755", "--dir", str(parent)]
    for path in paths:
        words += ["--ro-bind", str(path), str(path)]
    for device in DEVICES:
        words += ["--dev-bind", str(device), str(device)]
    words += ["--remount-ro", "/", "--chdir", _FOLDER]
    for name, value in environment.items():
        words += ["--setenv", name, value]
    return [*words, "--", *command]


def _bound(more: Iterable[Path]) -> list[Path]:
    """Return the paths that the interpreter needs; a folder within another bound one is left out."""
    interpreter = Path(sys.executable)
    paths = [*more, *(path for path in readable_paths() if path not in DEVICES)]
    paths += [interpreter, interpreter.resolve(), Path(sys.prefix, "pyvenv.cfg"), ROOT / "shared"]
    # A virtual environment's interpreter is a link to a link.
    while interpreter.is_symlink():
        interpreter = interpreter.parent / interpreter.readlink()
        paths.append(interpreter)
    existing = sorted({path for path in paths if path.exists()}, key=lambda path: len(path.parts))
    chosen: list[Path] = []
    for path in existing:
        if not any(path.is_relative_to(outer) for outer in chosen):
            chosen.append(path)
    return chosen
