"""State of a pull: the position from which the next one continues. It is stored next to the shards and written after
them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from corpus.provenance import Provenance, read_provenance
from corpus.shards import RETRACTED_NAME, Shard, has_retracted, sources_path, write_json
from shared.errors import Code, Conflict
from shared.hashing import canonical_json
from shared.host import disk_errors

STATE_NAME = "pull.state.json"


class Position(msgspec.Struct, frozen=True):
    """Place of a row in the order of a pull.

    Attributes:
        key: values of the key's columns.
        watermark: value of the watermark; None without one.
    """

    key: list[Any]
    watermark: Any = None


class PullState(msgspec.Struct, kw_only=True):
    """Rows that have been pulled, and where the next pull begins.

    Attributes:
        source, place: name of the source; its host and database.
        query_sha256: digest of the query and of everything else that determines the rows.
        last: the row in the shards with the greatest watermark; without a watermark, the last row.
        newest: greatest watermark of each shard.
        complete: whether the last pull read to the end.
        rows: number of rows in the shards.
        snapshots: number of transactions of the last pull.
        left_out: number of bytes of ``left_out.jsonl`` that are valid (``versions.py``).
        compared: number of rows in the shards when keys were last compared (``deletions.py``); later rows are newer
            than that comparison.
    """

    schema: int = 1
    source: str
    place: str
    query_sha256: str
    last: Position | None = None
    complete: bool = False
    rows: int = 0
    snapshots: int = 0
    shards: list[Shard] = []
    newest: list[Any] = []
    left_out: int = 0
    compared: int = 0


def read_state(folder: Path) -> PullState | None:
    """Return the state in a folder; None in a new folder.

    Raises:
        Conflict: ``CORPUS_STATE_MISMATCH``: the file is not a state.
    """
    try:
        return msgspec.json.decode((folder / STATE_NAME).read_bytes(), type=PullState)
    except FileNotFoundError:
        return None
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise _mismatch(folder, f"{STATE_NAME} is not the state of a pull") from None


def check_state(state: PullState, source: str, place: str, query_sha256: str, folder: Path) -> None:
    """Refuse to continue with a different query or database, or if files named in the state are missing.

    Raises:
        Conflict: ``CORPUS_STATE_MISMATCH``.
    """
    if (state.source, state.place) != (source, place):
        raise _mismatch(folder, f"it was pulled from {state.source!r} ({state.place}), not from {source!r} ({place})")
    if state.query_sha256 != query_sha256:
        raise _mismatch(
            folder, "the query, the key, the watermark, the row, the redactors or their files of rules have changed"
        )
    for shard in state.shards:
        path = folder / shard.name
        if not path.is_file() or path.stat().st_size != shard.bytes or not sources_path(path).is_file():
            raise _mismatch(folder, f"{shard.name} is missing or has another size")


def write_state(folder: Path, state: PullState) -> None:
    """Replace the state in one step.

    Raises:
        Unavailable: ``STORAGE_FULL``, ``STORAGE_UNAVAILABLE``.
    """
    with disk_errors():
        folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / STATE_NAME, state)


def version_of(locator: Mapping[str, Any]) -> bytes:
    """Return the identity of a row version: its key and its watermark.

    A digest of its content is not used, because it would let a reader of the redacted row confirm guesses of the
    redacted data.
    """
    return canonical_json([locator["key"], locator.get("watermark")])


def pulled_rows(folder: Path, shards: list[Shard]) -> Iterator[Provenance]:
    """Yield the provenance of all rows, in the order of the shards."""
    for shard in shards:
        yield from read_provenance(sources_path(folder / shard.name))


def _mismatch(folder: Path, reason: str) -> Conflict:
    kept = (
        f" Copy {RETRACTED_NAME} into the new folder first, or the retracted rows come back."
        if has_retracted(folder)
        else ""
    )
    return Conflict(
        Code.CORPUS_STATE_MISMATCH,
        f"{folder} belongs to another pull: {reason}.",
        remedy=f"Pull into a new folder with --out, or delete this one to pull everything again.{kept}",
        param=str(folder),
    )
