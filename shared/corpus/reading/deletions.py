"""Rows that were pulled and that the query no longer gives: a watermark does not show deletions."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from shared.corpus.reading.addresses import SourceAddress
from shared.corpus.reading.database import Query, SourceDatabase
from shared.corpus.reading.pull_spec import PullSpec
from shared.corpus.reading.pull_state import PullState, pulled_rows, read_state, write_state
from shared.corpus.reading.values import to_json
from shared.corpus.shards import write_file
from shared.hashing import canonical_json

GONE_NAME = "gone.jsonl"
"""Keys of rows that were deleted, one JSON list per line."""
_DIGEST_BYTES = 8


def compare_keys(spec: PullSpec, address: SourceAddress, folder: Path) -> int:
    """Write the keys of pulled rows that the query no longer gives. Returns their number.

    Needs eight bytes of memory per row and what a set takes for them.

    Raises:
        InvalidRequest: ``CORPUS_QUERY_INVALID``.
        Unavailable: ``CORPUS_SOURCE_UNREACHABLE``, ``STORAGE_FULL``.
    """
    state = read_state(folder)
    present = set(_present_keys(spec, address))
    gone = _gone_keys(folder, state, present) if state else {}
    write_file(folder / GONE_NAME, b"".join(line + b"\n" for line in gone.values()))
    if state:
        state.compared = state.rows
        write_state(folder, state)
    return len(gone)


def gone_keys(folder: Path) -> set[bytes]:
    """Return the keys that the last comparison found deleted, as canonical JSON."""
    path = folder / GONE_NAME
    if not path.is_file():
        return set()
    return {canonical_json(msgspec.json.decode(line)) for line in path.read_bytes().splitlines()}


def _present_keys(spec: PullSpec, address: SourceAddress) -> Iterator[bytes]:
    with SourceDatabase(address).snapshot() as snapshot:
        columns = {column.name: (number, column) for number, column in enumerate(snapshot.columns(spec.sql))}
        places = [columns[name] for name in spec.key]
        for page in snapshot.pages(Query(spec.sql), rows=spec.limit):
            for row in page:
                yield _digest([to_json(row[number], column) for number, column in places])


def _gone_keys(folder: Path, state: PullState, present: set[bytes]) -> dict[bytes, bytes]:
    return {
        digest: canonical_json(provenance.locator["key"])
        for provenance in pulled_rows(folder, state.shards)
        if (digest := _digest(provenance.locator["key"])) not in present
    }


def _digest(key: list[Any]) -> bytes:
    return hashlib.blake2b(canonical_json(key), digest_size=_DIGEST_BYTES).digest()
