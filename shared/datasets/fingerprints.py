"""Fingerprints of texts: a digest, equal for texts that differ in case and white space alone, and a sketch that is alike for similar texts.

Many texts at a time with numpy, because a word at a time would take ten times as long. The texts lie one after another
in an array of bytes; letters become lower case there, words are found by their edges, and a word is hashed by its bytes,
eight at a time. A digest is the sum of the words' hashes, each mixed with its place.

For the sketch, a text's words become the set of hashes of three consecutive ones (of three characters, where a script
writes no spaces). The ring of hashes has 32 equal parts, and the least element of each is kept; an empty part takes the
one that follows. Two texts share about as many elements of their sketches as their sets have in common (one permutation
hashing: Li, Owen, Zhang 2012; the empty parts: Shrivastava, Li 2014). Arithmetic is modulo 2^64 or 2^32, and all hashes
are the same on every machine and in every run.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from xxhash import xxh3_64_intdigest

from shared.datasets.conversation_text import ASCII

SLOTS = 32
"""Elements, and bytes, of a sketch."""
MAX_WORDS = 4_000
"""Words of a text that its sketch is drawn from; the rest of a longer text is not compared for likeness."""
LONG_WORD = 24
"""Mean length of words from which the script is taken to write no spaces."""
HASHED_BYTES = 64
"""Longest word that is hashed among all others; a longer one is hashed by itself."""
BYTES_AT_ONCE, TEXTS_AT_ONCE = 1 << 17, 1 << 12
"""Bounds of a batch: its arrays stay in the processor's cache."""

Words = NDArray[np.uint64]
_PADDING = b"\n" * HASHED_BYTES
_NO_TEXT = b"\xff"
"""A byte that UTF-8 has not got: for NUL, with which words are filled up."""
_MASKS = np.array([(1 << 8 * count) - 1 for count in range(9)], np.uint64)
"""Of eight bytes as a little-endian number, the first so many."""
_PRIME_1, _PRIME_2, _PRIME_3 = map(np.uint64, (0x9E3779B185EBCA87, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9))
_PRIME32_1, _PRIME32_2, _PRIME32_3 = map(np.uint32, (0x9E3779B1, 0x85EBCA77, 0xC2B2AE3D))
"""xxHash's multipliers."""
_HALF = np.uint64(32)
_PART_SHIFT, _ELEMENT_SHIFT = np.uint32(27), np.uint32(10)
_EMPTY = np.uint32(2**32 - 1)
_ORDER = random.Random(0).sample(range(SLOTS), SLOTS)
"""Of a sketch's elements, so that neighbours, which an empty part would make equal, are apart."""


def fingerprints(texts: Sequence[str], *, near: bool = True) -> tuple[list[int], bytes]:
    """The 64-bit digest of each text and, one after another, their sketches of 32 bytes.

    Args:
        near: whether sketches are wanted.
    """
    digests: list[int] = []
    sketches = bytearray()
    for batch in _batches(texts):
        words = _Words.of(batch)
        digests += words.digests().tolist()
        if near:
            sketches += words.sketches().tobytes()
    return digests, bytes(sketches)


def _batches(texts: Sequence[str]) -> Iterator[list[bytes]]:
    """The texts in UTF-8, a cache full at a time."""
    batch: list[bytes] = []
    size = 0
    for text in texts:
        batch.append(text.encode(errors="replace"))
        size += len(batch[-1])
        if size >= BYTES_AT_ONCE or len(batch) == TEXTS_AT_ONCE:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


@dataclass(frozen=True, slots=True)
class _Words:
    """The words of some texts.

    Attributes:
        data: the texts' bytes in lower case, with something between them that is in no word.
        begins, ends: of each word in ``data``.
        first: the number of each text's first word; one more element than texts.
        hashes: of each word.
    """

    data: NDArray[np.uint8]
    begins: NDArray[np.int64]
    ends: NDArray[np.int64]
    first: NDArray[np.int64]
    hashes: Words

    @classmethod
    def of(cls, texts: list[bytes]) -> _Words:
        data = _joined(texts)
        above = data >= 128
        if above.any():
            other = data[above].tobytes().decode(errors="ignore")
            if other != other.lower() or not other.isprintable():
                texts = [text if text.isascii() else _lowered(text) for text in texts]
                data = _joined(texts)
        capitals = (data - np.uint8(ord("A"))) < 26
        data |= capitals.view(np.uint8) << np.uint8(5)
        # What `str.split` takes for white space in ASCII.
        gaps = (data == 32) | ((data - np.uint8(9)) < 5) | ((data - np.uint8(28)) < 4)
        edges = np.flatnonzero(gaps[1:] != gaps[:-1]) + 1
        begins, ends = edges[0::2], edges[1::2]
        offsets = np.cumsum([1, *(len(text) + 1 for text in texts)])
        return cls(data, begins, ends, np.searchsorted(begins, offsets), _hashed(data, begins, ends))

    def places(self) -> NDArray[np.int64]:
        """Of each word, how many of its text's come before it."""
        return np.arange(len(self.begins)) - np.repeat(self.first[:-1], np.diff(self.first))

    def digests(self) -> Words:
        mixed = self.hashes + self.places().astype(np.uint64) * _PRIME_3
        mixed ^= mixed >> _HALF
        mixed *= _PRIME_2
        mixed ^= mixed >> _HALF
        sums = np.zeros(len(mixed) + 1, np.uint64)
        np.cumsum(mixed, out=sums[1:])
        found: Words = sums[self.first[1:]] - sums[self.first[:-1]]
        return found

    def sketches(self) -> NDArray[np.uint8]:
        counts = np.diff(self.first)
        kept = np.minimum(counts, MAX_WORDS)
        hashes = self.hashes if (kept == counts).all() else self.hashes[self.places() < MAX_WORDS]
        found = _drawn((hashes >> _HALF).astype(np.uint32), kept)
        letters = np.concatenate(([0], np.cumsum(self.ends - self.begins)))[self.first]
        rows = [
            (row, text)
            for row in np.flatnonzero(np.diff(letters) > LONG_WORD * counts)
            if (text := self._unspaced(row))
        ]
        if rows:
            units = np.frombuffer("".join(text for _, text in rows).encode("utf-32-le"), np.uint32)
            found[[row for row, _ in rows]] = _drawn(units, np.array([len(text) for _, text in rows]))
        return found

    def _unspaced(self, row: int) -> str:
        """The first characters of a text whose script writes no spaces; of another, none."""
        first, end = self.first[row], self.first[row + 1]
        text = self.data[self.begins[first] : self.ends[end - 1]].tobytes().decode(errors="replace")
        return " ".join(text.split())[:MAX_WORDS] if len(text) > LONG_WORD * (end - first) else ""


def _joined(texts: list[bytes]) -> NDArray[np.uint8]:
    return np.frombuffer(bytearray(b"\n" + b"\n".join(texts) + _PADDING).replace(b"\0", _NO_TEXT), np.uint8)


def _lowered(text: bytes) -> bytes:
    """A text in lower case, and with none but ASCII's white space."""
    other = text.translate(None, ASCII).decode()
    if other == other.lower() and other.isprintable():
        return text
    return " ".join(text.decode().lower().split()).encode()


def _hashed(data: NDArray[np.uint8], begins: NDArray[np.int64], ends: NDArray[np.int64]) -> Words:
    """The hash of each word, by all of its bytes."""
    eights: Words = np.ndarray((len(data) - 7,), np.dtype("<u8"), data, 0, (1,))
    sizes = ends - begins
    hashes = _spread(eights[begins] & _MASKS[np.minimum(sizes, 8)])
    longer = np.flatnonzero(sizes > 8)
    for offset in range(8, HASHED_BYTES, 8):
        if not len(longer):
            break
        left = sizes[longer] - offset
        hashes[longer] = _spread(hashes[longer] ^ (eights[begins[longer] + offset] & _MASKS[np.minimum(left, 8)]))
        longer = longer[left > 8]
    for word in longer:
        hashes[word] = xxh3_64_intdigest(data[begins[word] : ends[word]].tobytes())
    return hashes


def _spread(values: Words) -> Words:
    """Hashes of numbers, different for different ones."""
    values = values * _PRIME_1
    values ^= values >> _HALF
    return values


def _drawn(units: NDArray[np.uint32], counts: NDArray[np.int64]) -> NDArray[np.uint8]:
    """The sketches of sequences of ``counts`` units each, which lie one after another."""
    texts = np.arange(len(counts)) * SLOTS
    least = np.full(len(counts) * SLOTS, _EMPTY)
    grams = _grams(units, counts)
    np.minimum.at(least, np.repeat(texts, counts) + (grams >> _PART_SHIFT), grams)
    ring = least.reshape(-1, SLOTS)
    step = 1
    while step < SLOTS and (ring == _EMPTY).any():
        ring = np.where(ring == _EMPTY, np.roll(ring, -step, axis=1), ring)
        step *= 2
    return (ring[:, _ORDER] >> _ELEMENT_SHIFT).astype(np.uint8)


def _grams(units: NDArray[np.uint32], counts: NDArray[np.int64]) -> NDArray[np.uint32]:
    """The hash of each unit and the two after it. The last two of a sequence, which have no such, repeat its last one."""
    padded = np.concatenate((units, np.zeros(2, np.uint32)))
    grams: NDArray[np.uint32] = padded[:-2] * _PRIME32_1 + padded[1:-1] * _PRIME32_2 + padded[2:]
    ends = np.cumsum(counts)
    begins = ends - counts
    long = ends[counts > 2]
    grams[long - 1] = grams[long - 2] = grams[long - 3]
    one, two = begins[counts == 1], begins[counts == 2]
    grams[one] = units[one] * _PRIME32_1
    grams[two] = grams[two + 1] = units[two] * _PRIME32_1 + units[two + 1] * _PRIME32_2
    grams ^= grams >> np.uint32(15)
    grams *= _PRIME32_3
    grams ^= grams >> np.uint32(13)
    return grams
