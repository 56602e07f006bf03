"""Rows that were pulled and that the query no longer returns: a watermark does not show deletions."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from corpus.claims import claimed
from corpus.reading.addresses import SourceAddress
from corpus.reading.database import Query, SourceDatabase
from corpus.reading.pull_spec import PullSpec
from corpus.reading.pull_state import pulled_rows, read_state, write_state
from corpus.reading.values import to_json
from corpus.reading.versions import NEVER, rows_of
from corpus.shards import PartialFile
from shared.hashing import canonical_json

GONE_NAME = "gone.jsonl"
"""Keys of rows that were deleted, one JSON list per line."""


def compare_keys(spec: PullSpec, address: SourceAddress, folder: Path) -> int:
    """Write the keys of pulled rows that the query no longer returns. Returns their number.

    Raises:
        Conflict: ``CORPUS_BUSY``.
        Unavailable: ``STORAGE_FULL``.
    """
    with claimed(folder, is_folder=True):
        state = read_state(folder)
        shards = state.shards if state else []
        events = rows_of(folder, shards)
        for key in _present_keys(spec, address):
            # For a key that is present, this is the last event.
            events.add_mark(key, NEVER)
        gone = 0
        with PartialFile(folder / GONE_NAME) as file:
            for is_gone, provenance in zip(events.last().tolist(), pulled_rows(folder, shards), strict=False):
                if is_gone:
                    gone += 1
                    file.write(canonical_json(provenance.locator["key"]) + b"\n")
        if state:
            state.compared = state.rows
            write_state(folder, state)
    return gone


def _present_keys(spec: PullSpec, address: SourceAddress) -> Iterator[list[Any]]:
    with SourceDatabase(address).snapshot() as snapshot:
        columns = {column.name: (number, column) for number, column in enumerate(snapshot.columns(spec.sql))}
        places = [columns[name] for name in spec.key]
        for page in snapshot.pages(Query(spec.sql), rows=spec.limit):
            for row in page:
                yield [to_json(row[number], column) for number, column in places]
