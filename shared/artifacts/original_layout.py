"""The original's adapter layout: sidecar of version 2, manifest of version 3, tensor names, and how they map to PEFT's.

The original stores ``candle_qlora_adapter.safetensors`` with tensors ``{logical}.lora_a`` [rank, in] and
``{logical}.lora_b`` [out, rank] in float32; its last trainer wrote ``….lora_a.weight``. Logical names are ``mid0…`` and
``lm_head`` in older versions, ``l0.q`` and the like in newer ones; ``base_key_map`` maps each to a tensor of the base.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from shared.artifacts.manifests import ManifestQuant
from shared.base_models.tensors import HEAD
from shared.contract.choices import AdapterMethod, BaseQuant, TrainedMethod
from shared.contract.sections import MAX_ALPHA, ProvenanceSection
from shared.errors import ArtifactInvalid, Code, InvalidRequest

ORIGINAL_WEIGHTS = "candle_qlora_adapter.safetensors"
V2_NAME, V3_NAME = "candle_qlora_adapter_meta.json", "populi_adapter_manifest_v3.json"
SIDECAR_NAMES = (V3_NAME, "adapter_manifest.json", V2_NAME)
"""Names that a sidecar may have, the most complete one first."""
MAX_SIDECAR_BYTES = 4 << 20
SUFFIXES = ("", ".weight")
"""Suffixes that the original's trainers wrote after ``lora_a`` and ``lora_b``."""
LOGICAL_NAMES = {
    "q_proj": "q",
    "k_proj": "k",
    "v_proj": "v",
    "o_proj": "o",
    "gate_proj": "gate",
    "up_proj": "up",
    "down_proj": "down",
    "in_proj_qkv": "lin_qkv",
    "in_proj_z": "lin_z",
    "in_proj_b": "lin_b",
    "in_proj_a": "lin_a",
    "out_proj": "lin_o",
    "attn.c_attn": "qkv",
    "attn.c_proj": "o",
    "mlp.c_fc": "up",
    "mlp.c_proj": "down",
}
"""Module name, with its parent's if necessary → the original schema's short name; other modules keep their own names.
"""

WITH_ITS_SIDECAR = (
    "Import the adapter with the sidecar that was written with it; docs/adapters.md lists its required fields."
)
_LAYER = re.compile(r"(?:^|\.)(?:layers|h)\.(\d+)\.")

Name = Annotated[str, Field(max_length=200)]
"""A name, short enough for errors and notes."""


class Sidecar(BaseModel):
    """Fields of both versions; unknown fields are kept apart, so that a reader can name them."""

    model_config = ConfigDict(extra="allow", frozen=True)
    base_key_map: dict[Name, Name] = Field(min_length=1, description="Logical name → the base's tensor.")
    layer_order: tuple[Name, ...] = Field(min_length=1)
    vocab: int = Field(ge=1)
    d_model: int = Field(ge=1)
    rank: int = Field(ge=1)
    alpha: int = Field(ge=1, le=MAX_ALPHA)
    base_model: str | None = None
    base_digests: dict[Name, Name] | None = Field(
        None, description="Added by Mens: file → SHA-256 of the base it was trained on."
    )
    tensor_digest: Name | None = Field(None, description="Added by Mens: SHA-256 of the weights' file.")

    @model_validator(mode="after")
    def _layers_once(self) -> Sidecar:
        if len(set(self.layer_order)) != len(self.layer_order):
            raise ValueError("layer_order names a layer twice")
        return self

    @property
    def unused(self) -> list[str]:
        """Unknown fields, which are not read."""
        return sorted(self.model_extra or {})


class SidecarV2(Sidecar):
    """``candle_qlora_adapter_meta.json``."""

    format: Literal["vox_mens_qlora_lora_only_v2"] = "vox_mens_qlora_lora_only_v2"
    version: Literal[2] = 2
    embed_key: str


class SidecarV3(Sidecar):
    """``populi_adapter_manifest_v3.json``, later ``adapter_manifest.json``."""

    format: Literal["vox_mens_adapter", "vox_populi_adapter"] = "vox_mens_adapter"
    version: Literal[3] = 3
    adapter_method: TrainedMethod
    quant: ManifestQuant
    provenance: ProvenanceSection | None = None


def parse_sidecar(raw: bytes) -> SidecarV2 | SidecarV3:
    """Parse a sidecar of either version, by its ``version``.

    Raises:
        ArtifactInvalid: ``ADAPTER_IMPORT_FORMAT``, naming the field.
    """
    try:
        content = json.loads(raw[: MAX_SIDECAR_BYTES + 1])
    except (ValueError, RecursionError):
        content = None
    if not isinstance(content, dict):
        raise _format("the top level", "it is not a JSON object")
    version = content.get("version")
    kind = SidecarV2 if version == 2 else SidecarV3 if version == 3 else None
    if kind is None:
        raise _format("version", f"it is {version!r} with the format {content.get('format')!r}")
    try:
        sidecar: SidecarV2 | SidecarV3 = kind.model_validate(content)
    except ValidationError as error:
        first = error.errors()[0]
        raise _format(".".join(map(str, first["loc"])) or "the top level", first["msg"]) from None
    return sidecar


def to_v3(sidecar: SidecarV2 | SidecarV3) -> SidecarV3:
    """Convert a sidecar to version 3; version 2 was always QLoRA over double-quantised NF4, without provenance."""
    if isinstance(sidecar, SidecarV3):
        return sidecar
    quant = ManifestQuant(base_quant=BaseQuant.NF4, double_quant=True)
    return SidecarV3(adapter_method=AdapterMethod.QLORA, quant=quant, **_common(sidecar))


def to_v2(sidecar: SidecarV2 | SidecarV3) -> SidecarV2:
    """Convert a sidecar to version 2, without quantisation and provenance.

    Raises:
        ArtifactInvalid: ``ADAPTER_IMPORT_INCOMPLETE``: the map has no ``lm_head``, whose tensor version 2 needs.
    """
    if isinstance(sidecar, SidecarV2):
        return sidecar
    if HEAD not in sidecar.base_key_map:
        raise incomplete(HEAD, "is not in base_key_map, which version 2 needs for its embed_key")
    return SidecarV2(embed_key=sidecar.base_key_map[HEAD], **_common(sidecar))


def tensor_pairs(logical_names: Iterable[str], stored: Iterable[str]) -> dict[str, tuple[str, str]]:
    """Return the stored names of A and B for each logical name, with or without the suffix.

    Raises:
        ArtifactInvalid: ``ADAPTER_IMPORT_INCOMPLETE``: a layer lacks a tensor, or a tensor belongs to no layer.
    """
    left, pairs = set(stored), {}
    for logical in logical_names:
        suffix = next((ending for ending in SUFFIXES if f"{logical}.lora_a{ending}" in left), SUFFIXES[0])
        pair = f"{logical}.lora_a{suffix}", f"{logical}.lora_b{suffix}"
        if missing := next((name for name in pair if name not in left), None):
            raise incomplete(logical, f"is in layer_order, but the weights do not contain {missing}")
        left -= set(pair)
        pairs[logical] = pair
    if left:
        raise incomplete(min(left), "is in the weights, but belongs to no layer of layer_order")
    return pairs


def mapped_layers(sidecar: SidecarV2 | SidecarV3) -> Mapping[str, str]:
    """Return the layers in their order, each with its base tensor; map entries that are not layers are left out.

    Raises:
        ArtifactInvalid: ``ADAPTER_IMPORT_INCOMPLETE``: a layer has no entry, or two have one tensor.
    """
    layers: dict[str, str] = {}
    taken: set[str] = set()
    for logical in sidecar.layer_order:
        if logical not in sidecar.base_key_map:
            raise incomplete(logical, "is in layer_order, but base_key_map does not map it to a tensor of the base")
        key = sidecar.base_key_map[logical]
        if key in taken:
            raise incomplete(logical, f"is the second layer that base_key_map maps to {key}")
        taken.add(key)
        layers[logical] = key
    return layers


def refuse_bin(name: str, param: str) -> None:
    """Refuse a `.bin` file by its name, before anything is read.

    Raises:
        InvalidRequest: ``MERGE_REJECTS_BURN_BIN``.
    """
    if name.lower().endswith(".bin"):
        raise InvalidRequest(
            Code.MERGE_REJECTS_BURN_BIN,
            f"{name} cannot be merged: Burn is retired, and pickle is never read. Only Candle's adapters can be "
            "merged: safetensors with a"
            " sidecar that names their layers (mid0…, l0.q…, lm_head).",
            remedy="Train the adapter again with method qlora; see docs/adapters.md.",
            param=param,
        )


def base_key_map(peft_keys: Any) -> dict[str, str]:
    """Map logical names to base tensor keys, in the order of the layers, from PEFT's own keys."""
    stems = {key.removeprefix("base_model.model.").partition(".lora_")[0] for key in peft_keys}
    return {logical_name(stem): f"{stem}.weight" for stem in sorted(stems, key=_layer_and_name)}


def logical_name(module: str) -> str:
    """Return a module's logical name: ``l3.q`` for ``model.layers.3.self_attn.q_proj``."""
    name, with_parent = module.rsplit(".", 1)[-1], ".".join(module.rsplit(".", 2)[-2:])
    layer = _LAYER.search(module)
    return f"l{layer[1]}.{LOGICAL_NAMES.get(with_parent) or LOGICAL_NAMES.get(name, name)}" if layer else module


def incomplete(name: str, reason: str, remedy: str = WITH_ITS_SIDECAR) -> ArtifactInvalid:
    """Return the refusal of an incomplete adapter."""
    return ArtifactInvalid(Code.ADAPTER_IMPORT_INCOMPLETE, f"{name} {reason}.", remedy=remedy, param=name)


def _layer_and_name(module: str) -> tuple[int, str]:
    layer = _LAYER.search(module)
    return (int(layer[1]) if layer else -1), module


def _common(sidecar: Sidecar) -> dict[str, Any]:
    return {name: getattr(sidecar, name) for name in Sidecar.model_fields}


def _format(where: str, reason: str) -> ArtifactInvalid:
    return ArtifactInvalid(
        Code.ADAPTER_IMPORT_FORMAT,
        f"The sidecar is not a valid version 2 or 3 of the original's format: at {where}, {reason}.",
        remedy=f"Give {V2_NAME}, {V3_NAME} or the original's adapter_manifest.json.",
        param=where,
    )
