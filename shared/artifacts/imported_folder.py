"""Last step of every import: write an adapter in Mens' form as a folder for PEFT and vLLM, with a manifest."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from shared.artifacts.manifests import (
    CONFIG_NAME,
    MANIFEST_NAME,
    WEIGHTS_NAME,
    AdapterManifest,
    ManifestQuant,
    verify_adapter,
)
from shared.artifacts.original_layout import SidecarV2, SidecarV3
from shared.artifacts.peft_options import PeftOptions
from shared.base_models.catalog import BaseModelEntry
from shared.base_models.config import ModelConfig, parse_model_config
from shared.base_models.families import EMBEDDING_KEYS
from shared.base_models.tensors import HEAD, detect_namespace
from shared.base_models.weights import Tensors, read_folder_tensors
from shared.contract.choices import TrainedMethod
from shared.contract.sections import ProvenanceSection
from shared.contract.values import FrozenDict, TemplateArguments
from shared.errors import ArtifactInvalid, Code
from shared.hashing import digest_file

HEAD_KEY = f"{HEAD}.weight"


@dataclass(frozen=True, slots=True)
class ImportRequest:
    """An adapter to import, the base it is for, and its new name.

    Attributes:
        weights: a safetensors file.
        sidecar: the parsed file next to the weights.
        base: the base by content, and its folder.
        name: left part of the adapter's id.
        sidecar_digest: SHA-256 of the sidecar's bytes.
        contract_digest: digest of the import's contract.
        template_digest: SHA-256 of the base's chat template.
        template_arguments: template arguments that the adapter was trained with.
    """

    weights: Path
    sidecar: SidecarV2 | SidecarV3 | PeftOptions
    base: BaseModelEntry
    base_folder: Path
    name: str
    sidecar_digest: str
    contract_digest: str
    template_digest: str
    template_arguments: TemplateArguments = field(default_factory=FrozenDict)


@dataclass(frozen=True, slots=True)
class TargetBase:
    """The base that an adapter is imported for: config and tensors, from its files."""

    config: ModelConfig
    tensors: Tensors


@dataclass(frozen=True, slots=True)
class Contents:
    """Contents of an adapter in Mens' form, whichever program wrote it.

    Attributes:
        layers: logical name → the base's tensor, in the order of the layers.
        weights: float32 arrays by PEFT's names for these tensors.
        notes: sentences about parts of the input that were not used or were changed.
    """

    layers: dict[str, str]
    weights: dict[str, Any]
    rank: int
    alpha: int
    method: TrainedMethod
    quant: ManifestQuant
    provenance: ProvenanceSection | None = None
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Imported:
    """The adapter's manifest, and notes on unused or changed parts of the input."""

    manifest: AdapterManifest
    notes: list[str]


def read_base(folder: Path) -> TargetBase:
    """Read a base's folder.

    Raises:
        ArtifactInvalid: ``ADAPTER_NOT_SERVABLE``: vLLM serves no adapters on its family.
    """
    config = parse_model_config(json.loads((folder / "config.json").read_bytes()))
    if not config.spec.lora:
        raise ArtifactInvalid(
            Code.ADAPTER_NOT_SERVABLE,
            f"vLLM serves no adapters on models like {config.spec.model_types[0]}.",
            remedy="Merge the adapter with the tool that trained it; Mens serves adapters of other families.",
            param="model",
        )
    return TargetBase(config, read_folder_tensors(folder))


def keeps_head(key: str, b: Any, base: TargetBase) -> bool:
    """Return whether to serve the adapter's layer on the head; a layer that changes nothing is left out.

    Args:
        key: the base's tensor that the layer is on.
        b: the layer's B.
        base: the base.

    Raises:
        ArtifactInvalid: ``NOT_SERVABLE_HEAD``: it changes a head that the base shares with its embedding, or a
            different head, or one that vLLM does not adapt.
    """
    if not b.any():
        return False
    if key == HEAD_KEY and HEAD_KEY in base.tensors and base.config.spec.lora_head:
        return True
    if key == HEAD_KEY and HEAD_KEY in base.tensors:
        reason = f"which vLLM does not adapt in models like {base.config.spec.model_types[0]}"
    elif key in EMBEDDING_KEYS or base.config.tied:
        reason = "which the base shares with its embedding"
    else:
        reason = "which the base does not have"
    raise ArtifactInvalid(
        Code.NOT_SERVABLE_HEAD,
        f"The adapter changes lm_head as {key}, {reason}.",
        remedy="Train it again without lm_head, or use a base with an untied head that vLLM can adapt.",
        param=HEAD,
    )


def write_imported(request: ImportRequest, contents: Contents, base: TargetBase, target: Path) -> Imported:
    """Write the adapter's three files into a new folder, and verify them against the base."""
    from safetensors.numpy import save_file  # missing where only the control plane is installed

    target.mkdir(parents=True)
    save_file(dict(sorted(contents.weights.items())), target / WEIGHTS_NAME, metadata={"format": "pt"})
    modules = [_module(key, base) for key in contents.layers.values()]
    peft = _peft_config(contents, request.base.name, modules)
    (target / CONFIG_NAME).write_text(json.dumps(peft, indent=2, sort_keys=True) + "\n")
    manifest = _manifest(contents, request, base.config, target)
    verify_adapter(target, manifest, base.tensors)
    (target / MANIFEST_NAME).write_bytes(manifest.to_bytes())
    return Imported(manifest, contents.notes)


def base_name_note(stated: str | None, request: ImportRequest) -> list[str]:
    """Return a note if the adapter names its base differently from the catalogue."""
    if stated in (None, request.base.name):
        return []
    return [f"base_model: the adapter says {stated}; it was imported for {request.base.name}, whose shapes fit."]


def _module(key: str, base: TargetBase) -> str:
    """Return the module's name in the class that peft loads, which is the text-only one."""
    namespace, module = detect_namespace(base.config, base.tensors), key.removesuffix(".weight")
    if module == HEAD or not namespace:
        return module
    return base.config.spec.namespace + module.removeprefix(namespace)


def _peft_config(contents: Contents, base_name: str, modules: list[str]) -> dict[str, Any]:
    return {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "r": contents.rank,
        "lora_alpha": contents.alpha,
        "lora_dropout": 0.0,
        "bias": "none",
        "fan_in_fan_out": False,
        "init_lora_weights": True,
        "inference_mode": True,
        "target_modules": sorted(modules),
        "base_model_name_or_path": base_name,
    }


def _manifest(contents: Contents, request: ImportRequest, config: ModelConfig, folder: Path) -> AdapterManifest:
    return AdapterManifest(
        adapter_method=contents.method,
        quant=contents.quant,
        base_key_map=contents.layers,
        layer_order=list(contents.layers),
        vocab=config.vocab,
        d_model=config.hidden,
        rank=contents.rank,
        alpha=contents.alpha,
        base_model=request.base.name,
        provenance=contents.provenance,
        name=request.name,
        base_digests=request.base.digests,
        source_digests={"weights": digest_file(request.weights), "sidecar": request.sidecar_digest},
        contract_digest=request.contract_digest,
        template_digest=request.template_digest,
        template_arguments=request.template_arguments or None,
        step=0,
        files={name: digest_file(folder / name) for name in (WEIGHTS_NAME, CONFIG_NAME)},
    )
