"""Local copies of stored files, named by their SHA-256, bounded in bytes; the least recently used is removed first.

Many threads and processes of a machine may share a folder. Using a copy takes a shared lock on it, removing one takes
the exclusive lock, so that no path disappears while a process reads from it. Locks end with their process.
"""

from __future__ import annotations

import fcntl
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from shared.artifacts.storage import changed_blob
from shared.hashing import digest_file
from shared.host import disk_errors

INCOMING_PREFIX = "incoming-"
ABANDONED_SECONDS = 86_400
"""Seconds after which an unfinished copy counts as left by a killed process, and is removed."""


class FileCache:
    """A folder of copies.

    Args:
        folder: folder of the copies; created with the first one.
        max_bytes: largest total size of all copies. Copies in use stay, even beyond this limit.
    """

    def __init__(self, folder: Path, max_bytes: int) -> None:
        self.folder = folder
        self._max_bytes = max_bytes

    @contextmanager
    def file(
        self, sha256: str, size: Callable[[], int], fetch: Callable[[Path], None], *, verify: bool = False
    ) -> Iterator[Path]:
        """Yield a copy, fetched if it is missing; it stays until the `with` block ends.

        Args:
            sha256: SHA-256 of the bytes, which is checked after fetching.
            size: returns the number of bytes, so that room is made before fetching.
            fetch: writes the bytes into a new file.
            verify: whether to also read an existing copy, and fetch it again if it was changed.

        Raises:
            ArtifactInvalid: ``STORAGE_OBJECT_MISSING``: other bytes were fetched.
            Unavailable: ``STORAGE_FULL``.
        """
        path = self.folder / sha256
        lock = self._hold(path)
        if lock is not None and verify and digest_file(path) != sha256:
            path.unlink(missing_ok=True)
            os.close(lock)
            lock = None
        # Repeated, because another process may remove the copy before this one holds it.
        while lock is None:
            self._fetch(path, size(), fetch)
            lock = self._hold(path)
        try:
            yield path
        finally:
            os.close(lock)
            # Only now may this copy itself be removed: while it was held, the cache may have been over its limit.
            self._make_room(0)

    @contextmanager
    def incoming(self) -> Iterator[Path]:
        """Yield the path of a new file next to the copies, which is removed at the end if it is still there."""
        with disk_errors():
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            descriptor, name = tempfile.mkstemp(dir=self.folder, prefix=INCOMING_PREFIX)
        os.close(descriptor)
        try:
            yield Path(name)
        finally:
            Path(name).unlink(missing_ok=True)

    def _hold(self, path: Path) -> int | None:
        """Open a descriptor that holds the copy until it is closed; None when the copy does not exist."""
        try:
            lock = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return None
        fcntl.flock(lock, fcntl.LOCK_SH)
        with suppress(FileNotFoundError):
            # If the inode differs, the file was removed before it was locked.
            if os.path.samestat(os.fstat(lock), path.stat()):
                os.utime(lock)
                return lock
        os.close(lock)
        return None

    def _fetch(self, path: Path, size: int, fetch: Callable[[Path], None]) -> None:
        self._make_room(size)
        with self.incoming() as incoming, disk_errors():
            fetch(incoming)
            if digest_file(incoming) != path.name:
                raise changed_blob(path.name)
            # A copy is found by its name and usually not read again: after a power cut the name could be that of an
            # empty file.
            with incoming.open("rb") as file:
                os.fsync(file.fileno())
            # If another process was quicker, its copy stays: a process may hold it.
            with suppress(FileExistsError):
                path.hardlink_to(incoming)

    def _make_room(self, size: int) -> None:
        """Remove unused copies until this many more bytes fit."""
        if not self.folder.is_dir():
            return
        copies, total = [], size
        for entry in os.scandir(self.folder):
            # Another process may remove it at this moment.
            with suppress(FileNotFoundError):
                stat = entry.stat()
                if not entry.name.startswith(INCOMING_PREFIX):
                    copies.append((stat.st_mtime_ns, stat.st_size, Path(entry.path)))
                    total += stat.st_size
                elif time.time() - stat.st_mtime > ABANDONED_SECONDS:
                    Path(entry.path).unlink(missing_ok=True)
        for _, bytes_, path in sorted(copies):
            if total <= self._max_bytes:
                return
            if _remove_unused(path):
                total -= bytes_


def _remove_unused(path: Path) -> bool:
    """Remove a copy unless it is held; return whether it is gone."""
    try:
        lock = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return True
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # If the inode differs, the path has a new file, which this lock does not protect.
        if os.path.samestat(os.fstat(lock), path.stat()):
            path.unlink()
    except BlockingIOError:
        return False
    except FileNotFoundError:
        return True
    else:
        return True
    finally:
        os.close(lock)
