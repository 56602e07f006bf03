"""Shards: the output of a stage, as JSONL files of bounded size and an index of their digests.

    pairs/part-00000.jsonl              one row or unit per line
    pairs/part-00000.sources.jsonl      the provenance of each row, where the stage has one
    pairs/index.json                    stage, key, and the name, SHA-256, rows and bytes of each file

The index is removed first and written last, so a folder with an index is complete. Every file is written as
``.partial``, flushed and renamed: after a kill, a file is either complete or does not exist.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from itertools import zip_longest
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Self

import msgspec

from corpus.provenance import SOURCES_SUFFIX, Provenance, row_id
from shared.durable_files import sync
from shared.errors import ArtifactInvalid, Code, NotFound
from shared.hashing import digest_file
from shared.host import disk_errors

INDEX_NAME = "index.json"
MAX_SHARD_BYTES = 64 << 20
"""Largest size of a shard; a single longer line gets a shard of its own."""
PIECE_BYTES = 1 << 20
"""Size at which waiting rows are written to a file."""
PARTIAL_SUFFIX = ".partial"
RETRACTED_NAME = "retracted.jsonl"
"""File in a pull's folder with the retracted keys, one JSON list per line (`mens corpus retract`)."""


class Shard(msgspec.Struct, frozen=True):
    """A file of a stage's output.

    Attributes:
        rows: number of its lines.
        sources_sha256: digest of its provenance file; None if it does not have one.
    """

    name: str
    sha256: str
    rows: int
    bytes: int
    sources_sha256: str | None = None


class ShardIndex(msgspec.Struct, frozen=True, kw_only=True):
    """The output of a finished stage.

    Attributes:
        report: counts of the stage, such as the number of dropped rows by code.
    """

    schema: int = 1
    stage: str
    key: str
    shards: list[Shard]
    report: dict[str, Any] = {}

    @property
    def rows(self) -> int:
        return sum(shard.rows for shard in self.shards)

    def digest(self) -> str:
        """Return the SHA-256 of the digests of all files: it identifies the stage's output as an input of the next
        stage.
        """
        joined = "".join(f"{shard.name}\0{shard.sha256}\0{shard.sources_sha256}\n" for shard in self.shards)
        return hashlib.sha256(joined.encode()).hexdigest()


class PartialFile:
    """A file that gets its final name when it is complete. As a context manager, it finishes the file, or removes it
    after an exception.

    Attributes:
        bytes: number of bytes written.
        sha256: SHA-256 of the finished file.

    Raises:
        Unavailable: ``STORAGE_FULL``, ``STORAGE_UNAVAILABLE``.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.bytes = 0
        self.sha256 = ""
        self._partial = path.with_name(path.name + PARTIAL_SUFFIX)
        self._sha256 = hashlib.sha256()
        # Rows are collected here and not in the file's own buffer: each piece is digested and guarded against the disk's
        # faults once, which for each short row would take longer than writing it.
        self._waiting = bytearray()
        with disk_errors():
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file: BinaryIO = self._partial.open("wb")

    def write(self, data: bytes) -> None:
        """Append bytes."""
        self._waiting += data
        self.bytes += len(data)
        if len(self._waiting) >= PIECE_BYTES:
            self._flush()

    def seal(self) -> None:
        """Write all of it to disk, still under its temporary name. A second call does nothing."""
        if not self._file.closed:
            self._flush()
            with disk_errors():
                os.fsync(self._file.fileno())
                self._file.close()

    def _flush(self) -> None:
        with disk_errors():
            self._file.write(self._waiting)
            self._file.flush()
        self._sha256.update(self._waiting)
        self._waiting.clear()

    def finish(self) -> str:
        """Seal the file and give it its final name, or remove it if that fails. Returns its SHA-256."""
        try:
            self.seal()
            with disk_errors():
                self._partial.replace(self.path)
                sync(self.path.parent)
        except BaseException:
            self.remove()
            raise
        self.sha256 = self._sha256.hexdigest()
        return self.sha256

    def remove(self) -> None:
        """Close and delete the unfinished file."""
        with suppress(OSError):  # what is still in the buffer does not fit either
            self._file.close()
        self._partial.unlink(missing_ok=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.finish()
        else:
            self.remove()


@contextmanager
def rows_with_sources(path: Path, *, has_sources: bool = True) -> Iterator[tuple[PartialFile, PartialFile | None]]:
    """Write a file of rows and its provenance, so that rows are never next to the provenance of other rows, even after
    a kill.

    Args:
        has_sources: whether the rows have provenance; if not, the provenance of an earlier file is removed.
    """
    pair = [path, sources_path(path)]
    with files_together(pair[: 1 + has_sources], obsolete=pair[1 + has_sources :]) as files:
        yield files[0], files[1] if has_sources else None


@contextmanager
def files_together(paths: Sequence[Path], obsolete: Sequence[Path] = ()) -> Iterator[list[PartialFile]]:
    """Write files of one folder that belong together: even after a kill, they are never mixed with files of an earlier
    run.

    Args:
        paths: their paths; the first file is renamed last.
        obsolete: files of an earlier run without a successor.
    """
    with ExitStack() as stack:
        files = [stack.enter_context(PartialFile(path)) for path in paths]
        yield files
        # The steps that can fail for lack of space come first: until then the earlier files stay.
        for file in files:
            file.seal()
        with disk_errors():
            for path in (*paths, *obsolete):
                path.unlink(missing_ok=True)
            sync(paths[0].parent)


def write_file(path: Path, data: bytes) -> str:
    """Write a small file as a whole, or not at all. Returns its SHA-256."""
    with PartialFile(path) as file:
        file.write(data)
    return hashlib.sha256(data).hexdigest()


def write_json(path: Path, value: Any) -> None:
    """Write a JSON file that people read, as a whole or not at all."""
    write_file(path, msgspec.json.format(msgspec.json.encode(value), indent=2) + b"\n")


class StageWriter:
    """Writes the output of a stage. As a context manager, it writes the index at the end, or no index after an
    exception.

    The boundaries of shards depend only on the lines, not on the number of processes that made them.

    Args:
        stage: name of the stage.
        key: its key (``keys.py:stage_key``).
        kept: shards of an earlier run that stay, for a stage that only adds.

    Attributes:
        key: the index's key.
        report: counts for the index; the stage fills it.
        index: index of the finished output, available after the context ends.
    """

    def __init__(
        self, folder: Path, *, stage: str, key: str, max_bytes: int = MAX_SHARD_BYTES, kept: Sequence[Shard] = ()
    ) -> None:
        self.report: dict[str, Any] = {}
        self.index: ShardIndex | None = None
        self.key = key
        self._folder, self._stage, self._max_bytes = folder, stage, max_bytes
        self._shards = list(kept)
        self._rows: PartialFile | None = None
        self._sources: PartialFile | None = None
        self._count = 0
        with disk_errors():
            folder.mkdir(parents=True, exist_ok=True)
            (folder / INDEX_NAME).unlink(missing_ok=True)
            sync(folder)

    @property
    def finished(self) -> list[Shard]:
        """The shards that are complete on disk, including kept ones."""
        return self._shards

    @property
    def rows(self) -> int:
        """Number of rows written, including those of kept shards."""
        return sum(shard.rows for shard in self._shards) + self._count

    def write_row(self, row: Mapping[str, Any], provenance: Provenance) -> str:
        """Append a training row with its id, and its provenance. Returns the id; it is computed if the provenance has
        none.
        """
        provenance.id = provenance.id or row_id(row)
        # The id stands first, and in place of one that the row brings.
        written = {"id": provenance.id, **row}
        written["id"] = provenance.id
        self.write_line(msgspec.json.encode(written), msgspec.json.encode(provenance))
        return provenance.id

    def write_line(self, line: bytes, sources: bytes | None = None) -> None:
        """Append an encoded row or unit, without a newline; ``sources`` is its encoded provenance."""
        if self._rows is None or (self._count and self._rows.bytes + len(line) + 1 > self._max_bytes):
            self._finish_shard()
            self._rows = PartialFile(self._folder / f"part-{len(self._shards):05d}.jsonl")
        self._rows.write(line + b"\n")
        if sources is not None:
            if self._sources is None:
                self._sources = PartialFile(sources_path(self._rows.path))
            self._sources.write(sources + b"\n")
        self._count += 1

    def finish(self) -> ShardIndex:
        """Finish the last shard, delete files of an earlier output, and write the index."""
        self._finish_shard()
        named = {INDEX_NAME}
        for shard in self._shards:
            named |= {shard.name, sources_path(Path(shard.name)).name}
        for path in self._folder.glob("part-*"):
            if path.name not in named:
                path.unlink()
        self.index = ShardIndex(stage=self._stage, key=self.key, shards=self._shards, report=self.report)
        write_json(self._folder / INDEX_NAME, self.index)
        return self.index

    def _finish_shard(self) -> None:
        if self._rows is None:
            return
        # The provenance first: a shard without it would look complete.
        sources_sha256 = self._sources.finish() if self._sources else None
        sha256 = self._rows.finish()
        self._shards.append(Shard(self._rows.path.name, sha256, self._count, self._rows.bytes, sources_sha256))
        self._rows, self._sources, self._count = None, None, 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.finish()
            return
        for file in (self._rows, self._sources):
            if file is not None:
                file.remove()


def sources_path(rows: Path) -> Path:
    """Return the path of the provenance of a file of rows."""
    return rows.with_name(rows.name.removesuffix(".jsonl") + SOURCES_SUFFIX)


def has_retracted(folder: Path) -> bool:
    """Return whether a folder belongs to a pull with retracted keys; their rows are still in its shards."""
    try:
        return bool((folder / RETRACTED_NAME).read_bytes().strip())
    except (FileNotFoundError, NotADirectoryError):
        return False


def read_index(folder: Path) -> ShardIndex | None:
    """Return the index of a finished stage; None if the folder does not have a complete output."""
    try:
        return msgspec.json.decode((folder / INDEX_NAME).read_bytes(), type=ShardIndex)
    except (FileNotFoundError, NotADirectoryError, msgspec.DecodeError, UnicodeDecodeError):
        return None


def checked_shards(folder: Path, digest: Callable[[Path], str] = digest_file) -> list[Path]:
    """Return the shards of a finished stage, in order, after comparing each file with its digest.

    Raises:
        NotFound: ``CORPUS_SOURCE_MISSING``: the folder does not have a complete output.
        ArtifactInvalid: ``CORPUS_SHARD_CHANGED``.
    """
    index = read_index(folder)
    if index is None:
        raise NotFound(
            Code.CORPUS_SOURCE_MISSING,
            f"{folder} does not contain a complete output of a stage: {INDEX_NAME} is missing.",
            remedy="Run the stage that writes it.",
            param=str(folder),
        )
    for shard in index.shards:
        if changed := changed_file(folder, shard, digest):
            raise ArtifactInvalid(
                Code.CORPUS_SHARD_CHANGED,
                f"{changed} has changed since the stage {index.stage} wrote it.",
                remedy="Do not edit shards; change the stage's input and run the stage again.",
                param=str(changed),
            )
    return [folder / shard.name for shard in index.shards]


def changed_file(folder: Path, shard: Shard, digest: Callable[[Path], str] = digest_file) -> Path | None:
    """Return the first shard file that is missing or does not match the index; None if all match."""
    files = {folder / shard.name: shard.sha256}
    if shard.sources_sha256:
        files[sources_path(folder / shard.name)] = shard.sources_sha256
    return next((path for path, sha256 in files.items() if not path.is_file() or digest(path) != sha256), None)


def read_lines(paths: Sequence[Path]) -> Iterator[tuple[bytes, bytes | None]]:
    """Yield the lines of shards, each with the line of its provenance; None in a shard without provenance."""
    for path in paths:
        sources = sources_path(path)
        with path.open("rb") as rows:
            if not sources.is_file():
                yield from ((row, None) for row in rows)
                continue
            with sources.open("rb") as origins:
                for row, origin in zip_longest(rows, origins):
                    if row is None or (origin is None and not row.isspace()):
                        raise other_rows(path)
                    yield row, origin


def require_same_row(provenance_id: str, row: str, path: Path, line: int) -> None:
    """Refuse a row whose provenance belongs to another row: it would lead to the wrong source, and a retraction would
    miss the row.

    Raises:
        ArtifactInvalid: ``CORPUS_SHARD_CHANGED``.
    """
    if provenance_id != row:
        raise ArtifactInvalid(
            Code.CORPUS_SHARD_CHANGED,
            f"Line {line} of {path} is the row {row}, but the same line of {sources_path(path).name} describes the "
            f"row {provenance_id}.",
            remedy=(
                "Write changed rows to a separate file and rerun the stage that wrote this one, or delete its "
                "provenance file."
            ),
            param=str(path),
        )


def other_rows(path: Path) -> ArtifactInvalid:
    """Return the error for a file whose rows do not match its provenance."""
    return ArtifactInvalid(
        Code.CORPUS_SHARD_CHANGED,
        f"{path} and {sources_path(path).name} do not have the same number of lines.",
        remedy="Write rows to a separate file and rerun the stage that wrote this one, or delete its provenance file.",
        param=str(path),
    )
