"""An adapter of another program on this machine, and the choice of its files to import."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from cli.client.connection import fail
from shared.artifacts.adapter_import import parse_description
from shared.artifacts.manifests import CONFIG_NAME, MANIFEST_NAME, WEIGHTS_NAME, AdapterManifest
from shared.artifacts.original_layout import MAX_SIDECAR_BYTES, ORIGINAL_WEIGHTS, SIDECAR_NAMES
from shared.artifacts.peft_options import PeftOptions
from shared.tokenization.tokenizer import stored_templates

DESCRIPTION_NAMES = (*SIDECAR_NAMES, CONFIG_NAME)


class AdapterFiles(NamedTuple):
    """Files to upload: the weights, their description, the chat template saved with them, and the template's arguments
    of an adapter exported from Mens.
    """

    weights: Path
    description: Path
    template: str | None
    template_arguments: dict[str, Any]


def read_adapter_folder(path: Path, description: Path | None) -> AdapterFiles:
    """Find and check the files before gigabytes are uploaded; end the command if a file is missing.

    Args:
        path: the folder, or the weights in it.
        description: the description's path, if given.
    """
    weights, sidecar = find_files(path, description)
    with sidecar.open("rb") as file:
        options = parse_description(file.read(MAX_SIDECAR_BYTES + 1))
    if not isinstance(options, PeftOptions):
        return AdapterFiles(weights, sidecar, None, {})
    options.refuse_unservable()
    template = stored_templates(weights.parent).get("default")
    return AdapterFiles(weights, sidecar, template, _template_arguments(weights.with_name(MANIFEST_NAME)))


def _template_arguments(manifest: Path) -> dict[str, Any]:
    """Return the template arguments in a Mens manifest next to the weights; {} if no manifest can be read."""
    try:
        return dict(AdapterManifest.model_validate_json(manifest.read_bytes()).template_arguments or {})
    except (OSError, ValueError):
        return {}


def find_files(path: Path, sidecar: Path | None) -> tuple[Path, Path]:
    """Return the weights and their description; end the command if one of them is missing."""
    names = (ORIGINAL_WEIGHTS, WEIGHTS_NAME)
    weights = (
        next((path / name for name in names if (path / name).is_file()), path / names[0]) if path.is_dir() else path
    )
    if weights.suffix.lower() != ".safetensors" or not weights.is_file():
        fail(
            f"{weights} is not a safetensors file; an adapter is {' or '.join(names)}, and pickle (.bin) is never read."
        )
    # A folder that PEFT wrote may also hold a manifest of Mens, which names the same file differently.
    described_by = (CONFIG_NAME,) if weights.name == WEIGHTS_NAME else DESCRIPTION_NAMES
    description = sidecar or next((file for name in described_by if (file := weights.with_name(name)).is_file()), None)
    if description is None:
        fail(f"{weights.parent} has no {', '.join(described_by)} next to {weights.name}; name the file with --sidecar.")
    return weights, description
