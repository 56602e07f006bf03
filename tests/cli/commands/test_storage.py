"""``mens storage verify`` names missing objects, and its exit status shows whether there are any."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

from cli.main import app
from shared.artifacts.folder_storage import FolderStorage
from shared.database.connection import Database
from shared.database.files.files import Files
from shared.settings import Settings

runner = CliRunner()


@pytest.fixture
def blob(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sqlite_template: Path) -> Path:
    """Where the storage of an installation has its one file."""
    monkeypatch.setenv("MENS_HOME", str(tmp_path))
    shutil.copy(sqlite_template, tmp_path / "mens.db")
    settings, storage = Settings(), FolderStorage(tmp_path / "storage")
    (tmp_path / "rows.jsonl").write_bytes(b"rows")
    sha256 = storage.put_file(tmp_path / "rows.jsonl")
    database = Database(settings.database_url)
    Files(database).add("rows.jsonl", "fine-tune", 4, sha256)
    database.close()
    return storage.blob_path(sha256)


def test_intact_storage_is_verified(blob: Path) -> None:
    result = runner.invoke(app, ["storage", "verify"])
    assert (result.exit_code, result.stdout) == (0, "1 verified, 0 missing or changed\n")


def test_missing_file_is_named(blob: Path) -> None:
    blob.unlink()
    result = runner.invoke(app, ["storage", "verify"])
    row, summary = result.stdout.splitlines()
    assert row.split("\t")[0] == "file"
    assert blob.name in row
    assert (result.exit_code, summary) == (1, "0 verified, 1 missing or changed")


def test_folder_without_an_installation_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MENS_HOME", str(tmp_path))
    result = runner.invoke(app, ["storage", "verify"])
    assert (result.exit_code, result.stdout) == (1, "")
    assert f"INSTALLATION_NOT_FOUND: {tmp_path} contains no installation." in result.stderr
