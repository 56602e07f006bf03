"""Versions of pulled rows: decides which row of a key counts. A version takes 24 bytes of memory; keys and texts are
not kept in memory.

A version replaces the earlier versions of its key. A version that was left out, a deletion that ``--full`` found, and a
retraction also end the earlier versions: these are marks, each at a position between two rows.
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
"""File of versions that were read but not written, in the order of the pulls: key, watermark, number of rows in the
folder before it.
"""
NEVER = 1 << 61
"""Position after all rows."""
_DIGEST = np.dtype([("high", "<u8"), ("low", "<u8")])
_decode_version = msgspec.json.Decoder(tuple[list[Any], Any, int]).decode


class KeyEvents:
    """Rows and marks of keys, each with its position in time. Keys are held as 128-bit digests."""

    def __init__(self) -> None:
        self._digests = bytearray()
        self._places = array("q")

    def __len__(self) -> int:
        return len(self._places)

    def add_row(self, key: list[Any], number: int) -> None:
        """Add a version of a key: the row with this number."""
        self._add(key, 2 * number + 1)

    def add_mark(self, key: list[Any], rows: int) -> None:
        """Add a mark that ends a key's versions among the first ``rows`` rows."""
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
    """Yield the versions that were left out: key, watermark, number of rows in the folder before it."""
    path = folder / LEFT_OUT_NAME
    if path.is_file():
        with path.open("rb") as file:
            yield from map(_decode_version, file)


def read_keys(path: Path) -> Iterator[list[Any]]:
    """Yield the keys of a file with one JSON list per line; none if the file does not exist."""
    if path.is_file():
        with path.open("rb") as file:
            yield from (msgspec.json.decode(line, type=list[Any]) for line in file if not line.isspace())


class LeftOutVersions:
    """Writes versions that are left out. Lines after the last :meth:`flush` do not count.

    Args:
        size: number of bytes of the file that are valid.
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
        """Write the recorded versions to disk. Returns the size of the file."""
        if self._lines:
            with disk_errors(), self._path.open("ab") as file:
                file.writelines(self._lines)
                file.flush()
                os.fsync(file.fileno())
                self.size = file.tell()
            self._lines.clear()
        return self.size
