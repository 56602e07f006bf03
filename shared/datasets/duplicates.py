"""Duplicate rows, exact (except for case and white space) or near, within a file or between two (leakage).

Memory is bounded: an exact index keeps 12 bytes a row, a near index 44 bytes a row for at most ``MAX_NEAR_ROWS`` rows
and a band table of fixed size. Nothing of the rows' text is kept.

Near duplicates: a row's words become the set of hashes of three consecutive words (of three characters, where a script
writes no spaces). Of that set a sketch of 32 elements is drawn, each the first element that follows a fixed point on
the ring of hashes, so that two rows share about as many elements of their sketches as their sets have in common
(MinHash by one sort). Rows that agree on four neighbouring elements are compared; an estimate of 0.8 or more is near.
All hashes are the same on every machine and in every run.
"""

from __future__ import annotations

import heapq
import random
import string
from array import array
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from zlib import crc32

import msgspec
from xxhash import xxh3_64_intdigest

from shared.datasets.rows import Message

MAX_PAIRS = 20
MAX_NEAR_ROWS = 1_000_000
MAX_WORDS = 4_000
"""Words of a row that are compared for near duplicates; the rest of a longer row is not."""
LONG_WORD = 24
"""Mean length of words from which the script is taken to write no spaces."""
SIMILAR = 0.8
SLOTS, BAND = 32, 4
BANDS = SLOTS // BAND
EXACT_BYTES_PER_ROW, NEAR_BYTES_PER_ROW = 12, 44
_BUCKETS = 256
_DRAW = random.Random(0)
# Signed, as Python's hashes are.
_POINTS = [_DRAW.getrandbits(64) - (1 << 63) for _ in range(SLOTS)]
_BREAKS = "".join(filter(str.isspace, map(chr, range(128)))).replace(" ", "")
_PLAIN = bytes.maketrans(
    (string.ascii_uppercase + _BREAKS).encode(), (string.ascii_lowercase + "\n" * len(_BREAKS)).encode()
)
"""Writes ASCII letters in lower case, and ASCII white space other than the space as line breaks."""
_ASCII = bytes(range(128))


@dataclass(frozen=True, slots=True, order=True)
class Pair:
    """Two equal or similar lines; ``first`` may be of another file (the training file, for leakage)."""

    second: int
    first: int
    similarity: float = 1.0

    def as_dict(self) -> dict[str, float]:
        return {"first": self.first, "second": self.second, "similarity": round(self.similarity, 2)}


@dataclass(slots=True)
class PairReport:
    """Pairs found: ``rows`` counts the rows that repeat an earlier one, ``pairs`` lists the first of them by line."""

    rows: int = 0
    pairs: list[Pair] = field(default_factory=list)

    def collect(self, pairs: Iterable[Pair]) -> PairReport:
        def counted() -> Iterator[Pair]:
            for pair in pairs:
                self.rows += 1
                yield pair

        self.pairs = heapq.nsmallest(MAX_PAIRS, counted())
        return self

    def add(self, pair: Pair) -> None:
        self.rows += 1
        if len(self.pairs) < MAX_PAIRS:
            self.pairs.append(pair)


def normalised(messages: Iterable[Message]) -> bytes:
    """The conversation as it is compared: in lower case, with single spaces, in UTF-8."""
    turns = []
    for message in messages:
        turns.append(f"<{message.role}> {message.content or ''}")
        if message.tool_calls:
            turns.append(msgspec.json.encode(message.tool_calls).decode())
    text = " ".join(turns)
    # Lower case and words of a whole text cost more than decoding its row did, so they are for the texts that need them.
    raw = text.encode(errors="replace")
    if not text.isascii():
        other = raw.translate(None, _ASCII).decode()
        if other != other.lower() or not other.isprintable():
            return " ".join(text.lower().split()).encode(errors="replace")
    # Most of the runs of white space have a line break, which is found in a fourth of the time of two spaces.
    plain = b" ".join([line for line in map(bytes.strip, raw.translate(_PLAIN).split(b"\n")) if line])
    while b"  " in plain:
        plain = b" ".join(plain.split(b"  "))  # half as many; `replace` takes three times as long
    return plain


def digest64(text: str | bytes) -> int:
    """A 64-bit digest of a text: in a file of a million rows two collide by chance once in 30 million files."""
    return xxh3_64_intdigest(text if isinstance(text, bytes) else text.encode(errors="replace"))


def sketch(text: str | bytes) -> bytes:
    """The MinHash sketch of a text: 32 bytes, of which two similar texts share most."""
    raw = text if isinstance(text, bytes) else text.encode(errors="replace")
    words = raw.split(b" ", MAX_WORDS)[:MAX_WORDS]
    units = _characters(raw, len(words)) or list(map(crc32, words))
    # Numbers, because Python's hash of text differs from run to run.
    grams = sorted(set(map(hash, zip(units, units[1:], units[2:], strict=False)))) or [hash(tuple(units))]
    count = len(grams)
    # The ring closes: after the last element comes the first.
    return bytes([grams[bisect_left(grams, point) % count] & 0xFF for point in _POINTS])


def _characters(raw: bytes, words: int) -> list[int]:
    """The first characters of a text whose script writes no spaces; of another, none."""
    if len(raw) <= LONG_WORD * words:
        return []
    text = raw.decode()
    return list(map(ord, text[:MAX_WORDS])) if len(text) > LONG_WORD * words else []


def similarity(one: bytes, other: bytes | bytearray) -> float:
    """Estimated share of what two sketched texts have in common, 0 to 1."""
    return sum(map(int.__eq__, one, other)) / SLOTS


class ExactIndex:
    """Exact duplicates: digests and line numbers, in 256 buckets so that a search needs one bucket's dictionary at a time."""

    def __init__(self) -> None:
        self._digests = [array("Q") for _ in range(_BUCKETS)]
        self._lines = [array("I") for _ in range(_BUCKETS)]

    def __len__(self) -> int:
        return sum(map(len, self._lines))

    @property
    def nbytes(self) -> int:
        return sum(a.itemsize * len(a) for a in (*self._digests, *self._lines))

    def add(self, digests: Iterable[int], lines: Iterable[int]) -> None:
        """Keep rows by digest and line."""
        digests_of, lines_of = self._digests, self._lines
        for digest, line in zip(digests, lines, strict=True):
            bucket = digest % _BUCKETS
            digests_of[bucket].append(digest)
            lines_of[bucket].append(line)

    def extend(self, other: ExactIndex) -> None:
        """Add the rows of later lines."""
        for bucket in range(_BUCKETS):
            self._digests[bucket] += other._digests[bucket]
            self._lines[bucket] += other._lines[bucket]

    def repeats(self) -> PairReport:
        """Rows that repeat an earlier one of the same file."""

        def pairs() -> Iterator[Pair]:
            for digests, lines in zip(self._digests, self._lines, strict=True):
                if len(set(digests)) == len(digests):
                    continue
                seen: dict[int, int] = {}
                for digest, line in zip(digests, lines, strict=True):
                    first = seen.setdefault(digest, line)
                    if first != line:
                        yield Pair(line, first)

        return PairReport().collect(pairs())

    def shared_with(self, training: ExactIndex) -> PairReport:
        """Rows of this file that are in the training file too."""

        def pairs() -> Iterator[Pair]:
            for bucket in range(_BUCKETS):
                trained: dict[int, int] = {}
                for digest, line in zip(training._digests[bucket], training._lines[bucket], strict=True):
                    trained.setdefault(digest, line)
                for digest, line in zip(self._digests[bucket], self._lines[bucket], strict=True):
                    if (first := trained.get(digest)) is not None:
                        yield Pair(line, first)

        return PairReport().collect(pairs())


class NearIndex:
    """Near duplicates: sketches of rows, found by any four neighbouring elements (locality-sensitive hashing).

    The band table has a fixed size, and a newer row replaces an older one in it: in a file much larger than the table
    some near duplicates are missed, but none is reported wrongly.
    """

    def __init__(self, expected_rows: int = MAX_NEAR_ROWS) -> None:
        self._slots = 1 << max(10, min(expected_rows, MAX_NEAR_ROWS).bit_length())
        self._table = array("I", bytes(4 * BANDS * self._slots))
        self._sketches = bytearray()
        self._digests = array("Q")
        self._lines = array("I")

    def __len__(self) -> int:
        return len(self._lines)

    @property
    def full(self) -> bool:
        return len(self._lines) >= MAX_NEAR_ROWS

    @property
    def nbytes(self) -> int:
        """Bytes that grow with the rows, without the band table."""
        return len(self._sketches) + sum(a.itemsize * len(a) for a in (self._digests, self._lines))

    @property
    def table_bytes(self) -> int:
        return self._table.itemsize * len(self._table)

    def add(self, drawn: bytes, digest: int, line: int) -> None:
        """Keep a row, unless the index is full."""
        if self.full:
            return
        self._sketches += drawn
        self._digests.append(digest)
        self._lines.append(line)
        for place in self._places(drawn):
            self._table[place] = len(self._lines)

    def find(self, drawn: bytes, digest: int, line: int) -> Pair | None:
        """The most similar row that is near but not equal; None when there is none."""
        # 0 is an empty place; rows are numbered from 1.
        candidates = {self._table[place] for place in self._places(drawn)} - {0}
        best, best_row = 0.0, -1
        for row in sorted(candidate - 1 for candidate in candidates):
            alike = similarity(drawn, self._sketches[row * SLOTS : (row + 1) * SLOTS])
            if self._digests[row] == digest:
                return None
            if alike > best:
                best, best_row = alike, row
        return Pair(line, self._lines[best_row], best) if best >= SIMILAR else None

    def _places(self, drawn: bytes) -> list[int]:
        keys = memoryview(drawn).cast("I")
        return [band * self._slots + key % self._slots for band, key in enumerate(keys)]
