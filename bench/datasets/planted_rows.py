"""Training rows with planted duplicates for the bench of corpora: all text is made up.

A near copy differs from its original in one word per hundred, and in at least one word. The shortest row has 60 words,
so a copy shares 0.9 of its three-word pieces and 0.84 of its five-word pieces with its original.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice, product
from pathlib import Path
from typing import NamedTuple

import numpy as np

EXACT_SHARE, NEAR_SHARE = 0.02, 0.1
LEAST_WORDS, SPREAD = 60, 0.5
LONG_WORDS = 10_000
"""Number of six-letter words; another 8,100 words have four letters."""
_BLOCK_ROWS = 2_000
_SYLLABLES = [consonant + vowel for consonant in "bcdfghjklmnprstvwz" for vowel in "aeiou"]
Digest = bytes


@dataclass(slots=True)
class PlantedPairs:
    """Pairs of rows, one of which must be left out, by the digest of their text."""

    exact: list[Digest] = field(default_factory=list)
    near: list[tuple[Digest, Digest]] = field(default_factory=list)


class FoundCopies(NamedTuple):
    """Rows that were left out of a file.

    Attributes:
        share: share of the planted copies that were left out.
        others: number of other rows that were left out.
    """

    share: float
    others: int


def write_rows(path: Path, rows: int, mean_words: int, seed: int = 7) -> PlantedPairs:
    """Write rows; 2 % are exact copies of an earlier row and 10 % are near copies.

    Args:
        mean_words: median length of a row in words.
    """
    planted = PlantedPairs()
    with path.open("w", encoding="utf-8") as file:
        for words in _rows(rows, mean_words, seed, planted):
            third = len(words) // 3
            row = {"prompt": " ".join(words[:third]), "response": " ".join(words[third:])}
            file.write(json.dumps(row) + "\n")
    return planted


def add_items(rows: Path, items: Path, every: int) -> int:
    """Add every ``every``-th row of a file to the items of an eval. Returns the number of rows added."""
    with rows.open("rb") as file, items.open("ab") as target:
        lines = list(islice(file, 0, None, every))
        target.writelines(lines)
    return len(lines)


def find_copies(planted: PlantedPairs, rows: int, kept: Iterable[str]) -> FoundCopies:
    """Compare the kept texts of ``rows`` rows with the planted copies."""
    left = Counter(map(digest_text, kept))
    exact = sum(left[digest] <= 1 for digest in planted.exact)
    near = sum(left[first] + left[second] <= 1 for first, second in planted.near)
    copies = len(planted.exact) + len(planted.near)
    return FoundCopies((exact + near) / copies, rows - left.total() - exact - near)


def digest_text(text: str) -> Digest:
    """Return a digest of the words of a text."""
    return hashlib.blake2b(" ".join(text.split()).encode(), digest_size=8).digest()


def _rows(rows: int, mean_words: int, seed: int, planted: PlantedPairs) -> Iterator[list[str]]:
    draw = np.random.default_rng(seed)
    short = map("".join, product(_SYLLABLES, repeat=2))
    long = draw.choice(_SYLLABLES, (LONG_WORDS, 3)).tolist()
    vocabulary = np.array([*short, *map("".join, long)])
    originals: list[list[str]] = []
    for begin in range(0, rows, _BLOCK_ROWS):
        count = min(_BLOCK_ROWS, rows - begin)
        lengths = np.maximum(LEAST_WORDS, draw.lognormal(np.log(mean_words), SPREAD, count)).astype(int)
        ends = np.cumsum(lengths).tolist()
        text = vocabulary[draw.integers(0, len(vocabulary), ends[-1])].tolist()
        fates = draw.random(count).tolist()
        for fate, length, end in zip(fates, lengths.tolist(), ends, strict=True):
            if fate < EXACT_SHARE + NEAR_SHARE and originals:
                original = originals.pop(int(fate * 1e9) % len(originals))
                if fate < EXACT_SHARE:
                    planted.exact.append(digest_text(" ".join(original)))
                    yield original
                else:
                    copy = _changed(original, draw, vocabulary)
                    planted.near.append((digest_text(" ".join(original)), digest_text(" ".join(copy))))
                    yield copy
            else:
                words = text[end - length : end]
                originals.append(words)
                yield words
        # Copies follow their originals at some distance, and memory stays small.
        originals = originals[-_BLOCK_ROWS:]


def _changed(
    original: list[str], draw: np.random.Generator, vocabulary: np.ndarray[tuple[int], np.dtype[np.str_]]
) -> list[str]:
    copy = list(original)
    for place in draw.integers(0, len(copy), max(1, len(copy) // 100)).tolist():
        copy[place] = str(vocabulary[draw.integers(0, len(vocabulary))]) + "x"
    return copy
