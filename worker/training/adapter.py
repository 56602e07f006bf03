"""Writes a v3 adapter: PEFT's two files and the manifest that names and digests them.

The bytes depend only on the weights and the plan (no time, no path, sorted JSON), so equal runs give equal digests.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from peft import PeftModel, get_peft_model_state_dict, set_peft_model_state_dict
from safetensors.torch import load_file, save_file
from transformers import PreTrainedTokenizerBase

from shared.artifacts.manifests import (
    CONFIG_NAME,
    MANIFEST_NAME,
    WEIGHTS_NAME,
    AdapterManifest,
    ManifestPreference,
    ManifestQuant,
    ParentRef,
)
from shared.artifacts.original_layout import base_key_map
from shared.contract.base_quant import pair_of
from shared.contract.plan import ExecutionPlan
from shared.contract.sections import PreferenceSection, ProvenanceSection
from shared.errors import ArtifactInvalid, Code
from shared.hashing import digest_file
from worker.training.lineage import lineage
from worker.training.model.layer_names import namespaces, renamed
from worker.training.model.load import compute_dtype_name


def save_adapter(
    model: PeftModel,
    tokenizer: PreTrainedTokenizerBase,
    plan: ExecutionPlan,
    step: int,
    folder: Path,
    base: Path,
    reference: str | None = None,
) -> AdapterManifest:
    """Write the adapter's three files into a folder and return the manifest.

    Args:
        base: the base model's folder: layers have the names of its files.
        reference: SHA-256 of the reference's scores, for preference training only.
    """
    folder.mkdir(parents=True, exist_ok=True)
    trained = {key: value.detach().float().cpu() for key, value in get_peft_model_state_dict(model).items()}
    weights = renamed(trained, *namespaces(base))
    contiguous = {key: weights[key].contiguous() for key in sorted(weights)}
    save_file(contiguous, folder / WEIGHTS_NAME, metadata={"format": "pt"})
    config = _peft_config(model, plan.base.name)
    (folder / CONFIG_NAME).write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")
    manifest = _manifest(model, tokenizer, plan, step, base_key_map(weights), folder, reference)
    (folder / MANIFEST_NAME).write_bytes(manifest.to_bytes())
    return manifest


def load_adapter(model: PeftModel, folder: Path, base: Path) -> None:
    """Load an adapter folder's weights into a model whose LoRA layers were created for them.

    Args:
        base: the base model's folder.

    Raises:
        ArtifactInvalid: ``ADAPTER_SHAPE_MISMATCH``: a layer of either has no counterpart in the other.
    """
    if strangers := load_weights(model, folder, base):
        raise ArtifactInvalid(
            Code.ADAPTER_SHAPE_MISMATCH,
            f"The adapter does not fit the base's layers: {strangers[0]}.",
            remedy="Train the adapter again on this base.",
            param=strangers[0],
        )


def load_weights(model: PeftModel, folder: Path, base: Path) -> list[str]:
    """Load as :func:`load_adapter`; return the layers without a counterpart, which peft would silently skip."""
    trained, stored = namespaces(base)
    weights = load_file(folder / WEIGHTS_NAME)
    result = set_peft_model_state_dict(model, renamed(weights, stored, trained))
    return [*result.unexpected_keys, *(key for key in result.missing_keys if ".lora_" in key)]


def template_digest(tokenizer: PreTrainedTokenizerBase) -> str:
    """Return the SHA-256 of the chat template."""
    return hashlib.sha256(str(tokenizer.chat_template).encode()).hexdigest()


def _peft_config(model: PeftModel, base_name: str) -> dict[str, Any]:
    config: dict[str, Any] = model.peft_config["default"].to_dict()
    config |= {"base_model_name_or_path": base_name, "inference_mode": True, "revision": None}
    return {key: _plain(value) for key, value in config.items()}


def _plain(value: Any) -> Any:
    """Return the JSON form of one of PEFT's config values; sets are sorted, because their own order differs from run to
    run.
    """
    if isinstance(value, set | frozenset):
        return sorted(value)
    return getattr(value, "value", value)


def _preference(section: PreferenceSection, reference: str, *, has_parent: bool) -> ManifestPreference:
    return ManifestPreference(
        loss=section.loss,
        beta=section.strength,
        label_smoothing=section.label_smoothing,
        smoothing=section.smoothing,
        sft_weight=section.sft_weight,
        desirable_weight=section.desirable_weight,
        undesirable_weight=section.undesirable_weight,
        reference="parent" if has_parent else "base",
        reference_digest=reference,
    )


def _manifest(
    model: PeftModel,
    tokenizer: PreTrainedTokenizerBase,
    plan: ExecutionPlan,
    step: int,
    keys: dict[str, str],
    folder: Path,
    reference: str | None,
) -> AdapterManifest:
    contract, config, parent = plan.contract, model.config, plan.parent
    method, base_quant = pair_of(contract)
    return AdapterManifest(
        adapter_method=method,
        quant=ManifestQuant(base_quant=base_quant, double_quant=contract.quant.double_quant),
        base_key_map=keys,
        layer_order=list(keys),
        vocab=config.vocab_size,
        d_model=config.hidden_size,
        rank=contract.adapter.rank,
        alpha=contract.adapter.alpha,
        base_model=plan.base.name,
        provenance=contract.provenance if contract.provenance != ProvenanceSection() else None,
        name=plan.adapter_name,
        base_digests=plan.base.digests,
        source_digests={
            name: file.sha256
            for name, file in (("train", plan.train), ("validation", plan.validation), ("replay", plan.replay))
            if file
        },
        contract_digest=plan.contract_digest,
        template_digest=template_digest(tokenizer),
        template_arguments=contract.data.template_arguments or None,
        step=step,
        parent=ParentRef(id=parent.id, digest=parent.digest, step=parent.step) if parent else None,
        trained_dtype=compute_dtype_name(model.device),
        lineage=lineage(),
        method=contract.method.type if contract.has_preferences else None,
        preference=_preference(contract.preference, reference, has_parent=parent is not None) if reference else None,
        files={name: digest_file(folder / name) for name in (WEIGHTS_NAME, CONFIG_NAME)},
    )
