"""The pass over a file of preferences: every line checked, every bad one reported, memory bounded."""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator

from shared.datasets.dataset_report import DatasetReport, Quarantine
from shared.datasets.preferences.rows import PairRecord, parse_pair
from shared.datasets.reader import READ_BYTES, line_stream
from shared.datasets.rows import RowError


def read_pairs(
    lines: Iterable[bytes], report: DatasetReport, quarantine: Quarantine | None = None
) -> Iterator[tuple[int, PairRecord]]:
    """Yield (line number, pair) of the valid lines; the others are counted in ``report``."""
    stream = line_stream(lines)
    for number, line in enumerate(stream, start=1):
        try:
            found = parse_pair(line)
        except RowError as error:
            report.add_error(number, error)
            if quarantine:
                quarantine.add(number, error, line)
            # For a line over the limit, skip the remaining pieces.
            if len(line) == READ_BYTES and not line.endswith(b"\n") and isinstance(lines, io.IOBase):
                next((piece for piece in stream if piece.endswith(b"\n")), None)
        else:
            report.add_unused(found.unused_keys)
            yield number, found.record
