"""Import an adapter that another program wrote; the file next to the weights shows which program.

PEFT's folders are read in `peft_import.py`. The original's adapters are read here: they get PEFT's names with the same
numbers, or are refused with a code that names what is missing.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from shared.artifacts.imported_folder import (
    HEAD_KEY,
    Contents,
    Imported,
    ImportRequest,
    TargetBase,
    base_name_note,
    keeps_head,
    read_base,
    write_imported,
)
from shared.artifacts.manifests import peft_keys
from shared.artifacts.original_layout import (
    MAX_SIDECAR_BYTES,
    SidecarV2,
    SidecarV3,
    incomplete,
    mapped_layers,
    parse_sidecar,
    tensor_pairs,
    to_v3,
)
from shared.artifacts.peft_import import peft_contents
from shared.artifacts.peft_options import PeftOptions, parse_peft_options
from shared.artifacts.tensor_values import verify_values
from shared.base_models.config import ModelConfig
from shared.base_models.tensors import HEAD
from shared.base_models.weights import read_tensors
from shared.errors import ArtifactInvalid, Code
from shared.hashing import digest_file

MAX_NOTES = 20
"""Largest number of unused fields that notes name: each note becomes an event of the job, and a sidecar may have
thousands of fields.
"""


def parse_description(raw: bytes) -> SidecarV2 | SidecarV3 | PeftOptions:
    """Parse the file next to the weights: PEFT's options, which have a ``peft_type``, or one of the original's
    sidecars.
    """
    try:
        content = json.loads(raw[: MAX_SIDECAR_BYTES + 1])
    except (ValueError, RecursionError):
        content = None
    is_peft = isinstance(content, dict) and "peft_type" in content
    return parse_peft_options(raw) if is_peft else parse_sidecar(raw)


def import_adapter(request: ImportRequest, target: Path) -> Imported:
    """Write the adapter's three files into a new folder, and verify them against the base.

    Raises:
        ArtifactInvalid: a code of :func:`original_contents`, `peft_import.py` or :func:`verify_adapter`, naming what is
            wrong.
    """
    base, description = read_base(request.base_folder), request.sidecar
    if isinstance(description, PeftOptions):
        contents = peft_contents(request, description, base)
    else:
        contents = original_contents(request, description, base)
    return write_imported(request, contents, base, target)


def original_contents(request: ImportRequest, original_sidecar: SidecarV2 | SidecarV3, base: TargetBase) -> Contents:
    """Read and check an adapter in the original's format; return its contents under PEFT's names.

    Raises:
        ArtifactInvalid: ``ADAPTER_IMPORT_INCOMPLETE``, ``ADAPTER_BASE_MISMATCH`` or ``ADAPTER_DIGEST_MISMATCH``, naming
            what is wrong.
    """
    from safetensors.numpy import load_file  # missing where only the control plane is installed

    sidecar, notes = to_v3(original_sidecar), []
    stored = read_tensors(request.weights)
    _check_base(sidecar, base.config)
    _check_digests(original_sidecar, request.base.digests, request.weights)
    verify_values(request.weights, stored)
    layers = dict(mapped_layers(sidecar))
    pairs = tensor_pairs(layers, stored)
    weights = load_file(request.weights)
    if HEAD in layers and not keeps_head(layers[HEAD], weights[pairs[HEAD][1]], base):
        del layers[HEAD]
        notes.append("lm_head: its B is all zeros, so it has no effect and was left out.")
    elif HEAD in layers:
        layers[HEAD] = HEAD_KEY
    if not layers:
        raise incomplete("layer_order", "does not name any layer that changes the base")
    for logical, key in layers.items():
        if key not in base.tensors:
            raise incomplete(logical, f"is on {key}, which {request.base.name} does not have")
    renamed = {
        name: weights[old]
        for logical, key in layers.items()
        for old, name in zip(pairs[logical], peft_keys(key), strict=True)
    }
    notes += _notes(original_sidecar) + base_name_note(original_sidecar.base_model, request)
    return Contents(
        layers,
        renamed,
        sidecar.rank,
        sidecar.alpha,
        sidecar.adapter_method,
        sidecar.quant,
        sidecar.provenance,
        notes,
    )


def _check_base(sidecar: SidecarV3, config: ModelConfig) -> None:
    for field, expected in (("vocab", config.vocab), ("d_model", config.hidden)):
        if getattr(sidecar, field) != expected:
            raise _other_base(
                f"The adapter was trained on a base with {field} {getattr(sidecar, field)}; this one has {expected}.",
                field,
            )


def _check_digests(sidecar: SidecarV2 | SidecarV3, base_digests: Mapping[str, str], weights: Path) -> None:
    """Compare the digests that Mens' own exports add to the original's fields; files written by the original system
    have none.
    """
    for name, recorded in (sidecar.base_digests or {}).items():
        if base_digests.get(name, recorded) != recorded:
            raise _other_base(f"The adapter was trained on a different base: {name} differs.", name)
    if sidecar.tensor_digest not in (None, digest_file(weights)):
        raise ArtifactInvalid(
            Code.ADAPTER_DIGEST_MISMATCH,
            "The sidecar was written for different weights: their SHA-256 is not its tensor_digest.",
            remedy="Import the weights with the sidecar that was written with them.",
            param="tensor_digest",
        )


def _other_base(message: str, param: str) -> ArtifactInvalid:
    return ArtifactInvalid(
        Code.ADAPTER_BASE_MISMATCH, message, remedy="Import it for the base that it was trained on.", param=param
    )


def _notes(sidecar: SidecarV2 | SidecarV3) -> list[str]:
    notes = [f"{name}: this field of the sidecar is not used." for name in sidecar.unused[:MAX_NOTES]]
    if more := len(sidecar.unused) - len(notes):
        notes.append(f"{more} more fields of the sidecar are not used.")
    if extra := sorted(sidecar.base_key_map.keys() - set(sidecar.layer_order)):
        notes.append(f"base_key_map: {', '.join(extra[:5])} are not in layer_order, so they were not trained.")
    return notes
