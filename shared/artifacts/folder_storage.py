"""Blob storage: content-addressed files, and artifact folders whose manifest is written last.

    blobs/sha256/ab/abcd…          one uploaded or produced file, named by its bytes
    adapters/<digest>/…            an adapter's files; adapter_manifest.json is the commit mark
    models/<digest>/…              a merged model's files; model_manifest.json is the commit mark

Everything is written to a temporary name, flushed, and renamed, so a name either is complete or is not there. Writing
the same content twice is harmless. Today storage is a folder; nothing outside this module knows that.
"""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import IO, Literal

from shared.digest import CHUNK_BYTES
from shared.errors import ArtifactInvalid, Code, NotFound, Unavailable

Kind = Literal["adapters", "models"]

MAX_MANIFEST_BYTES = 16 << 20
DISCARDED = "discarded-"


class BlobWriter:
    """Receives a blob in pieces and hashes it on the way; nothing is visible before :meth:`commit`."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._sha256 = hashlib.sha256()
        self.size = 0
        with disk_errors():
            storage.incoming.mkdir(parents=True, exist_ok=True)  # here, not before: a reader's mount may be read-only
            descriptor, name = tempfile.mkstemp(dir=storage.incoming, prefix="blob-")
        self._file = os.fdopen(descriptor, "wb")
        self._path = Path(name)

    def write(self, chunk: bytes) -> None:
        """Raises:
        Unavailable: ``STORAGE_FULL``.
        """
        with disk_errors():
            self._file.write(chunk)
        self._sha256.update(chunk)
        self.size += len(chunk)

    def commit(self) -> str:
        """Make the blob durable and visible; its SHA-256 is its name."""
        digest = self._sha256.hexdigest()
        with disk_errors():
            _sync(self._file)
            self._file.close()
            _publish(self._path, self._storage.blob_path(digest))
        return digest

    def __enter__(self) -> BlobWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with suppress(OSError):  # a full disk fails here once more: the buffer is flushed again
            self._file.close()
        self._path.unlink(missing_ok=True)


class Storage:
    """Blob storage in a folder."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.incoming = root / "incoming"

    def writer(self) -> BlobWriter:
        """A context manager to write one blob; leaving it without commit leaves nothing behind."""
        return BlobWriter(self)

    def put_file(self, source: Path) -> str:
        """Store a copy of a file as a blob; returns its SHA-256."""
        with self.writer() as writer, source.open("rb") as file:
            while chunk := file.read(CHUNK_BYTES):
                writer.write(chunk)
            return writer.commit()

    def blob_path(self, digest: str) -> Path:
        """Where the blob of that SHA-256 is, or would be."""
        return self.root / "blobs" / "sha256" / digest[:2] / digest

    def open_blob(self, digest: str) -> Path:
        """Path of an existing blob.

        Raises:
            NotFound: ``STORAGE_OBJECT_MISSING``.
        """
        return _existing(self.blob_path(digest))

    def delete_blob(self, digest: str) -> None:
        """Remove a blob; an absent one is no error."""
        self.blob_path(digest).unlink(missing_ok=True)

    def folder(self, kind: Kind, digest: str) -> Path:
        """Folder of an artifact, existing or not."""
        if not _is_digest(digest):
            raise NotFound(Code.STORAGE_OBJECT_MISSING, f"{digest!r} is not a SHA-256 digest.")
        return self.root / kind / digest

    def digests(self, kind: Kind) -> list[str]:
        """Digests of all artifacts of a kind, those without their manifest among them, in order."""
        shelf = self.root / kind
        return sorted(path.name for path in shelf.iterdir() if _is_digest(path.name)) if shelf.is_dir() else []

    def put_folder(self, kind: Kind, digest: str, source: Path, names: list[str], manifest: str) -> Path:
        """Store an artifact: the named files first, the manifest last. Idempotent.

        Args:
            kind: which shelf.
            digest: SHA-256 of the manifest's bytes, the artifact's identity.
            source: folder that holds the files.
            names: plain names of the files beside the manifest.
            manifest: name of the manifest file.
        """
        target = self.folder(kind, digest)
        with disk_errors():
            self.incoming.mkdir(parents=True, exist_ok=True)
            target.mkdir(parents=True, exist_ok=True)
            for name in [*names, manifest]:
                self._copy_in(source / name, target / name)
        return target

    def manifest_bytes(self, kind: Kind, digest: str, manifest: str) -> bytes:
        """The artifact's manifest.

        Raises:
            NotFound: ``STORAGE_OBJECT_MISSING``: never stored, or not completely.
        """
        with _existing(self.folder(kind, digest) / manifest).open("rb") as file:
            return file.read(MAX_MANIFEST_BYTES)  # a larger one is cut, so its digest cannot fit

    def holds(self, kind: Kind, digest: str, manifest: str) -> bool:
        """Whether the artifact is there."""
        return (self.folder(kind, digest) / manifest).is_file()

    def withdraw(self, kind: Kind, digest: str, manifest: str) -> None:
        """Let the artifact exist no more: nobody finds it from now on. Its other files stay. Idempotent."""
        path = self.folder(kind, digest) / manifest
        path.unlink(missing_ok=True)
        if path.parent.is_dir():
            _sync_folder(path.parent)

    def discard_folder(self, kind: Kind, digest: str) -> None:
        """Take an artifact's folder away in one quick step; an absent one is no error. Its bytes are freed later."""
        self.incoming.mkdir(parents=True, exist_ok=True)
        with suppress(FileNotFoundError):
            self.folder(kind, digest).rename(self.incoming / f"{DISCARDED}{uuid.uuid4().hex}")

    def free_discarded(self) -> None:
        """Free the bytes of all folders that were taken away, by whomever."""
        for folder in self.incoming.glob(f"{DISCARDED}*"):
            shutil.rmtree(folder, ignore_errors=True)

    def fetch_folder(self, kind: Kind, digest: str, names: list[str], target: Path) -> None:
        """Copy an artifact's named files into an existing folder of the caller's own.

        Raises:
            NotFound: ``STORAGE_OBJECT_MISSING``. ArtifactInvalid: a name that is no plain file of the artifact.
        """
        source = self.folder(kind, digest)
        for name in names:
            path = source / name
            if path.is_symlink() or Path(name).name != name:
                raise ArtifactInvalid(Code.ADAPTER_MANIFEST_INVALID, f"{name!r} is not a plain file.", param=name)
            with disk_errors():
                shutil.copyfile(_existing(path), target / name, follow_symlinks=False)

    def _copy_in(self, source: Path, target: Path) -> None:
        descriptor, name = tempfile.mkstemp(dir=self.incoming, prefix="file-")
        try:
            with os.fdopen(descriptor, "wb") as writer, source.open("rb") as reader:
                shutil.copyfileobj(reader, writer, CHUNK_BYTES)
                _sync(writer)
            _publish(Path(name), target)
        finally:
            Path(name).unlink(missing_ok=True)


@contextmanager
def disk_errors() -> Iterator[None]:
    """Turn a full disk into a coded, retryable error; other faults pass unchanged."""
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise Unavailable(
            Code.STORAGE_FULL, "The storage has no space left.", remedy="Free or add disk space, then try again."
        ) from error


def _sync(file: IO[bytes]) -> None:
    file.flush()
    os.fsync(file.fileno())


def _publish(temporary: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary.chmod(0o640)
    temporary.replace(target)
    _sync_folder(target.parent)


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _existing(path: Path) -> Path:
    if not path.is_file():
        raise NotFound(
            Code.STORAGE_OBJECT_MISSING,
            f"The storage does not hold {path.name}.",
            remedy="Restore it from a backup; if it was just made, look whether every tier mounts the same storage.",
        )
    return path


def _is_digest(text: str) -> bool:
    return len(text) == 64 and all(character in "0123456789abcdef" for character in text)
