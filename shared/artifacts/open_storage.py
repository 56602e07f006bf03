"""Open the storage that the settings name."""

from __future__ import annotations

from shared.artifacts.folder_storage import FolderStorage
from shared.artifacts.storage import Storage
from shared.settings import Settings


def open_storage(settings: Settings) -> Storage:
    """Return the installation's storage; nothing is read or written yet."""
    if not settings.s3_bucket:
        return FolderStorage(settings.storage_dir)
    # Imported only here: the client takes half a second to import, and a storage in a folder does not need it.
    from shared.artifacts.s3.storage import S3Storage

    return S3Storage(settings)
