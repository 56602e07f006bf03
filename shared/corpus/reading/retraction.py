"""Retraction: keys of a table whose rows never come again, and the training files that have rows of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from shared.corpus.claims import claimed
from shared.corpus.provenance import SOURCES_SUFFIX, read_provenance
from shared.corpus.reading.pull_state import pulled_rows, read_state
from shared.corpus.reading.versions import RETRACTED_NAME, read_keys
from shared.corpus.shards import write_file
from shared.errors import Code, InvalidRequest, NotFound
from shared.hashing import canonical_json, digest_file


class AffectedFile(msgspec.Struct):
    """A file with rows that were made of retracted keys.

    Attributes:
        path: of the rows.
        sha256: of the file; adapters that were trained on it have it in their manifest.
        rows: number of such rows.
    """

    path: str
    sha256: str
    rows: int


def parse_keys(path: Path) -> list[list[Any]]:
    """Return the keys of a file: one JSON list per line, or one value for a key of one column.

    Raises:
        InvalidRequest: ``REQUEST_INVALID``.
    """
    keys = []
    for number, line in enumerate(path.read_bytes().splitlines(), 1):
        if line.isspace() or not line:
            continue
        try:
            value = msgspec.json.decode(line)
        except (msgspec.DecodeError, UnicodeDecodeError):
            raise InvalidRequest(
                Code.REQUEST_INVALID,
                f"Line {number} of {path} is not a key.",
                remedy='Write one key per line as JSON: 42, "a-17", or [42, "b"] for a key of two columns.',
                param="keys",
            ) from None
        keys.append(value if isinstance(value, list) else [value])
    return keys


def retract(folder: Path, keys: Sequence[list[Any]]) -> int:
    """Add keys to those whose rows never come again. Returns the number of new ones.

    Raises:
        NotFound: ``CORPUS_SOURCE_MISSING``: the folder does not hold a pull.
        Conflict: ``CORPUS_BUSY``.
    """
    if read_state(folder) is None:
        raise NotFound(
            Code.CORPUS_SOURCE_MISSING,
            f"{folder} does not hold a pull.",
            remedy="Name the folder that `mens corpus pull` or a build has written, such as corpus/pulled.",
            param="folder",
        )
    with claimed(folder, is_folder=True):
        known = {canonical_json(key) for key in read_keys(folder / RETRACTED_NAME)}
        added = {canonical_json(key) for key in keys} - known
        lines = sorted(known | added)
        write_file(folder / RETRACTED_NAME, b"".join(line + b"\n" for line in lines))
    return len(added)


def find_affected(folder: Path, corpus: Path, keys: Sequence[list[Any]]) -> Iterator[AffectedFile]:
    """Yield the files below a folder that have rows made of these keys of a pull.

    Args:
        folder: of the pull, which names its source.
    """
    state = read_state(folder)
    source = next((one.source for one in pulled_rows(folder, state.shards)), None) if state else None
    wanted = {canonical_json(key) for key in keys}
    for path in sorted(corpus.rglob(f"*{SOURCES_SUFFIX}")):
        rows = path.with_name(path.name.removesuffix(SOURCES_SUFFIX) + ".jsonl")
        if folder.resolve() in path.resolve().parents or not rows.is_file():
            continue
        count = sum(
            one.source == source and canonical_json(one.locator.get("key")) in wanted for one in read_provenance(path)
        )
        if count:
            yield AffectedFile(str(rows), digest_file(rows), count)
