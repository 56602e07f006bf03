"""Packing rows into bins of a fixed number of tokens: best fit decreasing.

Rows are taken longest first, and each goes into the bin where it leaves the least room. Open bins are indexed by their
remaining room, and a bit per size marks whether a bin of that size exists, so finding the tightest bin means scanning a
few words of bits.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

_WORD = 64


def pack(lengths: Sequence[int], capacity: int) -> list[list[int]]:
    """Put every row into a bin.

    Args:
        lengths: tokens of each row.
        capacity: tokens that a bin holds.

    Returns:
        the bins, each a list of indices into ``lengths`` in rising order; the same ones for the same lengths, always.

    Raises:
        ValueError: a length is under 1 or over the capacity.
    """
    sizes = np.asarray(lengths, np.int64)
    if len(sizes) and not (sizes.min() >= 1 and sizes.max() <= capacity):
        raise ValueError(f"lengths are from {sizes.min()} to {sizes.max()}; a bin holds 1 to {capacity}")
    order = np.argsort(-sizes, kind="stable")
    bins: list[list[int]] = []
    rooms = _Rooms(capacity)
    for index, size in zip(order.tolist(), sizes[order].tolist(), strict=True):
        room = rooms.tightest(size)
        if room:
            number = rooms.take(room)
            bins[number].append(index)
        else:
            number, room = len(bins), capacity
            bins.append([index])
        if room > size:
            rooms.put(room - size, number)
    return [sorted(indices) for indices in bins]


def efficiency(lengths: Sequence[int], bins: Sequence[Sequence[int]], capacity: int) -> float:
    """Return the share of the bins' room that holds tokens; 1.0 without bins."""
    return sum(lengths[index] for indices in bins for index in indices) / (len(bins) * capacity) if bins else 1.0


class _Rooms:
    """Open bins by the room left in them: bit ``r % 64`` of word ``r // 64`` is set while a bin has room ``r``."""

    def __init__(self, capacity: int) -> None:
        self._bins: list[list[int]] = [[] for _ in range(capacity + 1)]
        self._words = [0] * (capacity // _WORD + 1)
        self._summary = 0

    def tightest(self, size: int) -> int:
        """Return the least room of at least ``size`` that a bin has; 0 if none has."""
        word, bit = divmod(size, _WORD)
        if rooms := self._words[word] >> bit:
            return size + _lowest(rooms)
        if later := self._summary >> (word + 1):
            word += 1 + _lowest(later)
            return word * _WORD + _lowest(self._words[word])
        return 0

    def take(self, room: int) -> int:
        """Remove the bin that last got this room; return its number."""
        bins = self._bins[room]
        number = bins.pop()
        if not bins:
            word = room // _WORD
            self._words[word] ^= 1 << room % _WORD
            if not self._words[word]:
                self._summary ^= 1 << word
        return number

    def put(self, room: int, number: int) -> None:
        bins = self._bins[room]
        if not bins:
            word = room // _WORD
            self._words[word] |= 1 << room % _WORD
            self._summary |= 1 << word
        bins.append(number)


def _lowest(bits: int) -> int:
    """Place of the lowest bit that is set."""
    return (bits & -bits).bit_length() - 1
