"""A small adapter folder with a valid manifest, as in the storage, for tests of exports."""

from __future__ import annotations

import json
from pathlib import Path

from shared.artifacts.adapter_import import import_adapter
from shared.artifacts.imported_folder import ImportRequest
from shared.artifacts.lineage import Lineage
from shared.artifacts.manifests import MANIFEST_NAME, AdapterManifest
from shared.artifacts.original_layout import ORIGINAL_WEIGHTS, V3_NAME, parse_sidecar
from shared.base_models.catalog import BaseModelEntry, LocalSource, digest_model_folder
from tests.support.original_adapter import make_original
from tests.support.tiny_base import write_base

LINEAGE = Lineage(
    code_version="0.1.0",
    code_commit="abc",
    code_digest="2" * 64,
    environment_digest="3" * 64,
    packages={"torch": "2.13.0"},
)


def store_small_adapter(folder: Path) -> tuple[Path, AdapterManifest]:
    """An adapter for every linear layer of a tiny base: its folder and manifest. ``base`` and ``original`` are next to
    it.
    """
    base = write_base(folder / "base")
    config = json.loads((base / "config.json").read_text())
    original = make_original(base, "F", 3, head=False, sizes=(config["vocab_size"], config["hidden_size"]))
    original.write(folder / "original")
    entry = BaseModelEntry(name="tiny", source=LocalSource(path=str(base)), digests=digest_model_folder(base))
    sidecar = parse_sidecar((folder / "original" / V3_NAME).read_bytes())
    weights = folder / "original" / ORIGINAL_WEIGHTS
    request = ImportRequest(weights, sidecar, entry, base, "helper", "2" * 64, "0" * 64, "1" * 64)
    found = import_adapter(request, folder / "adapter")
    assert (folder / "adapter" / MANIFEST_NAME).read_bytes() == found.manifest.to_bytes()
    return folder / "adapter", found.manifest
