"""Storage in a bucket.

    blobs/sha256/ab/abcd…          one uploaded or produced file, named by its bytes
    adapters/<digest>/…            an adapter's files; adapter_manifest.json is written last
    models/<digest>/…              a merged model's files; model_manifest.json is written last
    checkpoints/<digest>/…         a checkpoint to resume from; checkpoint_manifest.json is written last

An S3 object is complete or absent. A manifest is written only if it does not exist (``If-None-Match: *``), so when two
processes publish the same artifact, one writes it. The store itself frees deleted objects, so no trash is kept; an
upload that a killed process began is aborted a day later.
"""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Collection
from contextlib import AbstractContextManager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import BinaryIO

from shared.artifacts.file_cache import ABANDONED_SECONDS, FileCache
from shared.artifacts.s3.bucket import PART_BYTES, PartUpload, S3Bucket
from shared.artifacts.storage import (
    MAX_MANIFEST_BYTES,
    ArtifactKind,
    ArtifactSize,
    Storage,
    check_digest,
    is_digest,
    missing_object,
    not_plain,
)
from shared.artifacts.temporary_blob import TemporaryBlob
from shared.errors import Conflict, MensError, NotFound
from shared.host import disk_errors
from shared.settings import Settings

# A try fails only if another process writes or removes the manifest at the same moment.
PUBLISH_TRIES = 5


class S3BlobWriter(TemporaryBlob):
    """A local temporary file, which is sent at :meth:`finish` and becomes a blob at :meth:`commit`.

    A blob's key is the digest of its bytes, so nothing can be sent there before the last byte has arrived. A large file
    is sent in parts at :meth:`finish`, and one quick request makes it visible; a small file is a single request.
    """

    def __init__(self, storage: S3Storage) -> None:
        self._storage = storage
        with disk_errors():
            storage.cache.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            # An unnamed file, so that a killed process leaves nothing behind.
            super().__init__(tempfile.TemporaryFile(dir=storage.cache.folder))  # noqa: SIM115  # closed by __exit__
        self._upload: PartUpload | None = None
        self._committed = False

    def finish(self) -> str:
        digest = self._sha256.hexdigest()
        if self._upload is None:
            with disk_errors():
                self._file.flush()
            if self.size > PART_BYTES:
                # The parts are sent here, so that `commit`, for which a transaction of the database waits, is one
                # short request.
                self._upload = self._storage.bucket.begin_upload(blob_name(digest))
                self._upload.send(self._file, self.size)
        return digest

    def commit(self) -> str:
        digest = self.finish()
        if self._upload is not None:
            self._upload.complete()
        else:
            self._file.seek(0)
            self._storage.bucket.put(blob_name(digest), self._file, digest)
        self._committed = True
        return digest

    def _discard(self) -> None:
        if self._upload is not None and not self._committed:
            # If aborting fails now, the upload is aborted a day later.
            with suppress(MensError):
                self._upload.abort()


class S3Storage(Storage):
    """Storage in the settings' bucket; local files come from a cache of copies."""

    def __init__(self, settings: Settings) -> None:
        self.bucket = S3Bucket(settings)
        self.cache = FileCache(settings.cache_dir / "blobs", settings.cache_bytes)

    def writer(self) -> S3BlobWriter:
        return S3BlobWriter(self)

    def has_blob(self, sha256: str) -> bool:
        return self.bucket.holds(blob_name(sha256))

    def open_blob(self, sha256: str) -> BinaryIO:
        return self.bucket.open(blob_name(sha256))

    def local_file(self, sha256: str, *, verify: bool = False) -> AbstractContextManager[Path]:
        name = blob_name(sha256)

        def size() -> int:
            stored = self.bucket.size(name)
            if stored is None:
                raise missing_object(sha256)
            return stored

        return self.cache.file(sha256, size, lambda target: self.bucket.fetch(name, target), verify=verify)

    def delete_blob(self, sha256: str) -> None:
        self.bucket.delete([blob_name(sha256)])

    def put_folder(self, kind: ArtifactKind, digest: str, source: Path, names: list[str], manifest: str) -> None:
        prefix = _prefix(kind, digest)
        for name in names:
            self.bucket.put_file(prefix + name, source / name)
        self._publish(prefix + manifest, (source / manifest).read_bytes())

    def fetch_folder(self, kind: ArtifactKind, digest: str, names: list[str], target: Path) -> None:
        prefix = _prefix(kind, digest)
        for name in names:
            check_plain(name)
            with disk_errors():
                self.bucket.fetch(prefix + name, target / name)

    def open_file(self, kind: ArtifactKind, digest: str, name: str) -> BinaryIO:
        check_plain(name)
        return self.bucket.open(_prefix(kind, digest) + name)

    def manifest_bytes(self, kind: ArtifactKind, digest: str, manifest: str) -> bytes:
        return self.bucket.get(_prefix(kind, digest) + manifest, MAX_MANIFEST_BYTES)[0]

    def holds(self, kind: ArtifactKind, digest: str, manifest: str) -> bool:
        return self.bucket.holds(_prefix(kind, digest) + manifest)

    def digests(self, kind: ArtifactKind) -> list[str]:
        # Derived from all keys and not from the store's own list of folders, because some stores list empty folders.
        digests = {stored.name.split("/")[1] for stored in self.bucket.list(f"{kind}/")}
        return sorted(filter(is_digest, digests))

    def digests_at(self, kind: ArtifactKind, folders: Collection[Path]) -> frozenset[str]:  # noqa: ARG002
        return frozenset()

    def measure(self, kind: ArtifactKind, digest: str) -> ArtifactSize | None:
        objects = list(self.bucket.list(_prefix(kind, digest)))
        if not objects:
            return None
        return ArtifactSize(sum(stored.bytes for stored in objects), max(stored.written_at for stored in objects))

    def unpublish(self, kind: ArtifactKind, digest: str, manifest: str) -> None:
        self.bucket.delete([_prefix(kind, digest) + manifest])

    def move_to_trash(self, kind: ArtifactKind, digest: str) -> None:
        names = [stored.name for stored in self.bucket.list(_prefix(kind, digest))]
        # The manifest is among the JSON files: an interrupted deletion leaves no artifact that lacks a file.
        self.bucket.delete([name for name in names if name.endswith(".json")])
        self.bucket.delete([name for name in names if not name.endswith(".json")])

    def purge_trash(self) -> None:
        self.bucket.abort_uploads(datetime.now(UTC) - timedelta(seconds=ABANDONED_SECONDS))

    def _publish(self, name: str, content: bytes) -> None:
        """Write a manifest unless it exists; an existing one with different bytes is damaged, and is replaced."""
        sha256 = hashlib.sha256(content).hexdigest()
        condition = {"IfNoneMatch": "*"}
        for left in reversed(range(PUBLISH_TRIES)):
            try:
                self.bucket.put(name, content, sha256, only_if=condition)
                return
            except Conflict:
                if left == 0:
                    raise
            condition = {"IfNoneMatch": "*"}
            # Absent if it has just been unpublished.
            with suppress(NotFound):
                stored, etag = self.bucket.get(name, len(content) + 1)
                if stored == content:
                    return
                condition = {"IfMatch": etag}


def check_plain(name: str) -> None:
    """Refuse anything except a plain file name, because the name becomes part of a key.

    Raises:
        ArtifactInvalid: ``ADAPTER_MANIFEST_INVALID``.
    """
    if Path(name).name != name or name in ("", ".."):
        raise not_plain(name)


def blob_name(sha256: str) -> str:
    """Return the key of a blob."""
    return f"blobs/sha256/{sha256[:2]}/{sha256}"


def _prefix(kind: ArtifactKind, digest: str) -> str:
    check_digest(digest)
    return f"{kind}/{digest}/"
