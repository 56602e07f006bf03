"""The layouts that an adapter is exported in."""

from __future__ import annotations

import shutil
from enum import StrEnum
from pathlib import Path

from cli.export.download import ADAPTER_FILES, README_NAME, Downloaded
from cli.export.handoff import HANDOFF_NAME, Backend, handoff_for
from cli.export.oci_layout import write_layout
from cli.export.original_folder import write_original
from shared.artifacts.manifests import AdapterManifest
from shared.hashing import digest_json


class Format(StrEnum):
    """Layouts of other programs."""

    PEFT = "peft"
    ORIGINAL = "original"
    HF = "hf"
    OCI = "oci"


GIT_ATTRIBUTES = "*.safetensors filter=lfs diff=lfs merge=lfs -text\n"
"""As the hub writes it: weights go to its large-file storage."""


def write(found: Downloaded, target: Path, layout: Format, backend: Backend | None) -> str:
    """Write an adapter into an empty folder; returns what to do with it.

    Args:
        backend: also write the handoff for this runtime, beside the adapter's files.
    """
    files = [found.folder / name for name in (*ADAPTER_FILES, README_NAME)]
    if backend:
        text = handoff_for(backend, found.manifest, found.url).model_dump_json(indent=2, by_alias=True)
        (found.folder / HANDOFF_NAME).write_text(text + "\n")
        files.append(found.folder / HANDOFF_NAME)
    match layout:
        case Format.PEFT | Format.HF:
            for path in files:
                shutil.copyfile(path, target / path.name)
            if layout is Format.PEFT:
                return f'load it with peft.PeftModel.from_pretrained(base, "{target}")'
            (target / ".gitattributes").write_text(GIT_ATTRIBUTES)
            return f"upload it with `hf upload OWNER/NAME {target}`"
        case Format.ORIGINAL:
            names = write_original(found.folder, target, found.manifest)
            for path in files[len(ADAPTER_FILES) :]:
                shutil.copyfile(path, target / path.name)
            return f"{', '.join(names)} as the original reads them"
        case Format.OCI:
            digest = write_layout(files, target, _tag(found.manifest), _annotations(found.manifest))
            return f"{digest}; push it with `oras copy --from-oci-layout {target}:{_tag(found.manifest)} REGISTRY/NAME:TAG`"


def _tag(manifest: AdapterManifest) -> str:
    """A tag holds no ``@``."""
    return f"{manifest.name}-{manifest.digest[:12]}"


def _annotations(manifest: AdapterManifest) -> dict[str, str]:
    return {
        "org.opencontainers.image.title": manifest.adapter_id,
        "org.opencontainers.image.base.name": manifest.base_model,
        "dev.mens.base.digest": digest_json(manifest.base_digests),
    }
