"""An OCI image layout (image-spec 1.1): a folder that `oras`, `skopeo` and registry clients accept. Equal files give
equal digests.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from shared.artifacts.manifests import FileName
from shared.artifacts.storage import is_digest
from shared.errors import ArtifactInvalid, Code
from shared.hashing import canonical_json, digest_file

ARTIFACT_TYPE = "application/vnd.mens.adapter.v1"
MANIFEST_TYPE = "application/vnd.oci.image.manifest.v1+json"
INDEX_TYPE = "application/vnd.oci.image.index.v1+json"
EMPTY_TYPE = "application/vnd.oci.empty.v1+json"
TITLE = "org.opencontainers.image.title"
FILE_NAME: TypeAdapter[str] = TypeAdapter(FileName)
MEDIA_TYPES = {".safetensors": "application/vnd.safetensors", ".json": "application/json", ".md": "text/markdown"}


def write_layout(files: Sequence[Path], target: Path, name: str, annotations: Mapping[str, str]) -> str:
    """Write the layout into an empty folder; return the manifest's digest, ``sha256:…``.

    Args:
        files: each becomes a layer that keeps its name, as `oras` writes them.
        name: the artifact's name in the index.
        annotations: annotations of the manifest.
    """
    blobs = target / "blobs" / "sha256"
    blobs.mkdir(parents=True)
    layers = [_file_blob(path, blobs) for path in files]
    config = _blob(b"{}", blobs, EMPTY_TYPE)
    manifest = {
        "schemaVersion": 2,
        "mediaType": MANIFEST_TYPE,
        "artifactType": ARTIFACT_TYPE,
        "config": config,
        "layers": layers,
        "annotations": dict(annotations),
    }
    described = _blob(canonical_json(manifest), blobs, MANIFEST_TYPE)
    entry = described | {"artifactType": ARTIFACT_TYPE, "annotations": {"org.opencontainers.image.ref.name": name}}
    index = {"schemaVersion": 2, "mediaType": INDEX_TYPE, "manifests": [entry]}
    (target / "index.json").write_bytes(canonical_json(index))
    (target / "oci-layout").write_text(json.dumps({"imageLayoutVersion": "1.0.0"}))
    return str(described["digest"])


def is_layout(folder: Path) -> bool:
    """Return whether a folder is an OCI image layout."""
    return (folder / "oci-layout").is_file()


def read_layout(folder: Path, target: Path) -> None:
    """Copy the layers of a layout with one artifact to their names in an empty folder, each checked against its digest.

    Raises:
        ArtifactInvalid: ``ADAPTER_DIGEST_MISMATCH``: a blob is missing or changed; ``ADAPTER_MANIFEST_INVALID``: not an
            adapter's layout.
    """
    try:
        (entry,) = json.loads((folder / "index.json").read_bytes())["manifests"]
        layers = json.loads(_checked_blob(folder, entry).read_bytes())["layers"]
        named = [(FILE_NAME.validate_python(layer["annotations"][TITLE]), layer) for layer in layers]
    except (OSError, ValueError, KeyError, TypeError):
        raise ArtifactInvalid(
            Code.ADAPTER_MANIFEST_INVALID,
            f"{folder} is not an OCI layout of one adapter, or its index or manifest is broken.",
            remedy="Export the adapter again with --format oci, or copy it from the registry again.",
        ) from None
    for name, layer in named:
        shutil.copyfile(_checked_blob(folder, layer), target / name)


def _checked_blob(folder: Path, descriptor: Mapping[str, Any]) -> Path:
    algorithm, _, digest = str(descriptor["digest"]).partition(":")
    if algorithm != "sha256" or not is_digest(digest):
        raise ValueError("only SHA-256 digests are supported")
    path = folder / "blobs" / algorithm / digest
    if not path.is_file() or digest_file(path) != digest:
        raise ArtifactInvalid(
            Code.ADAPTER_DIGEST_MISMATCH,
            f"The blob {digest} of the layout is missing or was changed.",
            remedy="Copy the artifact from the registry again.",
            param=digest,
        )
    return path


def _blob(content: bytes, blobs: Path, media_type: str) -> dict[str, Any]:
    digest = hashlib.sha256(content).hexdigest()
    (blobs / digest).write_bytes(content)
    return {"mediaType": media_type, "digest": f"sha256:{digest}", "size": len(content)}


def _file_blob(path: Path, blobs: Path) -> dict[str, Any]:
    digest = digest_file(path)
    shutil.copyfile(path, blobs / digest)
    return {
        "mediaType": MEDIA_TYPES.get(path.suffix, "application/octet-stream"),
        "digest": f"sha256:{digest}",
        "size": path.stat().st_size,
        "annotations": {TITLE: path.name},
    }
