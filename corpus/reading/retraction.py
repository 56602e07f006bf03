"""Retraction: keys of a table whose rows must never be used again, and the training files that contain such rows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Annotated, Any

import msgspec

from corpus.claims import claimed
from corpus.provenance import SOURCES_SUFFIX, read_provenance
from corpus.reading.pull_state import pulled_rows, read_state
from corpus.reading.versions import read_keys, read_left_out
from corpus.shards import RETRACTED_NAME, write_file
from shared.errors import Code, InvalidRequest, NotFound
from shared.hashing import canonical_json, digest_file


class AffectedFile(msgspec.Struct):
    """A file with rows made from retracted keys.

    Attributes:
        path: the file's path.
        sha256: the file's SHA-256, which is in the manifest of adapters trained on it.
        rows: number of rows made from retracted keys.
    """

    path: str
    sha256: str
    rows: int


Scalar = str | int | float | bool
_decoder = msgspec.json.Decoder(Scalar | Annotated[list[Scalar], msgspec.Meta(min_length=1)])


def _decode_key(line: bytes) -> list[Any]:
    value = _decoder.decode(line)
    return value if isinstance(value, list) else [value]


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
            keys.append(_decode_key(line))
        except (msgspec.DecodeError, UnicodeDecodeError):
            raise InvalidRequest(
                Code.REQUEST_INVALID,
                f"Line {number} of {path} is not a key.",
                remedy='Write one key per line as JSON: 42, "a-17", or [42, "b"] for a key of two columns.',
                param="keys",
            ) from None
    return keys


def retract(folder: Path, keys: Sequence[list[Any]]) -> int:
    """Add keys to the retracted keys. Returns the number of new ones.

    Raises:
        NotFound: ``CORPUS_SOURCE_MISSING``: the folder does not hold a pull.
        Conflict: ``CORPUS_BUSY``.
    """
    if read_state(folder) is None:
        raise NotFound(
            Code.CORPUS_SOURCE_MISSING,
            f"{folder} does not hold a pull.",
            remedy="Name the folder that `mens corpus pull` or a build wrote, such as corpus/pulled.",
            param="folder",
        )
    with claimed(folder, is_folder=True):
        earlier = {canonical_json(key) for key in read_keys(folder / RETRACTED_NAME)}
        added = {canonical_json(key) for key in keys} - earlier
        lines = sorted(earlier | added)
        write_file(folder / RETRACTED_NAME, b"".join(line + b"\n" for line in lines))
    return len(added)


def find_unmatched(folder: Path, keys: Sequence[list[Any]]) -> list[list[Any]]:
    """Return the keys that no row version in the pull's folder has, such as ``"2"`` where the table has 2."""
    state = read_state(folder)
    missing = {canonical_json(key): key for key in keys}
    pulled = (provenance.locator.get("key") for provenance in pulled_rows(folder, state.shards if state else []))
    for key in chain(pulled, (key for key, _, _ in read_left_out(folder))):
        missing.pop(canonical_json(key), None)
    return list(missing.values())


def find_affected(
    folder: Path, corpus: Path, keys: Sequence[list[Any]], skipped: list[Path] | None = None
) -> Iterator[AffectedFile]:
    """Yield the files below a folder that have rows made from these keys of a pull.

    Args:
        folder: the pull's folder, whose state names the source.
        skipped: receives files that are named like provenance files but are not.
    """
    state = read_state(folder)
    source = next((provenance.source for provenance in pulled_rows(folder, state.shards)), None) if state else None
    key_texts = {canonical_json(key) for key in keys}
    for path in sorted(corpus.rglob(f"*{SOURCES_SUFFIX}")):
        rows = path.with_name(path.name.removesuffix(SOURCES_SUFFIX) + ".jsonl")
        if folder.resolve() in path.resolve().parents or not rows.is_file():
            continue
        try:
            count = sum(
                provenance.source == source and canonical_json(provenance.locator.get("key")) in key_texts
                for provenance in read_provenance(path)
            )
        except (msgspec.DecodeError, UnicodeDecodeError):
            if skipped is not None:
                skipped.append(path)
            continue
        if count:
            yield AffectedFile(str(rows), digest_file(rows), count)
