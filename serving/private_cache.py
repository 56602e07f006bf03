"""A folder that this process alone uses: the engine reads adapters from it, and nobody else does.

An engine that reads an adapter again whose files are gone dies, so files are removed only by who knows that no other
process reads them. Replicas may share a disk; hence each has a folder of its own, held by a lock that ends with its
process. The next process takes up what it finds there, less what is no longer published.

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
    """The first folder below ``root`` that no other process holds; made when there is none.

    The host is part of its name: a lock on a shared disk need not be seen on another machine.

    Args:
        root: where the replicas of this installation have their folders.
        keep: whether what an earlier process left under a name is kept; whatever is not, goes now.
    """

    def __init__(self, root: Path, keep: Callable[[str], bool]) -> None:
        root.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.folder, self._lock = next(filter(None, map(_hold, _folders(root))))
        for path in list(self.folder.iterdir()):
            if path.name != LOCK_NAME and not keep(path.name):
                self.remove(path.name)

    def close(self) -> None:
        """Let another process have the folder."""
        os.close(self._lock)

    @contextmanager
    def incoming(self) -> Iterator[Path]:
        """A folder inside to write into; what is still there at the end goes."""
        with tempfile.TemporaryDirectory(dir=self.folder, prefix="incoming-") as private:
            yield Path(private)

    def remove(self, name: str) -> None:
        """Remove a file or folder, in one step as far as anybody sees; one that is not there is no error."""
        path = self.folder / name
        if path.is_symlink() or not path.is_dir():
            path.unlink(missing_ok=True)
            return
        with self.incoming() as going:
            path.rename(going / name)
            shutil.rmtree(going / name)


def _folders(root: Path) -> Iterator[Path]:
    return (root / f"{socket.gethostname()}-{number}" for number in itertools.count())


def _hold(folder: Path) -> tuple[Path, int] | None:
    """Take the folder until the process ends; None when another one has it."""
    folder.mkdir(mode=0o700, exist_ok=True)
    lock = os.open(folder / LOCK_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
        return None
    return folder, lock
