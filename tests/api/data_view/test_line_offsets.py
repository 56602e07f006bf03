"""Offsets of lines equal those that Python computes, whatever was requested before."""

from __future__ import annotations

import math
import random
import time
from pathlib import Path

from api.data_view.line_offsets import CHUNK_BYTES, LineOffsets


def test_offsets_are_those_of_the_lines(tmp_path: Path) -> None:
    draw = random.Random(7)
    lines = [b"x" * draw.choice([0, 5, 900, 3000]) + b"\n" for _ in range(5000)] + [b"the last"]
    path = tmp_path / "lines"
    path.write_bytes(b"".join(lines))
    assert path.stat().st_size > 3 * CHUNK_BYTES
    begins = [0]
    for line in lines:
        begins.append(begins[-1] + len(line))
    for order in ([0, 1, 999, 1000, 1001, 2500, 5000], [4999, 3, 2000, 1999], [9000, 5001, 5000, 17]):
        offsets = LineOffsets()
        with path.open("rb") as file:
            for line in order:
                assert offsets.find(file, line, math.inf) == begins[min(line, len(begins) - 1)], line


def test_search_that_runs_out_of_time_continues_later(tmp_path: Path) -> None:
    path = tmp_path / "lines"
    path.write_bytes(b"a\n" * (2 * CHUNK_BYTES))
    offsets, tries = LineOffsets(), 0
    with path.open("rb") as file:
        # Each call reads one chunk, and then its time is over.
        while offsets.find(file, 2 * CHUNK_BYTES, time.monotonic() - 1) is None:
            tries += 1
            assert tries < 10
    assert tries == 3
