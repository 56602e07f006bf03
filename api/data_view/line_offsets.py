"""Offsets of the lines of a file, by which a page in the middle of a large file is found without reading everything
before it.
"""

from __future__ import annotations

import time
from typing import BinaryIO

import numpy as np

STEP = 1000
"""Lines from one kept offset to the next."""
CHUNK_BYTES = 1 << 20
LINE_END = 10


class LineOffsets:
    """Offsets of every 1,000th line of one file; they are found when further lines are requested, and kept."""

    def __init__(self) -> None:
        self._offsets = [0]
        self._read = self._lines = 0

    def find(self, file: BinaryIO, line: int, deadline: float) -> int | None:
        """Return the offset after a number of lines; the file's end if it has fewer lines.

        Args:
            deadline: a time of `time.monotonic`; None is returned after it, and the next call continues from there.
        """
        while self._lines < line:
            if not self._read_on(file):
                return self._read
            # Only after reading at least one chunk, so that every call makes progress.
            if self._lines < line and time.monotonic() > deadline:
                return None
        return self._after(file, self._offsets[line // STEP], line % STEP)

    def _read_on(self, file: BinaryIO) -> bool:
        file.seek(self._read)
        chunk = file.read(CHUNK_BYTES)
        begins = self._read + 1 + _line_ends(chunk)
        first = STEP - self._lines % STEP - 1
        self._offsets += begins[first::STEP].tolist()
        self._lines += len(begins)
        self._read += len(chunk)
        return bool(chunk)

    def _after(self, file: BinaryIO, offset: int, lines: int) -> int:
        file.seek(offset)
        while lines:
            ends = _line_ends(chunk := file.read(CHUNK_BYTES))
            if len(ends) >= lines:
                return offset + int(ends[lines - 1]) + 1
            lines -= len(ends)
            offset += len(chunk)
        return offset


def _line_ends(chunk: bytes) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    return np.flatnonzero(np.frombuffer(chunk, np.uint8) == LINE_END)
