"""A training file of the newest version of each pulled row: a pull adds versions and never changes those before."""

from __future__ import annotations

from pathlib import Path

from shared.corpus.reading.deletions import gone_keys
from shared.corpus.reading.pull_state import pulled_rows, read_state
from shared.corpus.shards import PartialFile, checked_shards, read_index, read_lines, sources_path
from shared.hashing import canonical_json


def write_newest(folder: Path, output: Path) -> int:
    """Write the newest version of each key that was not deleted, with its provenance. Returns the number of rows.

    Raises:
        NotFound: ``CORPUS_SOURCE_MISSING``: the folder does not hold a complete pull.
        ArtifactInvalid: ``CORPUS_SHARD_CHANGED``.
        Unavailable: ``STORAGE_FULL``, ``STORAGE_UNAVAILABLE``.
    """
    shards = checked_shards(folder)
    index = read_index(folder)
    assert index
    newest = {
        canonical_json(provenance.locator["key"]): number
        for number, provenance in enumerate(pulled_rows(folder, index.shards))
    }
    state = read_state(folder)
    for key in gone_keys(folder):
        # A row that was pulled after the comparison is there again.
        if state and newest.get(key, state.compared) < state.compared:
            del newest[key]
    kept = set(newest.values())
    with PartialFile(sources_path(output)) as sources, PartialFile(output) as rows:
        for number, (row, provenance) in enumerate(read_lines(shards)):
            if number in kept and provenance is not None:
                rows.write(row)
                sources.write(provenance)
    return len(kept)
