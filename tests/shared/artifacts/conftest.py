"""An artifact's files, for the tests of every storage."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest

from tests.support.artifact_source import MANIFEST, NAMES, Source


@pytest.fixture
def source(tmp_path: Path) -> Source:
    folder = tmp_path / "source"
    folder.mkdir()
    for name in NAMES:
        (folder / name).write_text(f"content of {name}")
    (folder / MANIFEST).write_text(json.dumps(NAMES))
    return Source(folder, hashlib.sha256((folder / MANIFEST).read_bytes()).hexdigest())
