"""Fingerprints of strings: a digest that ignores case and white space, and a sketch that is similar for similar
strings.

Many strings are processed at a time with numpy, because processing them word by word would take ten times as long. They
are joined in an array of bytes, in lower case and with every run of white space replaced by one space. A digest is the
XXH3 of one string's bytes in that array.

For the sketch, words are found by the spaces and hashed by their bytes, eight at a time, and a string's words become
the set of hashes of three consecutive ones (of three characters for scripts without spaces). The ring of hashes has 32
equal bins, and the smallest hash of each is kept; an empty bin takes the hash of the next one. The share of equal
elements of two sketches approximates the share that the two sets have in common (one permutation hashing: Li, Owen,
Zhang 2012; the empty bins: Shrivastava, Li 2014). Arithmetic is modulo 2^64 or 2^32, and all hashes are the same on
every machine and in every run.
"""

from __future__ import annotations

import random
import string
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray
from xxhash import xxh3_64_intdigest

SLOTS = 32
"""Elements, and bytes, of a sketch."""
MAX_WORDS = 4_000
"""Number of words of a string from which its sketch is computed; the rest of a longer string is not compared for
similarity.
"""
LONG_WORD = 24
"""Mean word length from which a script is treated as one without spaces."""
HASHED_BYTES = 64
"""Longest word that is hashed in bulk; longer ones are hashed one by one."""
BYTES_AT_ONCE, TEXTS_AT_ONCE = 1 << 17, 1 << 12
"""Limits of a batch, so that its arrays stay in the processor's cache."""

Words = NDArray[np.uint64]
BEGIN, NUL = b"\0", b"\xff"
"""Mark before each string, and a byte that UTF-8 never has in place of NUL, as words are padded with NUL."""
_SPACE, _LOWER_CASE = ord(" "), np.uint8(ord(" "))
_BREAKS = np.array([code == 0 or chr(code).isspace() for code in range(_SPACE)])
_ASCII = bytes(range(128))
_PADDING = np.frombuffer(b" " + NUL * HASHED_BYTES, np.uint8)
_MASKS = np.array([(1 << 8 * count) - 1 for count in range(9)], np.uint64)
"""Masks that keep the first ``count`` bytes of eight, as a little-endian number."""
# xxHash's first 64-bit prime.
_PRIME = np.uint64(0x9E3779B185EBCA87)
_PRIME32_1, _PRIME32_2, _PRIME32_3 = map(np.uint32, (0x9E3779B1, 0x85EBCA77, 0xC2B2AE3D))
"""xxHash's multipliers."""
_HALF = np.uint64(32)
_BIN_SHIFT, _ELEMENT_SHIFT = np.uint32(27), np.uint32(10)
_EMPTY, _NOTHING = np.uint32(2**32 - 1), np.uint16(2**16 - 1)
"""A bin without a hash, and without an element."""
_ORDER = random.Random(0).sample(range(SLOTS), SLOTS)
"""Order of a sketch's elements that separates neighbours, which an empty bin would make equal."""

_UNKNOWN, _STAYS, _CHANGES = range(3)
_letters = np.zeros(0x110000, np.uint8)
"""For each character, whether comparing leaves it unchanged; a process looks each up once."""


def fingerprints(texts: Sequence[str], *, near: bool = True) -> tuple[list[int], bytes]:
    """Return the 64-bit digest of each string and, one after another, their sketches of 32 bytes.

    Args:
        near: whether to compute sketches.
    """
    digests: list[int] = []
    sketches = bytearray()
    for batch in _batches(texts):
        batch_digests, drawn = joined_fingerprints(BEGIN + BEGIN.join(batch), near=near)
        digests += batch_digests
        sketches += drawn
    return digests, bytes(sketches)


def joined_fingerprints(texts: bytes, *, near: bool = True) -> tuple[list[int], bytes]:
    """Return the fingerprints of strings in UTF-8, each with ``BEGIN`` before it.

    Pass as many as fit into a cache, with ``NUL`` in place of any ``BEGIN`` in them.
    """
    compared = _Texts.of(texts)
    return compared.digests(), _sketches(compared.least()).tobytes() if near else b""


def word_hashes(texts: Sequence[str]) -> Iterator[tuple[Words, NDArray[np.int64]]]:
    """Yield the hashes of the words of some of the strings, in order, and how many words each of these has."""
    for batch in _batches(texts):
        yield _Texts.of(BEGIN + BEGIN.join(batch)).words()


def _batches(texts: Sequence[str]) -> Iterator[list[bytes]]:
    """Encode the strings in UTF-8, in batches that fit into the processor's cache."""
    batch: list[bytes] = []
    size = 0
    for text in texts:
        batch.append(text.encode(errors="replace").replace(BEGIN, NUL))
        size += len(batch[-1])
        if size >= BYTES_AT_ONCE or len(batch) == TEXTS_AT_ONCE:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


@dataclass(frozen=True, slots=True)
class _Texts:
    """Some strings in the form in which they are compared.

    Attributes:
        data: a space, and the strings' bytes in lower case, one space after each word; padding, which has no spaces.
        offsets: places in ``data`` at which the strings begin, and the end of the last one. A string without words is
            empty.
    """

    data: NDArray[np.uint8]
    offsets: NDArray[np.int64]

    @classmethod
    def of(cls, texts: bytes) -> _Texts:
        if not texts.isascii():
            texts = _other_letters_lowered(texts)
        size = len(texts)
        data = np.empty(size + 1 + HASHED_BYTES, np.uint8)
        data[size:] = _PADDING
        lower, written = data[:size], np.frombuffer(texts, np.uint8)
        np.subtract(written, ord("A"), out=lower)
        # Arithmetic takes a sixth of the time of a table.
        np.bitwise_or(written, (lower < len(string.ascii_uppercase)).view(np.uint8) * _LOWER_CASE, out=lower)
        controls = places(lower < _SPACE)
        kinds = lower[controls]
        begins = controls[kinds == 0]
        data[controls[_BREAKS[kinds]]] = _SPACE
        offsets = np.append(begins, size) + 1
        spaces = data == _SPACE
        repeated = spaces[1:] & spaces[:-1]
        dropped = places(repeated) + 1
        if len(dropped):
            data = np.concatenate((data[:1], data[1:][~repeated]))
            offsets -= np.searchsorted(dropped, offsets)
        return cls(data, offsets)

    def digests(self) -> list[int]:
        """Return the digest of each string."""
        data = self.data.data
        return [xxh3_64_intdigest(data[begin:end]) for begin, end in pairwise(self.offsets.tolist())]

    def words(self) -> tuple[Words, NDArray[np.int64]]:
        """Return the hashes of all words, one string after another, and the number of words of each."""
        spaces = np.flatnonzero(self.data == _SPACE)
        begins, sizes = spaces[:-1] + 1, np.diff(spaces) - 1
        hashes = _hashed(self.data, begins, sizes).astype(np.uint64)
        return hashes, np.diff(np.searchsorted(begins, self.offsets))

    def least(self) -> NDArray[np.uint32]:
        """Return, for each string, the smallest hash in each bin of the ring."""
        spaces = np.flatnonzero(self.data == _SPACE)
        begins, sizes = spaces[:-1] + 1, np.diff(spaces) - 1
        units = _hashed(self.data, begins, sizes)
        first = np.searchsorted(begins, self.offsets)
        counts = np.diff(first)
        kept = np.minimum(counts, MAX_WORDS)
        if (counts > MAX_WORDS).any():
            units = units[np.arange(len(units)) - np.repeat(first[:-1], counts) < MAX_WORDS]
        hashes = _least(units, kept)
        letters = np.diff(self.offsets) - counts
        rows = [
            (row, text)
            for row in np.flatnonzero(letters > LONG_WORD * counts)
            if (text := self._unspaced(row, counts[row]))
        ]
        if rows:
            units = np.frombuffer("".join(text for _, text in rows).encode("utf-32-le"), np.uint32)
            hashes[[row for row, _ in rows]] = _least(units, np.array([len(text) for _, text in rows]))
        return hashes

    def _unspaced(self, row: int, words: int) -> str:
        """Return the first characters of a string whose script writes no spaces; empty for other strings."""
        text = self.data[self.offsets[row] : self.offsets[row + 1] - 1].tobytes().decode(errors="replace")
        return text[:MAX_WORDS] if len(text) > LONG_WORD * words else ""


def _other_letters_lowered(texts: bytes) -> bytes:
    """Convert strings with capitals or white space outside ASCII to lower case with single spaces; the others are
    unchanged.
    """
    data = np.frombuffer(texts, np.uint8)
    # Only the byte for NUL is not a character.
    text = texts.translate(None, _ASCII).decode(errors="ignore")
    codes = np.frombuffer(text.encode("utf-32-le"), np.uint32)
    kinds = _letters.take(codes)
    if not kinds.all():
        for character in set(text):
            stays = character == character.lower() and character.isprintable()
            _letters[ord(character)] = _STAYS if stays else _CHANGES
        kinds = _letters.take(codes)
    changing = np.flatnonzero(kinds == _CHANGES)
    if not len(changing):
        return texts
    # UTF-8 has one byte of at least 0xC0 a character; 0xFF is NUL.
    letters = np.flatnonzero((data >= 0xC0) & (data < 0xFF))[changing]
    split = texts.split(BEGIN)
    for row in np.unique(np.searchsorted(np.flatnonzero(data == 0), letters)).tolist():
        words = split[row].replace(NUL, BEGIN).decode().lower().split()
        split[row] = " ".join(words).encode().replace(BEGIN, NUL)
    return BEGIN.join(split)


def places(mask: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Return the indices where a mask is true. Fast if they are few: eight places are checked at once."""
    whole = len(mask) & ~7
    eights = np.flatnonzero(mask[:whole].view(np.uint64) != 0)
    inside = np.flatnonzero(mask[:whole].reshape(-1, 8)[eights])
    indices: NDArray[np.int64] = (eights[inside >> 3] << 3) + (inside & 7)
    return np.concatenate((indices, np.flatnonzero(mask[whole:]) + whole)) if whole < len(mask) else indices


def _hashed(data: NDArray[np.uint8], begins: NDArray[np.int64], sizes: NDArray[np.int64]) -> NDArray[np.uint32]:
    """Hash each word by all of its bytes."""
    eights: Words = np.ndarray((len(data) - 7,), np.dtype("<u8"), data, 0, (1,))
    hashes = eights[begins]
    hashes &= _MASKS.take(sizes, mode="clip")
    hashes *= _PRIME
    longer = np.flatnonzero(sizes > 8)
    mixed = hashes[longer]
    for offset in range(8, HASHED_BYTES, 8):
        if not len(longer):
            break
        left = sizes[longer] - offset
        mixed ^= mixed >> _HALF
        mixed ^= eights[begins[longer] + offset] & _MASKS.take(left, mode="clip")
        mixed *= _PRIME
        hashes[longer] = mixed
        longer, mixed = longer[left > 8], mixed[left > 8]
    for word in longer:
        hashes[word] = xxh3_64_intdigest(data[begins[word] : begins[word] + sizes[word]].tobytes())
    hashes >>= _HALF
    return hashes.astype(np.uint32)


def _least(units: NDArray[np.uint32], counts: NDArray[np.int64]) -> NDArray[np.uint32]:
    """Return the smallest hash in each bin of the ring, for consecutive sequences of ``counts`` units each."""
    least = np.full((len(counts), SLOTS), _EMPTY)
    grams = _grams(units, counts)
    np.minimum.at(least.ravel(), np.repeat(np.arange(len(counts)) * SLOTS, counts) + (grams >> _BIN_SHIFT), grams)
    return least


def _sketches(ring: NDArray[np.uint32]) -> NDArray[np.uint8]:
    """Build MinHash sketches from each string's smallest hashes; fill empty bins from the next bin."""
    elements = (ring >> _ELEMENT_SHIFT & 0xFF).astype(np.uint16)
    empty = ring == _EMPTY
    elements[empty] = _NOTHING
    step = 1
    while step < SLOTS and empty.any():
        following = np.concatenate((elements[:, step:], elements[:, :step]), axis=1)
        np.copyto(elements, following, where=empty)
        empty = elements == _NOTHING
        step *= 2
    return elements[:, _ORDER].astype(np.uint8)


def _grams(units: NDArray[np.uint32], counts: NDArray[np.int64]) -> NDArray[np.uint32]:
    """Hash each unit with the two after it. The last two of a sequence repeat the hash before them."""
    padded = np.concatenate((units, np.zeros(2, np.uint32)))
    grams: NDArray[np.uint32] = padded[:-2] * _PRIME32_1 + padded[1:-1] * _PRIME32_2 + padded[2:]
    ends = np.cumsum(counts)
    begins = ends - counts
    long = ends[counts > 2]
    grams[long - 1] = grams[long - 2] = grams[long - 3]
    single, two = begins[counts == 1], begins[counts == 2]
    grams[single] = units[single] * _PRIME32_1
    grams[two] = grams[two + 1] = units[two] * _PRIME32_1 + units[two + 1] * _PRIME32_2
    grams ^= grams >> np.uint32(15)
    grams *= _PRIME32_3
    grams ^= grams >> np.uint32(13)
    return grams
