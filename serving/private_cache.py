"""The folder of verified adapters that the engine reads. It belongs to one process, which holds a lock on it.

An engine exits if it reloads an adapter whose files have been removed. So only a process that knows all readers may
remove files. Replicas may share a disk, so each process has its own folder, and holds a lock on it until it ends. The
next process that uses the folder keeps the adapters in it that are still published.

    <root>/<host>-0/<digest>/    an adapter's files
                    .lock        held by the process whose folder it is
"""

from __future__ import annotations

import fcntl
import itertools
import os
import shutil
import socket
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

LOCK_NAME = ".lock"


class PrivateCache:
    """The first subfolder of ``root`` that no other process has locked; created if necessary.

    The host is part of its name, because a lock on a shared disk may not be visible on another machine.

    Args:
        root: parent of the folders of this installation's replicas.
        keep: called with the name of each entry that an earlier process left; returns whether to keep it. Other entries
            are deleted when the cache is opened.
    """

    def __init__(self, root: Path, keep: Callable[[str], bool]) -> None:
        root.mkdir(mode=0o700, parents=True, exist_ok=True)
        candidates = (root / f"{socket.gethostname()}-{number}" for number in itertools.count())
        self.folder, self._lock = next(filter(None, map(_take, candidates)))
        for path in list(self.folder.iterdir()):
            if path.name != LOCK_NAME and not keep(path.name):
                self.remove(path.name)

    def close(self) -> None:
        """Release the folder to other processes."""
        os.close(self._lock)

    @contextmanager
    def incoming(self) -> Iterator[Path]:
        """Yield a temporary folder inside the cache, on the same disk; its remaining content is deleted at the end."""
        with tempfile.TemporaryDirectory(dir=self.folder, prefix="incoming-") as private:
            yield Path(private)

    def remove(self, name: str) -> None:
        """Remove a file, or a folder atomically. A name that does not exist is ignored."""
        path = self.folder / name
        if path.is_symlink() or not path.is_dir():
            path.unlink(missing_ok=True)
            return
        with self.incoming() as private:
            path.rename(private / name)
            shutil.rmtree(private / name)


def _take(folder: Path) -> tuple[Path, int] | None:
    """Lock the folder until this process ends; return None if another process holds it."""
    folder.mkdir(mode=0o700, exist_ok=True)
    # Closed on exec: a program that outlives this process would otherwise keep the folder taken.
    lock = os.open(folder / LOCK_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
        return None
    return folder, lock
