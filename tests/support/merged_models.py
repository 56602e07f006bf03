"""The folder of a merged model as a merge leaves it: small, complete, and written without torch."""

from __future__ import annotations

from pathlib import Path

from shared.artifacts.folder_storage import FolderStorage
from shared.artifacts.manifests import MODEL_MANIFEST_NAME, ModelManifest
from shared.artifacts.merge_fidelity import (
    FIDELITY_NAME,
    PROBES_NAME,
    Divergence,
    MergeFidelity,
    MergeProbe,
    MergeProbes,
)
from shared.artifacts.signatures import MODEL_SIGNATURE_NAME
from shared.base_models.catalog import BaseModelEntry
from shared.contract.choices import BaseWeights
from shared.hashing import digest_file
from tests.support.tiny_base import write_base

SHAPE = {"hidden_size": 64, "intermediate_size": 128, "max_position_embeddings": 256}
ADAPTER_ID = f"support@{'a' * 64}"
PROBES = [MergeProbe(token_ids=[5, 6, 7], positions=[1, 2], merged=[-1.0, -2.0], base=[-3.0, -4.0])]


def write_merged(folder: Path, base: BaseModelEntry) -> ModelManifest:
    """Write the folder of a merged model, with an adapter for `base`."""
    write_base(folder, **SHAPE)
    (folder / "README.md").write_text("merged")
    files = {path.name: digest_file(path) for path in folder.iterdir()}
    manifest = ModelManifest(base_model=base.name, base_digests=base.digests, adapter_id=ADAPTER_ID, files=files)
    (folder / MODEL_MANIFEST_NAME).write_bytes(manifest.to_bytes())
    nothing = Divergence(mean_kl_nats=1e-9, max_kl_nats=1e-9, max_logit_difference=1e-6)
    fidelity = MergeFidelity(
        model_digest=manifest.digest,
        dtype="float32",
        base_weights=BaseWeights.ORIGINAL,
        positions=2,
        adapter_divergence=nothing,
        training_divergence=None,
        effect=nothing,
        limit_nats=1e-6,
    )
    (folder / FIDELITY_NAME).write_text(fidelity.model_dump_json())
    (folder / PROBES_NAME).write_text(MergeProbes(model_digest=manifest.digest, probes=PROBES).model_dump_json())
    return manifest


def store_merged(storage: FolderStorage, folder: Path, manifest: ModelManifest) -> str:
    """Store such a folder as its job does; return its digest."""
    beside = [name for name in (FIDELITY_NAME, PROBES_NAME, MODEL_SIGNATURE_NAME) if (folder / name).is_file()]
    storage.put_folder("models", manifest.digest, folder, [*sorted(manifest.files), *beside], MODEL_MANIFEST_NAME)
    return manifest.digest
