"""The storage that the settings name."""

from __future__ import annotations

from shared.artifacts.folder_storage import FolderStorage
from shared.artifacts.storage import Storage
from shared.settings import Settings


def open_storage(settings: Settings) -> Storage:
    """The installation's storage; nothing is read or written yet."""
    return FolderStorage(settings.storage_dir)
