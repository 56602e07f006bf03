"""Adapters in PEFT's layout as other programs write them, created without PEFT."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load_file, save_file

from shared.artifacts.manifests import CONFIG_NAME, WEIGHTS_NAME
from shared.base_models.weights import read_folder_tensors

PREFIX = "base_model.model."
TORCHTUNE: dict[str, Any] = {"peft_type": "LORA", "r": 4, "lora_alpha": 8, "target_modules": ["q_proj", "down_proj"]}
"""All options that torchtune writes."""
PATTERNED: dict[str, Any] = {
    "peft_type": "LORA", "task_type": "CAUSAL_LM", "bias": "none", "r": 4, "lora_alpha": 6, "use_rslora": True,
    "rank_pattern": {"k_proj": 2, r"layers\.1\.mlp\.up_proj": 5}, "alpha_pattern": {"v_proj": 3.5, r"layers\.0\..*\.o_proj": 9},
    "target_modules": r".*\.(q|k|v|o|up)_proj", "megatron_core": "megatron.core", "lora_dropout": 0.1,
    "auto_mapping": {"base_model_class": "Qwen3ForCausalLM", "unsloth_fixed": True}, "peft_version": "0.18.0",
}  # fmt: skip
"""Ranks and scales that differ by layer, and the fields in which PEFT and Unsloth describe themselves."""


def expected_size(module: str) -> tuple[int, float]:
    """Rank and scale that PEFT gives a module under ``PATTERNED``."""
    rank = 2 if module.endswith("k_proj") else 5 if module.endswith("layers.1.mlp.up_proj") else 4
    alpha = 3.5 if module.endswith("v_proj") else 9 if module.endswith("layers.0.self_attn.o_proj") else 6
    return rank, alpha / math.sqrt(rank)


@dataclass
class PeftFolder:
    """A folder before it is written: its options and, for each module, A, B and the scale of their product in PEFT."""

    options: dict[str, Any]
    layers: dict[str, tuple[NDArray[np.float32], NDArray[np.float32], float]]
    more: dict[str, NDArray[np.float32]] = field(default_factory=dict)

    def tensors(self) -> dict[str, NDArray[np.float32]]:
        """Tensors under PEFT's names."""
        pairs = {f"{PREFIX}{module}.lora_A.weight": a for module, (a, _, _) in self.layers.items()}
        return pairs | {f"{PREFIX}{module}.lora_B.weight": b for module, (_, b, _) in self.layers.items()} | self.more

    def write(self, folder: Path) -> Path:
        """Write both files; returns the folder."""
        folder.mkdir(parents=True, exist_ok=True)
        save_file(self.tensors(), folder / WEIGHTS_NAME)
        (folder / CONFIG_NAME).write_text(json.dumps(self.options))
        return folder

    def merged_into(self, base: Path) -> dict[str, NDArray[np.float32]]:
        """The base's tensors with the adapter's product added."""
        tensors: dict[str, NDArray[np.float32]] = {}
        for path in sorted(base.glob("*.safetensors")):
            tensors |= load_file(path)
        for module, (a, b, scale) in self.layers.items():
            tensors[f"{module}.weight"] += (np.float64(scale) * (b.astype(np.float64) @ a)).astype(np.float32)
        return tensors


def make_patterned(base: Path, seed: int = 0) -> PeftFolder:
    """A random adapter under ``PATTERNED``."""
    return _make(base, PATTERNED, ("q_proj", "k_proj", "v_proj", "o_proj", "up_proj"), expected_size, seed)


def make_torchtune(base: Path, seed: int = 0) -> PeftFolder:
    """A random adapter with torchtune's options."""
    return _make(base, TORCHTUNE, ("q_proj", "down_proj"), lambda _: (4, 2.0), seed)


def _make(
    base: Path, options: dict[str, Any], ends: tuple[str, ...], size: Callable[[str], tuple[int, float]], seed: int
) -> PeftFolder:
    random, layers = np.random.default_rng(seed), {}
    for name, info in read_folder_tensors(base).items():
        module = name.removesuffix(".weight")
        if module.endswith(ends):
            rank, scale = size(module)
            outputs, inputs = info.shape
            a, b = (random.normal(0, 0.2, shape).astype(np.float32) for shape in ((rank, inputs), (outputs, rank)))
            layers[module] = a, b, scale
    return PeftFolder(dict(options), layers)
