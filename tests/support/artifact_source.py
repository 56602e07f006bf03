"""Files of an artifact, for the tests of every storage."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from shared.artifacts.storage import Storage

MANIFEST = "manifest.json"
NAMES = ["a.safetensors", "config.json"]


@dataclass(frozen=True)
class Source:
    """A folder with an artifact's files."""

    folder: Path
    digest: str

    def put(self, storage: Storage) -> None:
        storage.put_folder("adapters", self.digest, self.folder, NAMES, MANIFEST)
