"""An adapter of the original's becomes a folder as PEFT and vLLM read it, with a v3 manifest: the same numbers, other names."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shared.artifacts.manifests import (
    CONFIG_NAME,
    MANIFEST_NAME,
    WEIGHTS_NAME,
    AdapterManifest,
    peft_keys,
    verify_adapter,
)
from shared.artifacts.original_layout import SidecarV2, SidecarV3, incomplete, mapped_layers, tensor_pairs, to_v3
from shared.artifacts.tensor_values import verify_values
from shared.base_models.catalog import BaseModelEntry
from shared.base_models.config import ModelConfig, parse_model_config
from shared.base_models.families import EMBEDDING_KEYS
from shared.base_models.tensors import HEAD, detect_namespace
from shared.base_models.weights import Tensors, read_folder_tensors, read_tensors
from shared.errors import ArtifactInvalid, Code
from shared.hashing import digest_file

HEAD_KEY = f"{HEAD}.weight"
MAX_NOTES = 20
"""Unused fields that are named: each note becomes an event of the job, and a sidecar may have thousands."""


@dataclass(frozen=True, slots=True)
class ImportRequest:
    """What is imported, for which base, under which name.

    Attributes:
        weights: the original's safetensors file.
        sidecar: what stood beside it.
        base: the base by content, and its folder.
        name: left part of the adapter's id.
        sidecar_digest: SHA-256 of the sidecar's bytes.
        contract_digest: of the import's contract.
        template_digest: SHA-256 of the base's chat template.
    """

    weights: Path
    sidecar: SidecarV2 | SidecarV3
    base: BaseModelEntry
    base_folder: Path
    name: str
    sidecar_digest: str
    contract_digest: str
    template_digest: str


@dataclass(frozen=True, slots=True)
class Imported:
    """The adapter's manifest, and what of the input was not used, in sentences."""

    manifest: AdapterManifest
    notes: list[str]


def import_original(request: ImportRequest, target: Path) -> Imported:
    """Write the adapter's three files into a new folder, and verify them against the base.

    Raises:
        ArtifactInvalid: ``ADAPTER_IMPORT_INCOMPLETE``, ``ADAPTER_BASE_MISMATCH``, ``NOT_SERVABLE_HEAD``,
            ``ADAPTER_NOT_SERVABLE``, ``SAFETENSORS_INVALID``, or a code of :func:`verify_adapter`, naming what is wrong.
    """
    from safetensors.numpy import load_file, save_file  # not where the control plane is installed alone

    sidecar, notes = to_v3(request.sidecar), []
    config = parse_model_config(json.loads((request.base_folder / "config.json").read_bytes()))
    stored, base_tensors = read_tensors(request.weights), read_folder_tensors(request.base_folder)
    _check_base(sidecar, config)
    verify_values(request.weights, stored)
    layers = dict(mapped_layers(sidecar))
    pairs = tensor_pairs(layers, stored)
    weights = load_file(request.weights)
    if HEAD in layers and not _keeps_head(layers[HEAD], weights[pairs[HEAD][1]], base_tensors):
        del layers[HEAD]
        notes.append("lm_head: its B is all zeros, so it changes nothing, and it was left out.")
    elif HEAD in layers:
        layers[HEAD] = HEAD_KEY
    if not layers:
        raise incomplete("layer_order", "names no layer that changes the base")
    for logical, key in layers.items():
        if key not in base_tensors:
            raise incomplete(logical, f"is on {key}, which {request.base.name} does not have")
    renamed = {
        name: weights[old]
        for logical, key in layers.items()
        for old, name in zip(pairs[logical], peft_keys(key), strict=True)
    }
    target.mkdir(parents=True)
    save_file(dict(sorted(renamed.items())), target / WEIGHTS_NAME, metadata={"format": "pt"})
    peft = _peft_config(sidecar, request, [_module(key, config, base_tensors) for key in layers.values()])
    (target / CONFIG_NAME).write_text(json.dumps(peft, indent=2, sort_keys=True) + "\n")
    manifest = _manifest(sidecar, request, layers, target)
    verify_adapter(target, manifest, base_tensors)
    (target / MANIFEST_NAME).write_bytes(manifest.to_bytes())
    return Imported(manifest, notes + _notes(request.sidecar, request.base.name))


def _check_base(sidecar: SidecarV3, config: ModelConfig) -> None:
    for field, expected in (("vocab", config.vocab), ("d_model", config.hidden)):
        if getattr(sidecar, field) != expected:
            raise ArtifactInvalid(
                Code.ADAPTER_BASE_MISMATCH,
                f"The adapter was trained on a base with {field} {getattr(sidecar, field)}; this one has {expected}.",
                remedy="Import it for the base that it was trained on.",
                param=field,
            )
    if not config.spec.lora:
        raise ArtifactInvalid(
            Code.ADAPTER_NOT_SERVABLE,
            f"vLLM serves no adapters on models like {config.spec.model_types[0]}.",
            remedy="Merge the adapter with the original's own tool; Mens serves adapters of other families.",
            param="model",
        )


def _keeps_head(key: str, b: Any, base_tensors: Tensors) -> bool:
    """Whether the head's layer is served; one that changes nothing is not.

    Raises:
        ArtifactInvalid: ``NOT_SERVABLE_HEAD``: it changes a head that the base shares with its embedding, or another head.
    """
    if not b.any():
        return False
    if key == HEAD_KEY and HEAD_KEY in base_tensors:
        return True
    shared = "which the base shares with its embedding" if key in EMBEDDING_KEYS else "which the base does not have"
    raise ArtifactInvalid(
        Code.NOT_SERVABLE_HEAD,
        f"The adapter changes lm_head as {key}, {shared}; the server adapts a head of its own only.",
        remedy="Train it again without lm_head, or use a base with an untied head.",
        param=HEAD,
    )


def _module(key: str, config: ModelConfig, base_tensors: Tensors) -> str:
    """The module's name in the class that peft loads, which is the text-only one."""
    namespace, module = detect_namespace(config, base_tensors), key.removesuffix(".weight")
    if module == HEAD or not namespace:
        return module
    return config.spec.namespace + module.removeprefix(namespace)


def _peft_config(sidecar: SidecarV3, request: ImportRequest, modules: list[str]) -> dict[str, Any]:
    return {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "r": sidecar.rank,
        "lora_alpha": sidecar.alpha,
        "lora_dropout": 0.0,
        "bias": "none",
        "fan_in_fan_out": False,
        "init_lora_weights": True,
        "inference_mode": True,
        "target_modules": sorted(modules),
        "base_model_name_or_path": request.base.name,
    }


def _manifest(sidecar: SidecarV3, request: ImportRequest, layers: dict[str, str], folder: Path) -> AdapterManifest:
    return AdapterManifest(
        adapter_method=sidecar.adapter_method,
        quant=sidecar.quant,
        base_key_map=layers,
        layer_order=list(layers),
        vocab=sidecar.vocab,
        d_model=sidecar.d_model,
        rank=sidecar.rank,
        alpha=sidecar.alpha,
        base_model=request.base.name,
        provenance=sidecar.provenance,
        name=request.name,
        base_digests=request.base.digests,
        source_digests={"weights": digest_file(request.weights), "sidecar": request.sidecar_digest},
        contract_digest=request.contract_digest,
        template_digest=request.template_digest,
        step=0,
        files={name: digest_file(folder / name) for name in (WEIGHTS_NAME, CONFIG_NAME)},
    )


def _notes(sidecar: SidecarV2 | SidecarV3, base: str) -> list[str]:
    notes = [f"{name}: this field of the sidecar is not used." for name in sidecar.unused[:MAX_NOTES]]
    if more := len(sidecar.unused) - len(notes):
        notes.append(f"{more} more fields of the sidecar are not used.")
    if extra := sorted(sidecar.base_key_map.keys() - set(sidecar.layer_order)):
        notes.append(f"base_key_map: {', '.join(extra[:5])} are in no layer_order, so they were not trained.")
    if sidecar.base_model not in (None, base):
        notes.append(
            f"base_model: the sidecar says {sidecar.base_model}; it was imported for {base}, whose shapes fit."
        )
    return notes
