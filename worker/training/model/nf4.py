"""NF4 and back: the weights of a base that training holds in NF4, and the values that it computes with (arXiv
2305.14314 §3).
"""

from __future__ import annotations

import json
from pathlib import Path

import torch
from bitsandbytes.functional import dequantize_4bit, quantize_4bit

from shared.base_models.config import parse_model_config
from shared.base_models.tensors import linear_layers
from shared.base_models.weights import read_folder_tensors
from shared.errors import ArtifactInvalid, Code, ContractRejected
from worker.training.model.layer_names import namespaces

BLOCK_SIZE = 64
"""Weights that share one scale: bitsandbytes' default, which training uses."""


def quantised_tensors(base: Path) -> set[str]:
    """Return the names, as the base stores them, of the weights that training holds in NF4: all linear layers except
    the head.
    """
    config = parse_model_config(json.loads((base / "config.json").read_bytes()))
    if has_transposed_layers(base):
        raise ContractRejected(
            Code.CONTRACT_UNSUPPORTED,
            "GPT-2 models do not support a twin: their layers are stored transposed, and the serving engine does not "
            "support adapters for them.",
            remedy="Use a base of another family.",
            param="model",
        )
    tensors, (trained, stored) = read_folder_tensors(base), namespaces(base)
    names = {f"{stored}{name.removeprefix(trained)}.weight" for name in linear_layers(config)}
    if missing := sorted(names - tensors.keys()):
        raise ArtifactInvalid(
            Code.BLOCK_INVENTORY_INCOMPLETE,
            f"The base does not contain the tensor {missing[0]}, which its config requires ({len(missing)} are "
            "missing).",
            remedy="Fetch the model again.",
            param=missing[0],
        )
    return names


def has_transposed_layers(base: Path) -> bool:
    """Return whether the base stores its linear layers (in, out), as GPT-2's Conv1D does: bitsandbytes then does not
    quantise them.
    """
    return parse_model_config(json.loads((base / "config.json").read_bytes())).spec.transposed


def through_nf4(weight: torch.Tensor, double_quant: bool) -> torch.Tensor:
    """Return the weight as training computes with it: quantised to NF4 and back, in its own dtype; on a GPU if
    available.
    """
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    packed, state = quantize_4bit(
        weight.to(device), blocksize=BLOCK_SIZE, compress_statistics=double_quant, quant_type="nf4"
    )
    back: torch.Tensor = dequantize_4bit(packed, state)
    return back.view(weight.shape).to(weight.dtype).cpu()
