"""Find a base's files: on this machine, on a hub or, for a merged model, in the storage.

All machines share one catalogue, but the local folder of a merged model is on the machine where `mens base from-merge`
ran. Any other machine fetches the merged model from the storage, by the digest in the catalogue.
"""

from __future__ import annotations

import hashlib
import tempfile
from contextlib import suppress
from pathlib import Path

from shared.artifacts.manifests import MODEL_MANIFEST_NAME, ModelManifest
from shared.artifacts.merge_fidelity import FIDELITY_NAME, PROBES_NAME
from shared.artifacts.merged_models import changed_file, verify_merged_folder
from shared.artifacts.open_storage import open_storage
from shared.artifacts.signatures import MODEL_SIGNATURE_NAME
from shared.artifacts.storage import Storage
from shared.base_models.catalog import BaseModelEntry, LocalSource
from shared.durable_files import rename_durably
from shared.errors import NotFound
from shared.settings import Settings

COMPANIONS = (PROBES_NAME, FIDELITY_NAME, MODEL_SIGNATURE_NAME)
"""Files that a merged model's folder may have in addition to the model's own: probes of its replicas, its measured
fidelity, its signature.
"""


def is_elsewhere(entry: BaseModelEntry, catalog_path: Path) -> bool:
    """Return whether a base is a merged model whose folder is on another machine."""
    source = entry.source
    return (
        entry.merged_from is not None
        and isinstance(source, LocalSource)
        and not (catalog_path.parent / source.path).is_dir()
    )


def fetched_folder(entry: BaseModelEntry, home: Path) -> Path:
    """Return the path of this machine's copy of a merged model, which may not have been fetched yet."""
    assert entry.merged_from is not None
    return home / "bases" / entry.merged_from.digest


def locate_base(entry: BaseModelEntry, settings: Settings) -> Path:
    """Return the folder with a base's files, fetched first if necessary.

    Raises:
        MensError: it is not found here, on the hub or in the storage, or its stored files are damaged.
    """
    if not is_elsewhere(entry, settings.catalog_path):
        from shared.base_models.hub import locate  # the hub's client is slow to import

        return locate(entry, settings.catalog_path)
    folder = fetched_folder(entry, settings.home)
    if not folder.is_dir():
        assert entry.merged_from is not None
        fetch_merged(open_storage(settings), entry.merged_from.digest, folder)
    return folder


def locate_fetched_base(entry: BaseModelEntry, settings: Settings) -> Path:
    """Return the folder of a base that this machine already has; unlike :func:`locate_base`, download nothing, because
    a control plane must not fetch weights during a request.

    Raises:
        NotFound: ``MODEL_NOT_FOUND``.
        Unavailable: ``BASE_NOT_FETCHED``.
    """
    from shared.base_models.hub import locate_fetched, not_fetched  # the hub's client is slow to import

    if not is_elsewhere(entry, settings.catalog_path):
        return locate_fetched(entry, settings.catalog_path)
    folder = fetched_folder(entry, settings.home)
    if not folder.is_dir():
        raise not_fetched(entry.name, "the storage")
    return folder


def stored_manifest(storage: Storage, digest: str) -> ModelManifest:
    """Read the manifest of a stored merged model.

    Raises:
        ArtifactInvalid: ``BASE_DIGEST_MISMATCH``.
    """
    raw = storage.manifest_bytes("models", digest, MODEL_MANIFEST_NAME)
    if hashlib.sha256(raw).hexdigest() != digest:
        raise changed_file(MODEL_MANIFEST_NAME)
    return ModelManifest.model_validate_json(raw)


def fetch_merged(storage: Storage, digest: str, folder: Path) -> ModelManifest:
    """Copy a merged model from the storage into a new folder, which gets its name only after it was verified.

    Raises:
        MensError: the model is not stored, or it is damaged.
    """
    manifest = stored_manifest(storage, digest)
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix="incoming-") as private:
        copy = Path(private) / "model"
        copy.mkdir()
        storage.fetch_folder("models", digest, sorted(manifest.files), copy)
        verify_merged_folder(copy, manifest)
        (copy / MODEL_MANIFEST_NAME).write_bytes(manifest.to_bytes())
        for name in COMPANIONS:
            with suppress(NotFound):  # it is signed only if workers have a key
                (copy / name).write_bytes(storage.manifest_bytes("models", digest, name))
        try:
            rename_durably(copy, folder)
        except OSError:
            if not folder.is_dir():  # else another process of this machine was faster
                raise
    return manifest
