"""Simulation of torch's caching allocator on a GPU: the memory that it takes from the device for a series of
allocations.

By torch's `CUDACachingAllocator.cpp`: sizes are multiples of 512 bytes; small blocks and large ones are in separate
segments; the smallest free block that is large enough is used, and its rest stays free, in segments of a fixed size
unless the rest is small. Memory taken by other threads, streams or libraries is not modelled, nor is the freeing of
unused segments before an allocation fails.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from dataclasses import dataclass, field
from typing import NamedTuple

MIB = 1 << 20
STEP = 512
SMALL = MIB
"""Largest small block."""
SMALL_SEGMENT, LARGE_SEGMENT, OWN_SEGMENT = 2 * MIB, 20 * MIB, 10 * MIB
"""Bytes of a segment of small blocks and of one of large blocks, and of a block that gets a segment of its own."""


class MemoryBlock(NamedTuple):
    """Contiguous memory in a segment."""

    size: int
    segment: int
    start: int

    @property
    def end(self) -> int:
        return self.start + self.size


@dataclass
class Pool:
    """A pool of small or of large blocks.

    Attributes:
        expandable: whether there is a single segment, which grows at its end.
        reserved: bytes taken from the device.
    """

    small: bool
    expandable: bool
    reserved: int = 0
    _free: list[MemoryBlock] = field(default_factory=list)
    _starts: dict[tuple[int, int], MemoryBlock] = field(default_factory=dict)
    _ends: dict[tuple[int, int], MemoryBlock] = field(default_factory=dict)

    def take(self, size: int) -> MemoryBlock:
        """Return a block of at least this many bytes."""
        place = bisect_left(self._free, (size,))
        if place == len(self._free):
            self._grow(size)
            place = bisect_left(self._free, (size,))
        block = self._remove(self._free[place])
        least = STEP if self.small or self.expandable else SMALL + 1
        if block.size - size < least:
            return block
        self._insert(MemoryBlock(block.size - size, block.segment, block.start + size))
        return MemoryBlock(size, block.segment, block.start)

    def give(self, block: MemoryBlock) -> None:
        """Free a block, and merge it with its free neighbours."""
        before, after = self._ends.get(block[1:]), self._starts.get((block.segment, block.end))
        start, end = block.start, block.end
        if before:
            start = self._remove(before).start
        if after:
            end = self._remove(after).end
        self._insert(MemoryBlock(end - start, block.segment, start))

    def _grow(self, size: int) -> None:
        segment, start = (0, self.reserved) if self.expandable else (self.reserved, 0)
        if self.expandable and (last := self._ends.get((segment, start))):
            size -= last.size
        unit = SMALL_SEGMENT if self.small else LARGE_SEGMENT
        if not (self.small or self.expandable or size < OWN_SEGMENT):
            unit = SMALL_SEGMENT
        grown = -(-size // unit) * unit
        self.reserved += grown
        self.give(MemoryBlock(grown, segment, start))

    def _insert(self, block: MemoryBlock) -> None:
        insort(self._free, block)
        self._starts[block[1:]] = self._ends[block.segment, block.end] = block

    def _remove(self, block: MemoryBlock) -> MemoryBlock:
        del self._free[bisect_left(self._free, block)]
        del self._starts[block[1:]], self._ends[block.segment, block.end]
        return block


class SimulatedAllocator:
    """The allocator of a GPU that no other program uses.

    Args:
        expandable: whether segments can grow, as in a trainer started by a worker (``expandable_segments:True``).
    """

    def __init__(self, *, expandable: bool) -> None:
        self._small, self._large = Pool(small=True, expandable=expandable), Pool(small=False, expandable=expandable)

    @property
    def reserved(self) -> int:
        """Bytes taken from the device; none are given back."""
        return self._small.reserved + self._large.reserved

    def take(self, size: int) -> MemoryBlock:
        """Allocate some bytes."""
        rounded = -(-max(size, 1) // STEP) * STEP
        return self._pool(rounded).take(rounded)

    def give(self, block: MemoryBlock, size: int) -> None:
        """Free the block of an allocation."""
        self._pool(size).give(block)

    def _pool(self, size: int) -> Pool:
        return self._small if size <= SMALL else self._large
