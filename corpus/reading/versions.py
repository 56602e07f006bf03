"""Versions of pulled rows: which row of a key counts. Memory holds 24 bytes per version, never a key or a text.

A version ends those of its key before it. A version that was left out, a deletion that ``--full`` found, and a
person's wish that a key never comes again do the same: these are marks, each at a place between two rows.
"""

from __future__ import annotations

import hashlib
import os
from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from corpus.provenance import read_provenance
from corpus.shards import Shard, sources_path
from shared.hashing import canonical_json
from shared.host import disk_errors

LEFT_OUT_NAME = "left_out.jsonl"
"""Versions that were read and not written, in the order of the pulls: key, watermark, rows of the folder before it."""
NEVER = 1 << 61
"""Place after all rows."""
_DIGEST = np.dtype([("high", "<u8"), ("low", "<u8")])
_decode_version = msgspec.json.Decoder(tuple[list[Any], Any, int]).decode


class KeyEvents:
    """Rows and marks of keys, each with its place in time. Keys are held as digests of 128 bits."""

    def __init__(self) -> None:
        self._digests = bytearray()
        self._places = array("q")

    def __len__(self) -> int:
        return len(self._places)

    def add_row(self, key: list[Any], number: int) -> None:
        """Add a version of a key: the row with this number."""
        self._add(key, 2 * number + 1)

    def add_mark(self, key: list[Any], rows: int) -> None:
        """Add the end of a key's versions in the first rows."""
        self._add(key, 2 * rows)

    def last(self) -> NDArray[np.bool_]:
        """Return whether each event, in the order in which they were added, is the last of its key."""
        are_last = np.zeros(len(self), np.bool_)
        if not len(self):
            return are_last
        digests = np.frombuffer(self._digests, _DIGEST)
        order = np.lexsort((np.frombuffer(self._places, np.int64), digests["low"], digests["high"]))
        ordered = digests[order]
        are_last[order[-1]] = True
        are_last[order[:-1][ordered[1:] != ordered[:-1]]] = True
        return are_last

    def _add(self, key: list[Any], place: int) -> None:
        self._digests += hashlib.blake2b(canonical_json(key), digest_size=_DIGEST.itemsize).digest()
        self._places.append(place)


def rows_of(folder: Path, shards: list[Shard]) -> KeyEvents:
    """Return the rows of the shards of a pull, and the marks of versions that were left out."""
    events = KeyEvents()
    number = 0
    for shard in shards:
        for provenance in read_provenance(sources_path(folder / shard.name)):
            events.add_row(provenance.locator["key"], number)
            number += 1
    for key, _, rows in read_left_out(folder):
        events.add_mark(key, rows)
    return events


def read_left_out(folder: Path) -> Iterator[tuple[list[Any], Any, int]]:
    """Yield the versions that were left out: key, watermark, rows of the folder before it."""
    path = folder / LEFT_OUT_NAME
    if path.is_file():
        with path.open("rb") as file:
            yield from map(_decode_version, file)


def read_keys(path: Path) -> Iterator[list[Any]]:
    """Yield the keys of a file with one JSON list per line; nothing if it does not exist."""
    if path.is_file():
        with path.open("rb") as file:
            yield from (msgspec.json.decode(line, type=list[Any]) for line in file if not line.isspace())


class LeftOutVersions:
    """Writes versions that are left out. Lines after the last :meth:`flush` do not count.

    Args:
        size: bytes of the file that count.
    """

    def __init__(self, folder: Path, size: int) -> None:
        self._path = folder / LEFT_OUT_NAME
        self.size = size
        self._lines: list[bytes] = []
        with disk_errors():
            if not size:
                self._path.unlink(missing_ok=True)
            elif self._path.is_file():
                os.truncate(self._path, size)

    def add(self, key: list[Any], watermark: Any, rows: int) -> None:
        """Note a version."""
        self._lines.append(msgspec.json.encode((key, watermark, rows)) + b"\n")

    def flush(self) -> int:
        """Write what was noted to the disk. Returns the size of the file."""
        if self._lines:
            with disk_errors(), self._path.open("ab") as file:
                file.writelines(self._lines)
                file.flush()
                os.fsync(file.fileno())
                self.size = file.tell()
            self._lines.clear()
        return self.size
