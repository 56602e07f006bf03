"""A replica with trusted keys serves only adapters that one of them signed."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from serving.adapter_store import AdapterStore
from serving.process import open_store
from shared.artifacts.manifests import MANIFEST_NAME, AdapterManifest
from shared.artifacts.signatures import SIGNATURE_NAME, make_key, sign_folder
from shared.errors import ArtifactInvalid, Code
from tests.support.serving_installation import ServingInstallation


@pytest.fixture
def key(tmp_path: Path) -> Path:
    """A private key, whose public one is in the file of trusted keys."""
    (tmp_path / "trusted").write_text(make_key(tmp_path / "key.pem") + "\n")
    return tmp_path / "key.pem"


@pytest.fixture
def store(serving_installation: ServingInstallation, key: Path, tmp_path: Path) -> Iterator[AdapterStore]:
    settings = serving_installation.settings(
        serving_max_lora_rank=16, serving_cache_dir=tmp_path / "cache", serving_trusted_keys=tmp_path / "trusted"
    )
    store = open_store(settings)
    yield store
    store.close()


@pytest.fixture
def adapter(
    serving_installation: ServingInstallation, tmp_path: Path, request: pytest.FixtureRequest
) -> AdapterManifest:
    """A stored adapter of this test alone, without a signature."""
    made = serving_installation.publish("signed", seed=61)
    folder = Path(shutil.copytree(serving_installation.folder(made), tmp_path / "made"))
    (folder / SIGNATURE_NAME).unlink(missing_ok=True)
    return serving_installation.store_adapter(
        folder, made.model_copy(update={"name": f"signed-{len(request.node.name)}"})
    )


def refusal(store: AdapterStore, adapter: AdapterManifest) -> Code:
    with pytest.raises(ArtifactInvalid) as refused:
        store.fetch(adapter.adapter_id)
    return refused.value.code


def test_an_adapter_is_served_once_it_is_signed(
    serving_installation: ServingInstallation, store: AdapterStore, adapter: AdapterManifest, key: Path
) -> None:
    assert refusal(store, adapter) == Code.ADAPTER_UNSIGNED
    sign_folder(serving_installation.folder(adapter), key)
    served = store.fetch(adapter.adapter_id)
    assert served.manifest == adapter
    assert {path.name for path in served.folder.iterdir()} == set(adapter.files)


def test_a_key_that_is_not_trusted_does_not_sign(
    serving_installation: ServingInstallation, store: AdapterStore, adapter: AdapterManifest, tmp_path: Path
) -> None:
    make_key(tmp_path / "stranger.pem")
    sign_folder(serving_installation.folder(adapter), tmp_path / "stranger.pem")
    assert refusal(store, adapter) == Code.ADAPTER_SIGNATURE_INVALID


def test_the_signature_of_another_adapter_is_none(
    serving_installation: ServingInstallation, store: AdapterStore, adapter: AdapterManifest, key: Path, tmp_path: Path
) -> None:
    other = tmp_path / "other"
    other.mkdir()
    (other / MANIFEST_NAME).write_bytes(b"{}")
    sign_folder(other, key)
    shutil.copy(other / SIGNATURE_NAME, serving_installation.folder(adapter) / SIGNATURE_NAME)
    assert refusal(store, adapter) == Code.ADAPTER_SIGNATURE_INVALID


def test_without_trusted_keys_no_signature_is_required(
    serving_installation: ServingInstallation, adapter: AdapterManifest, tmp_path: Path
) -> None:
    store = serving_installation.store(tmp_path / "open")
    assert store.fetch(adapter.adapter_id).manifest == adapter
    store.close()
