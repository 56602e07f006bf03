"""A training file with the newest version of each pulled row: a pull adds versions and never changes earlier ones."""

from __future__ import annotations

from pathlib import Path

from corpus.claims import claimed
from corpus.reading.deletions import GONE_NAME
from corpus.reading.pull_state import read_state
from corpus.reading.versions import NEVER, read_keys, rows_of
from corpus.shards import RETRACTED_NAME, checked_shards, read_index, read_lines, rows_with_sources


def write_newest(folder: Path, output: Path) -> int:
    """Write the newest version of each key, with its provenance. Returns the number of rows.

    A key has no row if its newest version was left out by a filter, or if it was deleted or retracted.

    Raises:
        Conflict: ``CORPUS_BUSY``.
        Unavailable: ``STORAGE_FULL``, ``STORAGE_UNAVAILABLE``.
    """
    with claimed(output, is_folder=False), claimed(folder, is_folder=True):
        shards = checked_shards(folder)
        index = read_index(folder)
        assert index
        events = rows_of(folder, index.shards)
        state = read_state(folder)
        for key in read_keys(folder / GONE_NAME):
            # A row that was pulled after the comparison exists again.
            events.add_mark(key, state.compared if state else 0)
        for key in read_keys(folder / RETRACTED_NAME):
            events.add_mark(key, NEVER)
        kept = events.last()[: index.rows]
        with rows_with_sources(output) as (rows, sources):
            assert sources
            for is_kept, (row, provenance) in zip(kept.tolist(), read_lines(shards), strict=True):
                if is_kept and provenance is not None:
                    rows.write(row)
                    sources.write(provenance)
    return int(kept.sum())
