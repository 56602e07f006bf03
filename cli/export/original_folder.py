"""The original's layout: its weights file with its tensor names, its manifest of version 3, and if possible its sidecar
of version 2.

Tensors are renamed, not read: only the header of the safetensors file is rewritten, so no library is needed and each
value stays unchanged.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from cli.client.connection import fail
from shared.artifacts.manifests import WEIGHTS_NAME, AdapterManifest, peft_keys
from shared.artifacts.original_layout import ORIGINAL_WEIGHTS, V2_NAME, V3_NAME, SidecarV3, to_v2
from shared.base_models.weights import read_tensors
from shared.errors import ArtifactInvalid
from shared.hashing import digest_file

ALIGNMENT = 8
"""Bytes that a safetensors header is padded to with spaces."""


def write_original(folder: Path, target: Path, manifest: AdapterManifest) -> list[str]:
    """Write the layout into an empty folder; return the names of its files. End the command for weights other than
    float32.

    Args:
        folder: the stored adapter.
    """
    if other := sorted({tensor.dtype for tensor in read_tensors(folder / WEIGHTS_NAME).values()} - {"F32"}):
        fail(f"The original reads only float32, but this adapter's weights are {', '.join(other)}.")
    _rename_tensors(folder / WEIGHTS_NAME, target / ORIGINAL_WEIGHTS, _names(manifest))
    sidecar = SidecarV3(
        adapter_method=manifest.adapter_method,
        quant=manifest.quant,
        provenance=manifest.provenance,
        base_key_map=manifest.base_key_map,
        layer_order=tuple(manifest.layer_order),
        vocab=manifest.vocab,
        d_model=manifest.d_model,
        rank=manifest.rank,
        alpha=manifest.alpha,
        base_model=manifest.base_model,
        # Fields that the original's readers skip, and ours compare.
        base_digests=manifest.base_digests,
        tensor_digest=digest_file(target / ORIGINAL_WEIGHTS),
        contract_digest=manifest.contract_digest,
    )
    sidecars = {V3_NAME: sidecar.model_dump_json(indent=2, exclude_none=True)}
    try:
        sidecars[V2_NAME] = to_v2(sidecar).model_dump_json(indent=2, exclude_none=True)
    except ArtifactInvalid:  # version 2 cannot express it without a head
        pass
    for name, text in sidecars.items():
        (target / name).write_text(text + "\n")
    return [ORIGINAL_WEIGHTS, *sidecars]


def _names(manifest: AdapterManifest) -> dict[str, str]:
    """Return PEFT's tensor names → the original's; the adapter was verified, so it has exactly these."""
    names: dict[str, str] = {}
    for logical, key in manifest.base_key_map.items():
        a, b = peft_keys(key)
        names |= {a: f"{logical}.lora_a", b: f"{logical}.lora_b"}
    return names


def _rename_tensors(source: Path, target: Path, names: dict[str, str]) -> None:
    with source.open("rb") as file, target.open("wb") as renamed:
        header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
        tensors = {names[name]: entry for name, entry in header.items() if name != "__metadata__"}
        raw = json.dumps(tensors, separators=(",", ":")).encode()
        raw += b" " * (-len(raw) % ALIGNMENT)
        renamed.write(len(raw).to_bytes(8, "little"))
        renamed.write(raw)
        shutil.copyfileobj(file, renamed, 1 << 20)
