"""The layouts that an adapter is exported in."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path

from cli.export.download import ADAPTER_FILES, Downloaded
from cli.export.handoff import HANDOFF_NAME, Backend, handoff_for
from cli.export.mlflow_model import write_mlflow_model
from cli.export.oci_layout import write_layout
from cli.export.ollama.modelfile import ADAPTER_FOLDER, MODELFILE_NAME, OllamaModel, write_modelfile
from cli.export.original_folder import write_original
from shared.artifacts.manifests import CONFIG_NAME, WEIGHTS_NAME, AdapterManifest
from shared.artifacts.signatures import SIGNATURE_NAME
from shared.hashing import digest_json


class Format(StrEnum):
    """Layouts of other programs."""

    PEFT = "peft"
    ORIGINAL = "original"
    HF = "hf"
    OCI = "oci"
    OLLAMA = "ollama"
    MLFLOW = "mlflow"


GIT_ATTRIBUTES = "*.safetensors filter=lfs diff=lfs merge=lfs -text\n"
"""As the hub writes it: weights go to its large-file storage."""


def write(
    downloaded: Downloaded, target: Path, layout: Format, backend: Backend | None, ollama: OllamaModel | None = None
) -> str:
    """Write an adapter into an empty folder; return the next step for using it.

    Args:
        backend: also write the handoff for this runtime, next to the adapter's files.
        ollama: content of its Modelfile; only for that layout, whose handoff is always written.
    """
    files = list(downloaded.files)
    if backend := Backend.OLLAMA if ollama else backend:
        text = handoff_for(backend, downloaded.manifest, downloaded.url).model_dump_json(indent=2, by_alias=True)
        files.append(downloaded.folder / HANDOFF_NAME)
        files[-1].write_text(text + "\n")
    if layout is Format.OCI:
        # An adapter's id has an `@`, which a tag cannot contain.
        tag = f"{downloaded.manifest.name}-{downloaded.manifest.digest[:12]}"
        digest = write_layout(files, target, tag, _annotations(downloaded.manifest))
        return f"{digest}; push it with `oras copy --from-oci-layout {target}:{tag} REGISTRY/NAME:TAG`"
    if layout is Format.MLFLOW:
        write_mlflow_model(files, target, downloaded.manifest)
        return f'load it with mlflow.pyfunc.load_model("{target}", model_config={{"base": BASE}})'
    if layout is Format.ORIGINAL:
        names = write_original(downloaded.folder, target, downloaded.manifest)
        files = [
            path for path in files if path.name not in (*ADAPTER_FILES, SIGNATURE_NAME)
        ]  # this layout does not contain the signed file
        _copy(files, target)
        return f"{', '.join(names)} as the original reads them"
    _copy(files, target)
    if ollama:
        return _write_ollama(ollama, downloaded.manifest, target)
    if layout is Format.PEFT:
        return f'load it with peft.PeftModel.from_pretrained(base, "{target}")'
    (target / ".gitattributes").write_text(GIT_ATTRIBUTES)
    return f"push it with `mens adapter push`, or `hf upload OWNER/NAME {target}`"


def _copy(files: Sequence[Path], target: Path) -> None:
    for path in files:
        shutil.copyfile(path, target / path.name)


def _write_ollama(model: OllamaModel, manifest: AdapterManifest, target: Path) -> str:
    (target / MODELFILE_NAME).write_text(write_modelfile(model, manifest), encoding="utf-8")
    if model.with_adapter:
        folder = target / ADAPTER_FOLDER
        folder.mkdir()
        # Ollama's client takes weights from a folder by this name, whichever of its versions that is.
        shutil.copyfile(target / WEIGHTS_NAME, folder / "model.safetensors")
        shutil.copyfile(target / CONFIG_NAME, folder / CONFIG_NAME)
    said = "".join(f"\n  {sentence}" for sentence in model.differences)
    return f"make it with `ollama create {manifest.name.lower()} -f {target / MODELFILE_NAME}`{said}"


def _annotations(manifest: AdapterManifest) -> dict[str, str]:
    return {
        "org.opencontainers.image.title": manifest.adapter_id,
        "org.opencontainers.image.base.name": manifest.base_model,
        "dev.mens.base.digest": digest_json(manifest.base_digests),
    }
