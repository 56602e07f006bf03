"""`mens base from-merge`: a merged model in storage becomes a base of the catalogue, with verified bytes."""

from __future__ import annotations

from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from cli.commands.bases.derived import add_merged
from cli.commands.up import ensure_base
from cli.main import app
from shared.artifacts.folder_storage import FolderStorage
from shared.artifacts.manifests import MODEL_MANIFEST_NAME
from shared.artifacts.merge_fidelity import PROBES_NAME
from shared.artifacts.signatures import MERGED_MODEL, make_key, sign_folder
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
from shared.database.connection import Database
from shared.database.jobs import Jobs
from shared.database.leases import Leases
from shared.database.names.aliases import Actor, Aliases
from shared.database.routing import Routing
from shared.hashing import digest_file
from shared.settings import Settings
from tests.support.builders import claimed, new_adapter
from tests.support.merged_models import ADAPTER_ID, SHAPE, store_merged, write_merged
from tests.support.tiny_base import write_base

runner = CliRunner()


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
    (base,) = load_catalog(settings.catalog_path).bases
    return store_merged(FolderStorage(settings.storage_dir), folder, write_merged(folder, base))


def test_merged_model_is_a_base_of_its_own(settings: Settings, merged: str) -> None:
    result = runner.invoke(app, ["base", "from-merge", merged])
    assert result.exit_code == 0, result.output
    assert "mens up --base support-merged" in result.output
    base = load_catalog(settings.catalog_path).get("support-merged")
    assert (base.license, base.learning_rate, base.twin_of) == ("MIT", 4e-3, None)
    folder = locate(base, settings.catalog_path)
    verify_model_folder(base, folder)
    assert base.merged_from is not None
    assert (base.merged_from.digest, base.merged_from.adapter_id) == (merged, ADAPTER_ID)
    assert base.merged_from.probes_digest == digest_file(folder / PROBES_NAME)
    assert digest_file(folder / MODEL_MANIFEST_NAME) == merged
    assert folder.parent == settings.home / "bases", "a copy, whatever becomes of the stored model"
    assert not list(folder.parent.glob("incoming-*"))
    again = runner.invoke(app, ["base", "from-merge", merged])
    assert (again.exit_code, "already exists" in again.output) == (1, True)
    second = runner.invoke(app, ["base", "from-merge", merged, "--as", "other"])
    assert (second.exit_code, "MODEL_DUPLICATE" in second.output) == (1, True)


@pytest.mark.parametrize(("digest", "says"), [("0" * 64, "no"), ("../adapters", "digest"), ("x", "digest")])
def test_what_is_not_stored_is_refused(settings: Settings, digest: str, says: str) -> None:
    result = runner.invoke(app, ["base", "from-merge", digest])
    assert (result.exit_code, says in result.output.lower()) == (1, True), result.output
    assert len(load_catalog(settings.catalog_path).bases) == 1


def test_no_name_becomes_a_folder(settings: Settings, merged: str) -> None:
    result = runner.invoke(app, ["base", "from-merge", merged, "--as", "../elsewhere"])
    assert (result.exit_code, "not a valid name for a base" in result.output) == (1, True)
    assert not (settings.home / "elsewhere").exists()


def test_alias_keeps_its_name_from_a_merged_model(settings: Settings, merged: str, sqlite_template: Path) -> None:
    (settings.home / "mens.db").write_bytes(sqlite_template.read_bytes())
    database = Database(settings.database_url)
    leases = Leases(database, 60)
    leases.finish(claimed(Jobs(database), leases), {}, adapters=[new_adapter()])
    Aliases(database).set("support-merged", Routing.to("demo@1"), Actor(id="key-1", name="alice"))
    refused = runner.invoke(app, ["base", "from-merge", merged])
    assert (refused.exit_code, "error: NAME_INVALID: 'support-merged'" in refused.stderr) == (1, True)
    assert [path.name for path in (settings.home / "bases").iterdir()] == ["tiny"]
    assert runner.invoke(app, ["base", "from-merge", merged, "--as", "other"]).exit_code == 0


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


@pytest.mark.parametrize("content", [None, "{}", '{"model_digest": "' + "0" * 64 + '", "probes": []}'])
def test_a_model_that_could_not_be_measured_is_refused(settings: Settings, merged: str, content: str | None) -> None:
    path = settings.storage_dir / "models" / merged / PROBES_NAME
    path.unlink()
    if content is not None:
        path.write_text(content)
    result = runner.invoke(app, ["base", "from-merge", merged])
    assert (result.exit_code, "MODEL_UNCERTIFIED" in result.output, "again" in result.output) == (1, True, True)
    assert [path.name for path in (settings.home / "bases").iterdir()] == ["tiny"]


def test_up_takes_a_merged_model_by_the_beginning_of_its_digest(settings: Settings, merged: str) -> None:
    assert ensure_base(settings, merged[:12]) == "support-merged"
    assert ensure_base(settings, merged) == "support-merged", "made once"
    assert ensure_base(settings, "org/tiny") == "org/tiny"
    assert len(load_catalog(settings.catalog_path).bases) == 2
    with pytest.raises(typer.Exit):
        ensure_base(settings, "0" * 12)


def test_a_signature_goes_with_its_model(settings: Settings, tmp_path: Path) -> None:
    folder, (base,) = tmp_path / "model", load_catalog(settings.catalog_path).bases
    manifest = write_merged(folder, base)
    (tmp_path / "trusted").write_text(make_key(tmp_path / "key.pem"))
    sign_folder(folder, tmp_path / "key.pem", MERGED_MODEL)
    store_merged(FolderStorage(settings.storage_dir), folder, manifest)
    copy = locate(add_merged(settings, manifest.digest), settings.catalog_path)
    result = runner.invoke(app, ["adapter", "verify", str(copy), "--trusted", str(tmp_path / "trusted")])
    assert result.exit_code == 0, result.output
    assert ADAPTER_ID in result.output and "1.0e-09 nats from base + adapter" in result.output
