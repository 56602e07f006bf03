"""A set of row digests that takes eight bytes per digest."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Digests = NDArray[np.uint64]


class DigestSet:
    """A set of 64-bit digests to which many are added at once.

    It is kept in sorted arrays, each more than twice as long as the next, so a lookup takes a few binary searches and
    an addition sorts little. A set of Python integers takes eight times the memory.
    """

    def __init__(self) -> None:
        self._runs: list[Digests] = []

    def __len__(self) -> int:
        return sum(map(len, self._runs))

    @property
    def nbytes(self) -> int:
        return sum(run.nbytes for run in self._runs)

    @property
    def runs(self) -> int:
        """Number of arrays to search."""
        return len(self._runs)

    def has(self, digests: Digests) -> NDArray[np.bool_]:
        """Return, for each digest, whether it is in the set."""
        members = np.zeros(len(digests), np.bool_)
        for run in self._runs:
            members |= run[np.minimum(np.searchsorted(run, digests), len(run) - 1)] == digests
        return members

    def add(self, digests: Digests) -> None:
        """Add digests to the set."""
        new = np.unique(digests)
        new = new[~self.has(new)]
        while self._runs and len(self._runs[-1]) <= 2 * len(new):
            new = np.sort(np.concatenate((self._runs.pop(), new)))
        if len(new):
            self._runs.append(new)
