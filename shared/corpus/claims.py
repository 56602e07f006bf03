"""Claims of outputs: one command at a time writes an output, and what cannot be written is known before the work begins."""

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
    """Keep an output for this process as long as the context lasts; the folder that it is in is made if it does not exist.

    The lock is a file next to the output, ``.train.jsonl.lock``, or in it if only the folder itself can be written. The kernel ends the claim of a process that dies.

    Args:
        is_folder: whether the output is a folder, or a file.

    Raises:
        Conflict: ``CORPUS_BUSY``: another process, or another claim of this one, has it.
        InvalidRequest: ``PATH_INVALID``.
        Unavailable: ``STORAGE_UNAVAILABLE``.
    """
    place = output.resolve()
    with disk_errors(), path_errors():
        if place == place.parent:
            raise PermissionError(errno.EPERM, "", str(output))
        place.parent.mkdir(parents=True, exist_ok=True)
        if is_folder and place.exists() and not place.is_dir():
            raise NotADirectoryError(errno.ENOTDIR, "", str(output))
        if not is_folder and place.is_dir():
            raise IsADirectoryError(errno.EISDIR, "", str(output))
        lock_path = place.with_name(f".{place.name}{LOCK_SUFFIX}")
        try:
            lock = _lock(lock_path)
        except OSError as error:
            # The folder may be all that can be written, such as a volume of a container.
            if error.errno not in (errno.EACCES, errno.EPERM, errno.EROFS) or not place.is_dir():
                raise
            lock_path = place / LOCK_SUFFIX
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
        os.close(lock)


def _lock(path: Path) -> int | None:
    """Return the descriptor of the locked file; None if another holds it."""
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
