"""An artifact's files, for the tests of every storage."""

from __future__ import annotations

import hashlib
import json
import uuid
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from shared.settings import Settings
from tests.support.artifact_source import MANIFEST, NAMES, Source

if TYPE_CHECKING:
    from shared.artifacts.s3.storage import S3Storage
    from tests.support.s3_server import S3Server


@pytest.fixture
def source(tmp_path: Path) -> Source:
    folder = tmp_path / "source"
    folder.mkdir()
    for name in NAMES:
        (folder / name).write_text(f"content of {name}")
    (folder / MANIFEST).write_text(json.dumps(NAMES))
    return Source(folder, hashlib.sha256((folder / MANIFEST).read_bytes()).hexdigest())


@pytest.fixture
def s3_settings(s3_server: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    """Settings of a storage in the bucket, below a prefix that no other test has."""
    for name, value in s3_server.environment(f"tests/{uuid.uuid4().hex}").items():
        monkeypatch.setenv(name, value)
    return Settings(home=tmp_path / "home")


@pytest.fixture
def s3_storage(s3_settings: Settings) -> S3Storage:
    from shared.artifacts.s3.storage import S3Storage

    return S3Storage(s3_settings)
