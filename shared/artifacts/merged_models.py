"""Merged models as folders: read the manifest, verify every file of the folder against it, verify the signature."""

from __future__ import annotations

import hashlib
from collections.abc import Collection
from pathlib import Path

from pydantic import ValidationError

from shared.artifacts.manifests import MODEL_MANIFEST_NAME, ModelManifest
from shared.artifacts.merge_fidelity import FIDELITY_NAME, PROBES_NAME, MergeFidelity, MergeProbes
from shared.artifacts.signatures import MERGED_MODEL, Signature, unsigned, verify_signature
from shared.base_models.catalog import model_files, refuse_unknown_files
from shared.errors import ArtifactInvalid, Code
from shared.hashing import digest_file

MAX_MANIFEST_BYTES = 1 << 20


def read_model_manifest(folder: Path) -> ModelManifest:
    """Read the manifest of a merged model's folder, which must be in canonical form: its digest is the model's name.

    Raises:
        ArtifactInvalid: ``BASE_DIGEST_MISMATCH``.
    """
    try:
        with (folder / MODEL_MANIFEST_NAME).open("rb") as file:
            raw = file.read(MAX_MANIFEST_BYTES)
        manifest = ModelManifest.model_validate_json(raw)
    except (OSError, ValidationError):
        raise changed_file(MODEL_MANIFEST_NAME) from None
    if manifest.digest != hashlib.sha256(raw).hexdigest():
        raise changed_file(MODEL_MANIFEST_NAME)
    return manifest


def verify_merged_folder(folder: Path, manifest: ModelManifest) -> MergeFidelity | None:
    """Check every file of a merged model's folder; return its measured fidelity if that file exists.

    Raises:
        ArtifactInvalid: ``BASE_DIGEST_MISMATCH``, naming the first file that has changed.
    """
    refuse_unknown_files(folder)
    for name in sorted({path.name for path in model_files(folder)} | manifest.files.keys()):
        path = folder / name
        # A link could point to another file after this check.
        if path.is_symlink() or not path.is_file() or digest_file(path) != manifest.files.get(name):
            raise changed_file(name)
    fidelity = None
    for name, shape in ((FIDELITY_NAME, MergeFidelity), (PROBES_NAME, MergeProbes)):
        if not (folder / name).is_file():
            continue
        try:
            measurement = shape.model_validate_json((folder / name).read_bytes())
        except ValidationError:
            raise changed_file(name) from None
        if measurement.model_digest != manifest.digest:
            raise changed_file(name)
        fidelity = measurement if isinstance(measurement, MergeFidelity) else fidelity
    return fidelity


def verify_model_signature(
    folder: Path, manifest: ModelManifest, trusted_keys: Collection[str] | None
) -> Signature | None:
    """Check the signature next to a merged model's manifest; return None if it is unsigned and no signature is
    required.
    """
    path = folder / MERGED_MODEL.signature_name
    if path.is_file():
        return verify_signature(path.read_bytes(), manifest.digest, trusted_keys, MERGED_MODEL)
    if trusted_keys is not None:
        raise unsigned(MERGED_MODEL)
    return None


def changed_file(name: str) -> ArtifactInvalid:
    """Return the refusal of a merged model's file that differs from the stored one."""
    return ArtifactInvalid(
        Code.BASE_DIGEST_MISMATCH,
        f"{name} of the merged model is not the file that was stored.",
        remedy="Merge the adapter again.",
        param=name,
    )
