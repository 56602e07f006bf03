"""A storage that returns temporary copies, as one on an object store would: a path that is kept too long no longer
exists.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path

from shared.artifacts.folder_storage import FolderStorage
from shared.artifacts.storage import ArtifactKind

_stored_file = FolderStorage.local_file


@contextmanager
def copied_file(storage: FolderStorage, sha256: str, *, verify: bool = False) -> Iterator[Path]:
    """Replacement for `FolderStorage.local_file` that returns a temporary copy."""
    with _stored_file(storage, sha256, verify=verify) as stored, tempfile.TemporaryDirectory() as folder:
        yield Path(shutil.copyfile(stored, Path(folder) / sha256))


class CopyingStorage(FolderStorage):
    """A folder storage that never returns paths of its own files."""

    local_file = copied_file

    def digests_at(self, kind: ArtifactKind, folders: Collection[Path]) -> frozenset[str]:
        return frozenset()
