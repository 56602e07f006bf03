"""Series of a job's numbers, step by step: packed in chunks for the database, and thinned to a curve that shows every extreme.

A chunk has the values of 256 steps as float32 (little-endian), counted from step 1. A step without a value is NaN, a value that was
not finite is infinity.
"""

from __future__ import annotations

import math
import struct
import sys
from array import array
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

# The newest chunk is written again with each report: larger ones would cost more writes, smaller ones more rows.
CHUNK_STEPS = 256
ABSENT, NOT_FINITE = math.nan, math.inf
_FORMAT = struct.Struct(f"<{CHUNK_STEPS}f")
LARGEST = 3.4028234e38
"""The largest float32."""


class SeriesChunk(NamedTuple):
    """A chunk of a series.

    Attributes:
        name: the series.
        number: the chunk's number, from 0.
        first_step: first step of the chunk that has a value.
        last_step: last step of the chunk that has a value.
        values: packed.
    """

    name: str
    number: int
    first_step: int
    last_step: int
    values: bytes

    @classmethod
    def of(cls, name: str, number: int, values: Sequence[float]) -> SeriesChunk:
        """Return the chunk with these values, one for each of its steps, at least one of them present."""
        present = [position for position, value in enumerate(values) if not math.isnan(value)]
        start = number * CHUNK_STEPS + 1
        return cls(name, number, start + present[0], start + present[-1], _FORMAT.pack(*values))


class Curve(NamedTuple):
    """Points of a series, in the order of steps; None is a value that was not finite."""

    step: list[int]
    value: list[float | None]


def storable(value: float | None) -> float:
    """Return a value as a chunk stores it: :data:`NOT_FINITE` for None and for a value that float32 cannot hold."""
    return value if value is not None and abs(value) <= LARGEST else NOT_FINITE  # false for NaN too


def unpack(values: bytes) -> array[float]:
    """Return the values of a chunk's steps, as an array, which takes a third of the time of single numbers."""
    steps = array("f", values)
    if sys.byteorder == "big":
        steps.byteswap()
    return steps


def bucket_size(first: int, last: int, points: int) -> int:
    """Return the number of steps per bucket of a curve: 1 if all steps fit, otherwise the smallest power of two with
    which two points per bucket fit.

    Buckets are counted from step 1, so a run that grows, or a range that moves, keeps its points until the size doubles.

    Args:
        first: first step of the range.
        last: last step of the range.
        points: largest number of points.
    """
    if last - first < points:
        return 1
    size = 2
    while 2 * ((last - 1) // size - (first - 1) // size + 1) > points:
        size *= 2
    return size


def thinned(values: Sequence[float], first: int, size: int) -> Curve:
    """Return a curve of measured points: the first and last point, and from each bucket the smallest value, the largest
    value and the first value that is not finite.

    Args:
        values: values of each step from ``first`` on; NaN if it has none.
        first: their first step.
        size: steps of a bucket.
    """
    numbers = np.asarray(values, dtype=np.float64)
    skipped = (first - 1) % size
    padded = np.full(-(-(skipped + numbers.size) // size) * size, np.nan)
    padded[skipped : skipped + numbers.size] = numbers
    buckets = padded.reshape(-1, size)
    starts = np.arange(len(buckets)) * size - skipped
    finite, infinite = np.isfinite(buckets), np.isinf(buckets)
    has_finite, has_infinite = finite.any(axis=1), infinite.any(axis=1)
    lowest = np.where(finite, buckets, np.inf).argmin(axis=1)
    highest = np.where(finite, buckets, -np.inf).argmax(axis=1)
    present = np.flatnonzero(~np.isnan(numbers))
    chosen = np.unique(
        np.concatenate(
            [
                (starts + lowest)[has_finite],
                (starts + highest)[has_finite],
                (starts + infinite.argmax(axis=1))[has_infinite],
                present[:1],
                present[-1:],
            ]
        )
    ).tolist()
    return Curve([first + position for position in chosen], [_shown(value) for value in numbers[chosen].tolist()])


def _shown(value: float) -> float | None:
    # A float32 has seven digits; the further ones of its value in Python are noise.
    return float(f"{value:.7g}") if math.isfinite(value) else None
