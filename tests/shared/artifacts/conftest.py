"""An artifact's files, for the tests of every storage."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path

import pytest

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


@pytest.fixture
def source(tmp_path: Path) -> Source:
    folder = tmp_path / "source"
    folder.mkdir()
    for name in NAMES:
        (folder / name).write_text(f"content of {name}")
    (folder / MANIFEST).write_text(json.dumps(NAMES))
    return Source(folder, hashlib.sha256((folder / MANIFEST).read_bytes()).hexdigest())
