"""`mens base from-merge`: a merged model in storage becomes a base of the catalogue, with verified bytes."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest
from typer.testing import CliRunner

from cli.main import app
from shared.artifacts.folder_storage import FolderStorage
from shared.artifacts.manifests import MODEL_MANIFEST_NAME, ModelManifest
from shared.base_models.catalog import (
    BaseModelEntry,
    Catalog,
    LocalSource,
    digest_model_folder,
    load_catalog,
    save_catalog,
    verify_model_folder,
)
from shared.base_models.hub import locate
from shared.hashing import canonical_json, digest_file
from shared.settings import Settings
from tests.support.tiny_base import write_base

runner = CliRunner()
SHAPE = {"hidden_size": 64, "intermediate_size": 128, "max_position_embeddings": 256}


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    """An installation with one base, `org/tiny`."""
    monkeypatch.setenv("MENS_HOME", str(tmp_path))
    folder = tmp_path / "bases" / "tiny"
    write_base(folder, **SHAPE)
    source = LocalSource(path="bases/tiny")
    entry = BaseModelEntry(
        name="org/tiny", source=source, digests=digest_model_folder(folder), license="MIT", learning_rate=4e-3
    )
    save_catalog(tmp_path / "catalog.json", Catalog(bases=[entry]))
    return Settings()


@pytest.fixture
def merged(settings: Settings, tmp_path: Path) -> str:
    """The digest of a model that a merge job has stored."""
    folder = tmp_path / "run" / "model"
    write_base(folder, **SHAPE)
    (folder / "README.md").write_text("merged")
    files = {path.name: digest_file(path) for path in folder.iterdir()}
    (base,) = load_catalog(settings.catalog_path).bases
    manifest = ModelManifest(
        base_model=base.name, base_digests=base.digests, adapter_id=f"support@{'a' * 64}", files=files
    )
    raw = canonical_json(manifest.model_dump(mode="json"))
    (folder / MODEL_MANIFEST_NAME).write_bytes(raw)
    digest = hashlib.sha256(raw).hexdigest()
    FolderStorage(settings.storage_dir).put_folder("models", digest, folder, sorted(files), MODEL_MANIFEST_NAME)
    return digest


def test_merged_model_is_a_base_of_its_own(settings: Settings, merged: str) -> None:
    result = runner.invoke(app, ["base", "from-merge", merged])
    assert result.exit_code == 0, result.output
    assert "mens up --base support-merged" in result.output
    base = load_catalog(settings.catalog_path).get("support-merged")
    assert (base.license, base.learning_rate, base.twin_of) == ("MIT", 4e-3, None)
    folder = locate(base, settings.catalog_path)
    verify_model_folder(base, folder)
    assert folder.parent == settings.home / "bases", "a copy, whatever becomes of the stored model"
    assert not list(folder.parent.glob("incoming-*"))
    again = runner.invoke(app, ["base", "from-merge", merged])
    assert (again.exit_code, "already there" in again.output) == (1, True)
    assert runner.invoke(app, ["base", "from-merge", merged, "--as", "other"]).exit_code == 0


@pytest.mark.parametrize(("digest", "says"), [("0" * 64, "no"), ("../adapters", "digest"), ("x", "digest")])
def test_what_is_not_stored_is_refused(settings: Settings, digest: str, says: str) -> None:
    result = runner.invoke(app, ["base", "from-merge", digest])
    assert (result.exit_code, says in result.output.lower()) == (1, True), result.output
    assert len(load_catalog(settings.catalog_path).bases) == 1


def test_no_name_becomes_a_folder(settings: Settings, merged: str) -> None:
    result = runner.invoke(app, ["base", "from-merge", merged, "--as", "../elsewhere"])
    assert (result.exit_code, "no name for a base" in result.output) == (1, True)
    assert not (settings.home / "elsewhere").exists()


@pytest.mark.parametrize("name", ["model.safetensors", MODEL_MANIFEST_NAME])
def test_damaged_model_is_refused_and_leaves_nothing(settings: Settings, merged: str, name: str) -> None:
    path = settings.storage_dir / "models" / merged / name
    path.chmod(0o600)
    path.write_bytes(path.read_bytes() + b" ")
    result = runner.invoke(app, ["base", "from-merge", merged])
    assert (result.exit_code, "BASE_DIGEST_MISMATCH" in result.output or "not the file" in result.output) == (
        1,
        True,
    ), result.output
    assert [path.name for path in (settings.home / "bases").iterdir()] == ["tiny"]
    assert len(load_catalog(settings.catalog_path).bases) == 1
