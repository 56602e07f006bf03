"""Sources of a mix: files of rows with the digests of their content, and the parts that processes read in parallel."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np

from corpus.file_digests import DigestOf
from corpus.shards import RETRACTED_NAME, checked_shards, has_retracted, read_index, sources_path
from shared.datasets.file_parts import FilePart, split_file
from shared.errors import Code, InvalidRequest
from shared.hashing import digest_file
from shared.host import disk_errors

_SCAN_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class SourceFiles:
    """The files of a source, in order.

    Attributes:
        fingerprint: SHA-256 of their content.
    """

    path: Path
    files: tuple[Path, ...]
    fingerprint: str

    @property
    def bytes(self) -> int:
        return sum(path.stat().st_size for path in self.files)


@dataclass(frozen=True, slots=True)
class SourcePart:
    """A part of a file of rows, and the corresponding part of its provenance; None without provenance."""

    rows: FilePart
    origins: FilePart | None


def find_files(path: Path, digest: DigestOf = digest_file) -> SourceFiles | None:
    """Return the files of a source: a file, the shards of a stage, or all JSONL files of a folder; None without any.

    Raises:
        InvalidRequest: ``CORPUS_ROWS_RETRACTED``.
    """
    with disk_errors():
        refuse_retracted(path)
        if path.is_file():
            return SourceFiles(path, (path,), digest(path))
        if index := read_index(path):
            return SourceFiles(path, tuple(checked_shards(path, digest)), index.digest())
        files = (
            tuple(sorted(file for file in path.glob("*.jsonl") if file.name == _rows_name(file)))
            if path.is_dir()
            else ()
        )
        joined = "".join(f"{file.name}\0{digest(file)}\n" for file in files)
    return SourceFiles(path, files, hashlib.sha256(joined.encode()).hexdigest()) if files else None


def refuse_retracted(path: Path) -> None:
    """Refuse the folder of a pull with retracted keys, or one of its shards, because they still contain the retracted
    rows.

    Raises:
        InvalidRequest: ``CORPUS_ROWS_RETRACTED``.
    """
    if path.is_file() and not path.name.startswith("part-"):
        return
    folder = path.parent if path.is_file() else path
    if has_retracted(folder):
        raise InvalidRequest(
            Code.CORPUS_ROWS_RETRACTED,
            f"{path} has rows of retracted keys, which {folder / RETRACTED_NAME} lists.",
            remedy=(
                "Run `mens corpus pull --file` or the build again, and use the file that it writes: files from "
                "before the retraction still contain those rows."
            ),
            param=str(path),
        )


def _rows_name(path: Path) -> str:
    """Return the name of the file of rows for a path, which may be that of its provenance file."""
    return path.name.removesuffix(".sources.jsonl").removesuffix(".jsonl") + ".jsonl"


def split_source(path: Path) -> Iterator[SourcePart]:
    """Split a file of rows, and its provenance at the same lines."""
    origins = sources_path(path)
    if not origins.is_file():
        yield from (SourcePart(part, None) for part in split_file(path))
        return
    with _LineSeeker(origins) as seeker:
        ranges = [*split_file(path), None]
        for part, after in pairwise(ranges):
            assert part is not None
            begin = seeker.position
            end = seeker.skip(after.first_line - part.first_line) if after else origins.stat().st_size
            yield SourcePart(part, FilePart(origins, begin, end, part.first_line))


class _LineSeeker:
    """Finds the byte at which a line of a file begins, reading forwards."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("rb", buffering=0)
        self.position = 0

    def skip(self, lines: int) -> int:
        """Skip lines. Returns the position after them."""
        self._file.seek(self.position)
        while lines and (block := self._file.read(_SCAN_BYTES)):
            ends = np.flatnonzero(np.frombuffer(block, np.uint8) == ord("\n"))
            if len(ends) >= lines:
                self.position += int(ends[lines - 1]) + 1
                lines = 0
            else:
                self.position += len(block)
                lines -= len(ends)
        return self.position

    def __enter__(self) -> _LineSeeker:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()
