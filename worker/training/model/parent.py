"""Starts an adapter from another one: at its first step, the run computes the same outputs as its parent."""

from __future__ import annotations

from pathlib import Path

import torch
from peft import PeftModel, get_peft_model_state_dict, set_peft_model_state_dict
from safetensors.torch import load_file

from shared.artifacts.manifests import MANIFEST_NAME, WEIGHTS_NAME, parse_manifest, verify_adapter
from shared.contract.parent import PlannedParent
from shared.contract.sections import AdapterSection
from shared.errors import ArtifactInvalid, Code
from worker.training.model.layer_names import namespaces, renamed


def start_from(model: PeftModel, parent: PlannedParent, folder: Path, base: Path, adapter: AdapterSection) -> None:
    """Put a parent's weights into a model's new LoRA layers.

    The first rows of A and the first columns of B become the parent's, with B scaled so that a different alpha or rank
    does not change the outputs. Additional rows of A keep their random values and additional columns of B their zeros,
    as do layers that the parent lacks.

    Args:
        folder: the parent's files.
        base: the base model's folder, whose layer names they have.
        adapter: the shape of the model's layers.

    Raises:
        ArtifactInvalid: the parent's files are not those that were planned; ``ADAPTER_SHAPE_MISMATCH``: the model lacks one of
            its layers.
    """
    verify_adapter(folder, parse_manifest((folder / MANIFEST_NAME).read_bytes(), parent.digest))
    trained, stored = namespaces(base)
    weights = renamed(load_file(folder / WEIGHTS_NAME), stored, trained)
    own = get_peft_model_state_dict(model)
    if strangers := sorted(weights.keys() - own.keys()):
        raise ArtifactInvalid(
            Code.ADAPTER_SHAPE_MISMATCH,
            f"The run has no layer for {strangers[0]} of {parent.id}.",
            remedy="Leave adapter.target_modules out, so that the run trains the layers of its parent.",
            param=strangers[0],
        )
    factor = parent.factor(adapter)
    set_peft_model_state_dict(model, {key: _grown(own[key], key, value, factor) for key, value in weights.items()})


def _grown(own: torch.Tensor, key: str, value: torch.Tensor, factor: float) -> torch.Tensor:
    """Return a layer's new A or B with the parent's in its first rows or columns."""
    grown = own.detach().clone()
    value = value.to(grown)
    if ".lora_A." in key:
        grown[: value.shape[0]] = value
    else:
        grown[:, : value.shape[1]] = value * factor
    return grown
