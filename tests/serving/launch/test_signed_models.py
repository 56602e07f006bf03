"""A replica with trusted keys starts only with a merged model that one of them signed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from serving.launch.prepare import prepare
from serving.settings import ServingSettings
from shared.artifacts.manifests import MODEL_MANIFEST_NAME, ModelManifest
from shared.artifacts.signatures import MERGED_MODEL, make_key, sign_folder
from shared.base_models.catalog import (
    BaseModelEntry,
    Catalog,
    LocalSource,
    MergedFrom,
    digest_model_folder,
    save_catalog,
)
from shared.errors import ArtifactInvalid, Code
from tests.support.builders import base_entry
from tests.support.merged_models import write_merged


@pytest.fixture
def key(tmp_path: Path) -> Path:
    """A private key, whose public one is in the file of trusted keys."""
    (tmp_path / "trusted").write_text(make_key(tmp_path / "key.pem") + "\n")
    return tmp_path / "key.pem"


@pytest.fixture
def manifest(tmp_path: Path) -> ModelManifest:
    """A merged model that is a base of the catalogue."""
    manifest = write_merged(tmp_path / "merged", base_entry())
    register(tmp_path, manifest)
    return manifest


def register(home: Path, manifest: ModelManifest | None) -> None:
    folder, merged = home / "merged", None
    if manifest:
        merged = MergedFrom(
            digest=manifest.digest, adapter_id=manifest.adapter_id, base_model="tiny", probes_digest="0" * 64
        )
    source = LocalSource(path=str(folder))
    entry = BaseModelEntry(name="m", source=source, digests=digest_model_folder(folder), merged_from=merged)
    save_catalog(home / "catalog.json", Catalog(bases=[entry]))


@pytest.fixture
def start(tmp_path: Path, key: Path) -> Callable[..., Code | None]:
    """Prepares a launch; returns the code that it is refused with."""

    def prepared(*, trusting: bool = True) -> Code | None:
        keys = tmp_path / "trusted" if trusting else None
        try:
            prepare(ServingSettings(home=tmp_path, serving_base="m", serving_trusted_keys=keys))
        except ArtifactInvalid as refused:
            return refused.code
        return None

    return prepared


def test_an_unsigned_merged_model_is_refused_where_keys_are_trusted(
    start: Callable[..., Code | None], manifest: ModelManifest, tmp_path: Path, key: Path
) -> None:
    assert start() == Code.MODEL_UNSIGNED
    assert start(trusting=False) is None
    sign_folder(tmp_path / "merged", key, MERGED_MODEL)
    assert start() is None


def test_another_key_or_another_models_signature_is_refused(
    start: Callable[..., Code | None], manifest: ModelManifest, tmp_path: Path, key: Path
) -> None:
    make_key(tmp_path / "other.pem")
    sign_folder(tmp_path / "merged", tmp_path / "other.pem", MERGED_MODEL)
    assert start() == Code.MODEL_SIGNATURE_INVALID
    # A manifest that is signed, over files that are not its own.
    other = manifest.model_copy(update={"files": manifest.files | {"config.json": "0" * 64}})
    (tmp_path / "merged" / MODEL_MANIFEST_NAME).write_bytes(other.to_bytes())
    sign_folder(tmp_path / "merged", key, MERGED_MODEL)
    assert start() == Code.BASE_DIGEST_MISMATCH


def test_the_catalogue_alone_does_not_say_what_is_merged(
    start: Callable[..., Code | None], manifest: ModelManifest, tmp_path: Path
) -> None:
    register(tmp_path, None)
    assert start() == Code.MODEL_UNSIGNED, "a folder with the manifest of a merged model is one"
    (tmp_path / "merged" / MODEL_MANIFEST_NAME).unlink()
    assert start() is None, "a base that nobody has merged is the operator's choice, by digest"
    register(tmp_path, manifest)
    assert start() == Code.BASE_DIGEST_MISMATCH, "without its manifest a merged model is not started"
