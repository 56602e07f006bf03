"""Storage in a folder of a local or network disk.

    blobs/sha256/ab/abcd…          one uploaded or produced file, named by its bytes
    adapters/<digest>/…            an adapter's files; adapter_manifest.json is written last
    models/<digest>/…              a merged model's files; model_manifest.json is written last
    checkpoints/<digest>/…         a checkpoint to resume from; checkpoint_manifest.json is written last
    incoming/                      files that are being written, and the trash

Every file is written under a temporary name, flushed and renamed, so a file under its final name is always complete.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
import uuid
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, BinaryIO

from shared.artifacts.storage import (
    MAX_MANIFEST_BYTES,
    ArtifactKind,
    ArtifactSize,
    Storage,
    changed_blob,
    check_digest,
    is_digest,
    missing_object,
    not_plain,
)
from shared.artifacts.temporary_blob import TemporaryBlob
from shared.durable_files import sync
from shared.hashing import CHUNK_BYTES, digest_file
from shared.host import disk_errors, measure_folder

TRASH_PREFIX, BLOB_PREFIX, FILE_PREFIX = "discarded-", "blob-", "file-"
ABANDONED_SECONDS = 86_400
"""Seconds since its last write after which an incoming file counts as left by a killed process."""


class FolderBlobWriter(TemporaryBlob):
    """A temporary file that becomes a blob at :meth:`commit`."""

    def __init__(self, storage: FolderStorage) -> None:
        self._storage = storage
        with disk_errors():
            # Created at the first write and not with the storage: a reader's mount may be read-only.
            storage.incoming.mkdir(parents=True, exist_ok=True)
            descriptor, name = tempfile.mkstemp(dir=storage.incoming, prefix=BLOB_PREFIX)
        self._path = Path(name)
        super().__init__(os.fdopen(descriptor, "wb"))

    def finish(self) -> str:
        if not self._file.closed:
            with disk_errors():
                _sync(self._file)
                self._file.close()
        return self._sha256.hexdigest()

    def commit(self) -> str:
        digest = self.finish()
        with disk_errors():
            _publish(self._path, self._storage.blob_path(digest))
        return digest

    def _discard(self) -> None:
        self._path.unlink(missing_ok=True)


class FolderStorage(Storage):
    """Storage below one folder; :meth:`local_file` yields the stored file itself, not a copy."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.incoming = root / "incoming"

    def blob_path(self, sha256: str) -> Path:
        """Return the path of the blob with this SHA-256, stored or not."""
        return self.root / "blobs" / "sha256" / sha256[:2] / sha256

    def folder(self, kind: ArtifactKind, digest: str) -> Path:
        """Return the folder of an artifact, existing or not."""
        check_digest(digest)
        return self.root / kind / digest

    def writer(self) -> FolderBlobWriter:
        return FolderBlobWriter(self)

    def has_blob(self, sha256: str) -> bool:
        return self.blob_path(sha256).is_file()

    def open_blob(self, sha256: str) -> BinaryIO:
        return _existing(self.blob_path(sha256)).open("rb")

    @contextmanager
    def local_file(self, sha256: str, *, verify: bool = False) -> Iterator[Path]:
        path = _existing(self.blob_path(sha256))
        if verify and digest_file(path) != sha256:
            raise changed_blob(sha256)
        yield path

    def delete_blob(self, sha256: str) -> None:
        self.blob_path(sha256).unlink(missing_ok=True)

    def put_folder(self, kind: ArtifactKind, digest: str, source: Path, names: list[str], manifest: str) -> None:
        target = self.folder(kind, digest)
        with disk_errors():
            self.incoming.mkdir(parents=True, exist_ok=True)
            target.mkdir(parents=True, exist_ok=True)
            for name in [*names, manifest]:
                self._copy_in(source / name, target / name)

    def fetch_folder(self, kind: ArtifactKind, digest: str, names: list[str], target: Path) -> None:
        for name in names:
            with disk_errors():
                shutil.copyfile(self._plain_file(kind, digest, name), target / name, follow_symlinks=False)

    def open_file(self, kind: ArtifactKind, digest: str, name: str) -> BinaryIO:
        return self._plain_file(kind, digest, name).open("rb")

    def manifest_bytes(self, kind: ArtifactKind, digest: str, manifest: str) -> bytes:
        with _existing(self.folder(kind, digest) / manifest).open("rb") as file:
            return file.read(MAX_MANIFEST_BYTES)

    def holds(self, kind: ArtifactKind, digest: str, manifest: str) -> bool:
        return (self.folder(kind, digest) / manifest).is_file()

    def digests(self, kind: ArtifactKind) -> list[str]:
        parent = self.root / kind
        return sorted(path.name for path in parent.iterdir() if is_digest(path.name)) if parent.is_dir() else []

    def digests_at(self, kind: ArtifactKind, folders: Collection[Path]) -> frozenset[str]:
        places = {folder.resolve() for folder in folders}
        return frozenset(digest for digest in self.digests(kind) if self.folder(kind, digest).resolve() in places)

    def measure(self, kind: ArtifactKind, digest: str) -> ArtifactSize | None:
        folder = self.folder(kind, digest)
        return ArtifactSize(*measure_folder(folder)) if folder.is_dir() else None

    def unpublish(self, kind: ArtifactKind, digest: str, manifest: str) -> None:
        path = self.folder(kind, digest) / manifest
        path.unlink(missing_ok=True)
        if path.parent.is_dir():
            sync(path.parent)

    def move_to_trash(self, kind: ArtifactKind, digest: str) -> None:
        self.incoming.mkdir(parents=True, exist_ok=True)
        # A rename, because removing a large model's files takes longer than a transaction may.
        with suppress(FileNotFoundError):
            self.folder(kind, digest).rename(self.incoming / f"{TRASH_PREFIX}{uuid.uuid4().hex}")

    def purge_trash(self) -> None:
        for folder in self.incoming.glob(f"{TRASH_PREFIX}*"):
            shutil.rmtree(folder, ignore_errors=True)
        for prefix in (BLOB_PREFIX, FILE_PREFIX):
            for path in self.incoming.glob(f"{prefix}*"):
                # Its writer may finish it, or another process remove it, at this moment.
                with suppress(OSError):
                    if time.time() - path.stat().st_mtime > ABANDONED_SECONDS:
                        path.unlink()

    def _plain_file(self, kind: ArtifactKind, digest: str, name: str) -> Path:
        path = self.folder(kind, digest) / name
        if path.is_symlink() or Path(name).name != name:
            raise not_plain(name)
        return _existing(path)

    def _copy_in(self, source: Path, target: Path) -> None:
        descriptor, name = tempfile.mkstemp(dir=self.incoming, prefix=FILE_PREFIX)
        try:
            with os.fdopen(descriptor, "wb") as writer, source.open("rb") as reader:
                shutil.copyfileobj(reader, writer, CHUNK_BYTES)
                _sync(writer)
            _publish(Path(name), target)
        finally:
            Path(name).unlink(missing_ok=True)


def _sync(file: IO[bytes]) -> None:
    file.flush()
    os.fsync(file.fileno())


def _publish(temporary: Path, target: Path) -> None:
    """Give a flushed file its name, and flush the folder too, so that a power cut cannot lose the name."""
    target.parent.mkdir(parents=True, exist_ok=True)
    # mkstemp gives the owner alone access, and the API and its workers may be two users of one group.
    temporary.chmod(0o640)
    temporary.replace(target)
    sync(target.parent)


def _existing(path: Path) -> Path:
    if not path.is_file():
        raise missing_object(path.name)
    return path
