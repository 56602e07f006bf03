"""The storage interface: blobs under the SHA-256 of their bytes, artifacts under the SHA-256 of their manifest.

An artifact is an adapter, a merged model or a checkpoint: several files and a manifest that names them. `FolderStorage`
(`folder_storage.py`) keeps them on a local or network disk, `S3Storage` (`s3/storage.py`) in a bucket;
`open_storage.py` opens the one that the settings name. The interface only needs features that an object store has:
bytes go in and out as streams, and a local path is valid inside a `with` block only, so that an object store can hand
out a cached copy.

Every implementation keeps three promises; `tests/shared/artifacts/test_storage.py` checks them.

1. A name is complete or absent. An artifact exists when its manifest does, and the manifest is written last.
2. Content cannot change under its name, so writing it again is harmless.
3. `unpublish`, `move_to_trash`, `delete_blob`, and `commit` after `finish` are quick: callers run them inside a
   database transaction.
"""

from __future__ import annotations

from collections.abc import Collection
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Literal, Protocol, Self

from shared.errors import ArtifactInvalid, Code, NotFound
from shared.hashing import CHUNK_BYTES

ArtifactKind = Literal["adapters", "models", "checkpoints"]

MAX_MANIFEST_BYTES = 16 << 20


@dataclass(frozen=True, slots=True)
class ArtifactSize:
    """Size and last write of an artifact, which may lack its manifest."""

    bytes: int
    written_at: datetime


class BlobWriter(Protocol):
    """Receives a blob in pieces and hashes it on the way; nothing is visible before :meth:`commit`.

    A context manager: leaving it without a commit leaves nothing behind.
    """

    @property
    def size(self) -> int:
        """Bytes written so far."""
        ...

    def write(self, chunk: bytes) -> None:
        """Append bytes to the blob."""
        ...

    def finish(self) -> str:
        """Make the bytes durable, and return their SHA-256, the blob's name; nothing may be written afterwards."""
        ...

    def commit(self) -> str:
        """Make the blob visible, and durable if :meth:`finish` was not called; return its SHA-256."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


class Storage(Protocol):
    """Blobs and artifacts. Safe to use from many threads and processes.

    Unless the storage is a local disk, every method can also raise ``Unavailable``: ``STORAGE_UNAVAILABLE``,
    ``STORAGE_DENIED`` or ``STORAGE_BUCKET_NOT_FOUND``.
    """

    def writer(self) -> BlobWriter:
        """Return a writer of one blob."""
        ...

    def put_file(self, source: Path) -> str:
        """Store a copy of a local file as a blob; returns its SHA-256."""
        with self.writer() as writer, source.open("rb") as file:
            while chunk := file.read(CHUNK_BYTES):
                writer.write(chunk)
            return writer.commit()

    def has_blob(self, sha256: str) -> bool:
        """Return whether the blob is stored."""
        ...

    def open_blob(self, sha256: str) -> BinaryIO:
        """Open a blob as a stream, which the caller closes."""
        ...

    def local_file(self, sha256: str, *, verify: bool = False) -> AbstractContextManager[Path]:
        """Yield a blob as a local file, for reading only; the path is valid until the `with` block ends.

        Args:
            sha256: the blob's name.
            verify: whether to read the bytes and compare them with the name.
        """
        ...

    def delete_blob(self, sha256: str) -> None:
        """Remove a blob; an absent one is ignored."""
        ...

    def put_folder(self, kind: ArtifactKind, digest: str, source: Path, names: list[str], manifest: str) -> None:
        """Store an artifact from a local folder: the named files first, the manifest last. Idempotent.

        Args:
            kind: the artifact's kind.
            digest: SHA-256 of the manifest's bytes, the artifact's identity.
            source: folder that holds the files.
            names: plain names of the files other than the manifest.
            manifest: name of the manifest file.
        """
        ...

    def fetch_folder(self, kind: ArtifactKind, digest: str, names: list[str], target: Path) -> None:
        """Copy an artifact's named files into an existing folder of the caller's own."""
        ...

    def open_file(self, kind: ArtifactKind, digest: str, name: str) -> BinaryIO:
        """Open one of an artifact's files as a stream, which the caller closes."""
        ...

    def manifest_bytes(self, kind: ArtifactKind, digest: str, manifest: str) -> bytes:
        """Read the artifact's manifest. One longer than ``MAX_MANIFEST_BYTES`` is truncated, so that its digest cannot
        match.
        """
        ...

    def holds(self, kind: ArtifactKind, digest: str, manifest: str) -> bool:
        """Return whether the artifact exists, which means that its manifest does."""
        ...

    def digests(self, kind: ArtifactKind) -> list[str]:
        """Return the digests of all artifacts of a kind in order, including those without a manifest."""
        ...

    def digests_at(self, kind: ArtifactKind, folders: Collection[Path]) -> frozenset[str]:
        """Return digests of the artifacts whose files are in one of these local folders. A base in the catalogue may
        use such a folder.

        Always empty if the storage is not on a local disk, because its files cannot be used in place.
        """
        ...

    def measure(self, kind: ArtifactKind, digest: str) -> ArtifactSize | None:
        """Return the size and last write of an artifact, with or without its manifest; None if none of its files is
        stored.
        """
        ...

    def unpublish(self, kind: ArtifactKind, digest: str, manifest: str) -> None:
        """Remove the artifact's manifest, so that it does not exist from now on. Its other files stay. Idempotent."""
        ...

    def move_to_trash(self, kind: ArtifactKind, digest: str) -> None:
        """Remove an artifact with all its files; it can be stored again at once. An absent one is ignored.

        The bytes may be freed later, by :meth:`purge_trash`.
        """
        ...

    def purge_trash(self) -> None:
        """Free the bytes of everything in the trash, and of unfinished files that a killed process left a day ago or
        earlier.
        """
        ...


def check_digest(digest: str) -> None:
    """Refuse anything except a digest, because it becomes part of a path or key.

    Raises:
        NotFound: ``STORAGE_OBJECT_MISSING``.
    """
    if not is_digest(digest):
        raise NotFound(Code.STORAGE_OBJECT_MISSING, f"{digest!r} is not a SHA-256 digest.")


def is_digest(text: str) -> bool:
    """Return whether a string is 64 lower-case hexadecimal digits."""
    return len(text) == 64 and all(character in "0123456789abcdef" for character in text)


def missing_object(name: str) -> NotFound:
    """Return the error of an object that is not stored."""
    return NotFound(
        Code.STORAGE_OBJECT_MISSING,
        f"The storage does not contain {name}.",
        remedy="Restore it from a backup; if it was just created, check that every tier uses the same storage.",
    )


def not_plain(name: str) -> ArtifactInvalid:
    """Return the error of a name that is not a plain file of an artifact."""
    return ArtifactInvalid(
        Code.ADAPTER_MANIFEST_INVALID,
        f"{name!r} is not a plain file.",
        remedy="Restore the artifact's own file; a link or a path is never followed.",
        param=name,
    )


def changed_blob(sha256: str) -> ArtifactInvalid:
    """Return the error of a blob whose bytes differ from the stored ones."""
    return ArtifactInvalid(
        Code.STORAGE_OBJECT_MISSING,
        f"The stored file {sha256} differs from the uploaded one.",
        remedy="Upload it again, or restore the storage from a backup.",
    )
