"""Digests of files that an earlier build has read: a file that has not changed since then is not read again."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

import msgspec

from corpus.shards import write_json
from shared.hashing import digest_stream

DigestOf = Callable[[Path], str]
"""A function that returns a file's SHA-256: :func:`shared.hashing.digest_file`, or :meth:`FileDigests.of`."""
QUIET_NANOSECONDS = 2_000_000_000
"""Minimum age at which a file's timestamps are trusted to show later changes; file system clocks are coarse."""


class KnownFile(msgspec.Struct, frozen=True, array_like=True):
    """The state of a file at the time at which its digest was computed.

    Attributes:
        changed: time of the last change of content or of times (ctime), in nanoseconds, which no program can set.
    """

    size: int
    modified: int
    changed: int
    inode: int
    sha256: str


class FileDigests:
    """Digests by size, times and inode, kept in a file.

    Args:
        store: the file; it may be missing or unreadable.
    """

    def __init__(self, store: Path) -> None:
        self._store = store
        try:
            self._noted = msgspec.json.decode(store.read_bytes(), type=dict[str, KnownFile])
        except (OSError, msgspec.DecodeError, UnicodeDecodeError):
            self._noted = {}
        self._used: dict[str, KnownFile] = {}

    def of(self, path: Path) -> str:
        """Return SHA-256 of a file."""
        name = _name_of(path.resolve())
        # State and content come from one open file, even if the name is given to another file meanwhile.
        with path.open("rb") as file:
            now = _state_of(file)
            noted = self._used.get(name) or self._noted.get(name)
            if noted and (noted.size, noted.modified, noted.changed, noted.inode) == now:
                self._used[name] = noted
                return noted.sha256
            sha256 = digest_stream(file)
            # A file that is being written, or was a moment ago, may change again without a trace in its times.
            if _state_of(file) == now and time.time_ns() - max(now[1], now[2]) > QUIET_NANOSECONDS:
                self._used[name] = KnownFile(*now, sha256)
        return sha256

    def save(self) -> None:
        """Write the digests if they have changed, leaving out those of missing files."""
        # Of a path in a closed folder, `Path.exists` raises an error.
        kept = {name: noted for name, noted in self._noted.items() if os.path.exists(name)}  # noqa: PTH110
        kept |= self._used
        if kept != self._noted:
            write_json(self._store, kept)


def _name_of(path: Path) -> str:
    """Return a file's name as the store has it; bytes that are not UTF-8 are escaped, because JSON cannot hold them."""
    return os.fsencode(path).decode(errors="backslashreplace")


def _state_of(file: BinaryIO) -> tuple[int, int, int, int]:
    status = os.fstat(file.fileno())
    return status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino
