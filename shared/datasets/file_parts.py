"""Split a large file into parts of whole lines, so that several processes can read it at once."""

from __future__ import annotations

import ctypes
import gc
import io
import multiprocessing
import os
import signal
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor, ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

PART_BYTES = 4 << 20
BUFFER_BYTES = 1 << 18
_SCAN_BYTES = 1 << 20
_NEWLINE = ord("\n")
KEPT_BYTES = 32 << 20
"""Freed memory that a reading process keeps for its next arrays."""
NEW_OBJECTS = 200_000
"""Number of new objects after which garbage is collected while rows are read."""
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
"""Options of ``mallopt``, from glibc's <malloc.h>."""

T = TypeVar("T")
U = TypeVar("U")


@dataclass(frozen=True, slots=True)
class FilePart:
    """Bytes of a file from the beginning of one line to the end of another.

    Attributes:
        first_line: number of its first line, from 1.
    """

    path: Path
    begin: int
    end: int
    first_line: int

    def open(self) -> BinaryIO:
        """Open it like a file of its own."""
        return io.BufferedReader(_PartOfFile(self), BUFFER_BYTES)


class _PartOfFile(io.RawIOBase):
    def __init__(self, part: FilePart) -> None:
        self._file = part.path.open("rb", buffering=0)
        self._file.seek(part.begin)
        self._left = part.end - part.begin

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any, /) -> int:
        count = self._file.readinto(memoryview(buffer)[: self._left]) or 0
        self._left -= count
        return count

    def close(self) -> None:
        self._file.close()
        super().close()


def split_file(path: Path) -> Iterator[FilePart]:
    """Split a file into parts of at least ``PART_BYTES``, except the last; no line is split."""
    import numpy as np  # slow to import

    def count(block: bytes) -> int:
        # This takes a tenth of the time of `bytes.count`, and all processes wait for the first part.
        return int(np.count_nonzero(np.frombuffer(block, np.uint8) == _NEWLINE))

    with path.open("rb", buffering=0) as file:
        begin = position = lines = 0
        first_line = 1
        while block := file.read(_SCAN_BYTES):
            end = block.rfind(b"\n") + 1
            if end and position + end - begin >= PART_BYTES:
                lines += count(block)
                yield FilePart(path, begin, position + end, first_line)
                begin, first_line, lines = position + end, first_line + lines, 0
            else:
                lines += count(block)
            position += len(block)
        if position > begin:
            yield FilePart(path, begin, position, first_line)


@contextmanager
def reading_processes(total_bytes: int) -> Iterator[Executor | None]:
    """Start processes that read parts of a file, one per processor; yield None for small files and on systems other
    than Linux.

    Enter this before the caller starts any thread, because the processes are forked.
    """
    processes = min(_processors(), total_bytes // (2 * PART_BYTES))
    if processes < 2:
        yield None
        return
    with ProcessPoolExecutor(processes, multiprocessing.get_context("fork"), _prepare) as executor:
        executor.submit(int)  # forks all of them
        yield executor


@contextmanager
def seldom_collecting() -> Iterator[None]:
    """Collect garbage seldom while rows are read: a batch has many thousand objects and no cycles."""
    thresholds = gc.get_threshold()
    gc.set_threshold(NEW_OBJECTS)
    try:
        yield
    finally:
        gc.set_threshold(*thresholds)


def _processors() -> int:
    """Return the number of usable processors; 1 on systems other than Linux, because a fork is not safe there."""
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else 1


def _prepare() -> None:
    # Ctrl-C goes to all processes of a terminal; the caller ends these ones itself.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # A batch of rows has thousands of lists and no cycles; without this, the collector would scan them, and all
    # modules, repeatedly.
    gc.freeze()
    gc.set_threshold(NEW_OBJECTS)
    # glibc returns the memory of freed arrays and requests it again, zeroed, page by page: a quarter of the report's
    # time.
    libc = ctypes.CDLL(None)
    if hasattr(libc, "mallopt"):
        libc.mallopt(_M_TRIM_THRESHOLD, KEPT_BYTES)
        libc.mallopt(_M_MMAP_THRESHOLD, KEPT_BYTES)


def ahead(items: Iterable[T], start: Callable[[T], U], count: int = 8) -> Iterator[tuple[T, U]]:
    """Yield each item with the task that was started for it, in order; ``count`` further tasks are already started by
    then.
    """
    started: deque[tuple[T, U]] = deque()
    for item in items:
        started.append((item, start(item)))
        if len(started) > count:
            yield started.popleft()
    yield from started
