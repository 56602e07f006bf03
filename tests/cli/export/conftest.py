"""A downloaded adapter, and one that can be downloaded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cli.export.download import README_NAME, Downloaded
from shared.artifacts.manifests import CONFIG_NAME, MANIFEST_NAME, WEIGHTS_NAME
from shared.artifacts.signatures import SIGNATURE_NAME, make_key, sign_folder
from shared.base_models.catalog import BaseModelEntry, Catalog, LocalSource, digest_model_folder, save_catalog
from shared.database.adapters import NewAdapter
from tests.support.cli_installation import CliInstallation
from tests.support.exported_adapter import store_small_adapter

CERTIFICATE: dict[str, Any] = {
    "failed": [],
    "effect_rms_nats": 0.25,
    "parity": {"engine_error_rms_nats": 0.001, "base_shift_rms_nats": None},
}


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Downloaded:
    """With a short README; tests read it and never change it."""
    folder, manifest = store_small_adapter(tmp_path_factory.mktemp("stored"))
    (folder / README_NAME).write_text("---\nlibrary_name: peft\n---\n\n# helper\n")
    return Downloaded(folder, manifest, "http://127.0.0.1:8000")


@pytest.fixture
def adapter(installation: CliInstallation, tmp_path: Path) -> NewAdapter:
    """A published adapter whose base has a licence in the catalogue."""
    folder, manifest = store_small_adapter(tmp_path / "made")
    services = installation.services
    base = tmp_path / "made" / "base"
    entry = BaseModelEntry(
        name="tiny", source=LocalSource(path=str(base)), digests=digest_model_folder(base), license="Apache-2.0"
    )
    save_catalog(services.settings.catalog_path, Catalog(bases=[entry]))
    made = make_key(tmp_path / "signing.pem")
    (tmp_path / "trusted").write_text(made)
    sign_folder(folder, tmp_path / "signing.pem")
    names = [WEIGHTS_NAME, CONFIG_NAME, SIGNATURE_NAME]
    services.storage.put_folder("adapters", manifest.digest, folder, names, MANIFEST_NAME)
    stored = NewAdapter(
        id=manifest.adapter_id,
        digest=manifest.digest,
        base_model="tiny",
        step=manifest.step,
        final=True,
        published=True,
        manifest=manifest.model_dump(mode="json", exclude_none=True),
        certificates={"http://10.0.0.7:9000": CERTIFICATE},
    )
    installation.register(stored)
    return stored
