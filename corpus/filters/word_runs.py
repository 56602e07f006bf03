"""Runs of eight words, by which texts are compared in part: the hashes of all runs of many texts, in one array."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from shared.datasets.fingerprints import Words, word_hashes

RUN_WORDS = 8
_PRIME, _MIX = np.uint64(0x9E3779B185EBCA87), np.uint64(0xC2B2AE3D27D4EB4F)
_SHIFT = np.uint64(29)

Hashes = NDArray[np.uint64]


@dataclass(frozen=True, slots=True)
class WordRuns:
    """The runs of texts. A text of fewer than eight words has none.

    Attributes:
        hashes: the hash of each run, one text after another, in order.
        ends: where in ``hashes`` the runs of each text end.
    """

    hashes: Hashes
    ends: NDArray[np.int64]

    @classmethod
    def of(cls, texts: Sequence[str]) -> WordRuns:
        """Hash the runs of texts."""
        hashes, counts = [np.empty(0, np.uint64)], [np.empty(0, np.int64)]
        for words, words_of_texts in word_hashes(texts):
            # The runs that would reach into the next text are left out.
            words_left = np.repeat(np.cumsum(words_of_texts), words_of_texts) - np.arange(len(words))
            hashes.append(_hashed(words)[words_left >= RUN_WORDS])
            counts.append(np.maximum(words_of_texts - RUN_WORDS + 1, 0))
        return cls(np.concatenate(hashes), np.cumsum(np.concatenate(counts)))

    @property
    def texts(self) -> NDArray[np.int64]:
        """The number of the text that each run is in."""
        return np.repeat(np.arange(len(self.ends)), np.diff(self.ends, prepend=0))

    def of_text(self, number: int) -> Hashes:
        """Return the runs of one text."""
        return self.hashes[self.ends[number - 1] if number else 0 : self.ends[number]]


def _hashed(words: Words) -> Hashes:
    """Return the hash of the run that begins at each word; the last seven runs are padded with zeros."""
    padded = np.append(words, np.zeros(RUN_WORDS - 1, np.uint64))
    runs = np.zeros(len(words), np.uint64)
    for offset in range(RUN_WORDS):
        runs *= _PRIME
        runs += padded[offset : offset + len(words)]
    runs ^= runs >> _SHIFT
    runs *= _MIX
    return runs
