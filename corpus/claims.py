"""Claims of outputs: only one command at a time writes an output, and an output that cannot be written is detected
before the work begins.
"""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from shared.errors import Code, Conflict
from shared.host import disk_errors, path_errors

LOCK_SUFFIX = ".lock"


@contextmanager
def claimed(output: Path, *, is_folder: bool) -> Iterator[None]:
    """Reserve an output for this process while the context lasts; a missing folder is created, and removed if nothing
    is written into it.

    The lock is a file in the folder, ``.lock``, or next to the file, ``.train.jsonl.lock``. The kernel ends the claim of a process that dies.

    Args:
        is_folder: whether the output is a folder rather than a file.

    Raises:
        Conflict: ``CORPUS_BUSY``: another process, or another claim of this process, holds it.
        InvalidRequest: ``PATH_INVALID``.
        Unavailable: ``STORAGE_UNAVAILABLE``.
    """
    place = output.resolve()
    with disk_errors(), path_errors():
        if place == place.parent:
            raise PermissionError(errno.EPERM, "", str(output))
        is_new = not place.exists()
        if is_folder:
            if not is_new and not place.is_dir():
                raise NotADirectoryError(errno.ENOTDIR, "", str(output))
            place.mkdir(parents=True, exist_ok=True)
        else:
            place.parent.mkdir(parents=True, exist_ok=True)
            if place.is_dir():
                raise IsADirectoryError(errno.EISDIR, "", str(output))
        # In the folder, because other users and containers may see a different parent.
        lock_path = place / LOCK_SUFFIX if is_folder else place.with_name(f".{place.name}{LOCK_SUFFIX}")
        lock = _lock(lock_path)
    if lock is None:
        raise Conflict(
            Code.CORPUS_BUSY,
            f"Another command is writing {output}.",
            remedy="Wait until it has ended, or name another output.",
            param=str(output),
            retryable=True,
        )
    try:
        yield
    finally:
        # While it is held, so that no other process can lock a file without a name.
        with suppress(OSError):
            lock_path.unlink()
            if is_folder and is_new:
                place.rmdir()
        os.close(lock)


def _lock(path: Path) -> int | None:
    """Return the descriptor of the locked file; None if another claim holds the lock."""
    while True:
        lock = os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o666)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(lock)
            return None
        # The one before may have removed the file after it was opened here.
        with suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(lock), path.stat()):
                return lock
        os.close(lock)
