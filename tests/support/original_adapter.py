"""Adapters in the original's layout, written from its specification: names of both eras, both sidecars, both spellings."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load_file, save_file

from shared.artifacts.original_layout import ORIGINAL_WEIGHTS, V2_NAME, V3_NAME
from shared.base_models.weights import read_folder_tensors

RANK, ALPHA = 3, 6
PARTS = {
    "self_attn.q_proj": "q", "self_attn.k_proj": "k", "self_attn.v_proj": "v", "self_attn.o_proj": "o",
    "mlp.gate_proj": "gate", "mlp.up_proj": "up", "mlp.down_proj": "down",
}  # fmt: skip
EMBEDDING = "model.embed_tokens.weight"


@dataclass
class OriginalAdapter:
    """An adapter in the original's layout, before it is written.

    Attributes:
        layers: logical name → the base's tensor.
        tensors: by the original's name, without a suffix.
        version: version of the sidecar.
        suffix: suffix that its trainer wrote after ``lora_a``.
        sizes: vocabulary and width of the base.
        changes: to the sidecar.
    """

    layers: dict[str, str]
    tensors: dict[str, NDArray[np.float32]]
    version: int
    suffix: str
    sizes: tuple[int, int]
    changes: dict[str, Any] = field(default_factory=dict)

    def sidecar(self) -> dict[str, Any]:
        """The sidecar's content."""
        content: dict[str, Any] = {
            "version": self.version, "vocab": self.sizes[0], "d_model": self.sizes[1], "rank": RANK, "alpha": ALPHA,
            "layer_order": list(self.layers), "base_key_map": self.layers, "base_model": None,
        }  # fmt: skip
        if self.version == 2:
            content |= {"format": "vox_mens_qlora_lora_only_v2", "embed_key": EMBEDDING}
        else:
            content |= {"format": "vox_populi_adapter", "adapter_method": "qlora"}
            content |= {"quant": {"base_quant": "nf4", "double_quant": True}}
        return content | self.changes

    def write(self, folder: Path) -> Path:
        """Write both files; returns the folder."""
        folder.mkdir(parents=True, exist_ok=True)
        save_file({f"{name}{self.suffix}": value for name, value in self.tensors.items()}, folder / ORIGINAL_WEIGHTS)
        (folder / (V2_NAME if self.version == 2 else V3_NAME)).write_text(json.dumps(self.sidecar()))
        return folder

    def merged_into(self, base: Path) -> dict[str, NDArray[np.float32]]:
        """The base's tensors with W + B·A·alpha / max(rank, 1), as the original's merge computes them."""
        tensors: dict[str, NDArray[np.float32]] = {}
        for path in sorted(base.glob("*.safetensors")):
            tensors |= load_file(path)
        for logical, key in self.layers.items():
            a, b = (self.tensors[f"{logical}.lora_{side}"] for side in "ab")
            tensors[key] = tensors[key] + (b @ a) * np.float32(ALPHA / max(RANK, 1))
        return tensors


def make_original(
    base: Path,
    era: str,
    version: int = 3,
    suffix: str = "",
    *,
    head: bool = True,
    sizes: tuple[int, int],
    seed: int = 0,
) -> OriginalAdapter:
    """A random adapter of a base: of every layer's output projection (era P), or of every linear layer (era F).

    Args:
        base: a folder whose tensors decide the shapes.
        era: ``P`` or ``F``.
        version: version of the sidecar.
        suffix: ``""`` or ``.weight``.
        head: whether there is an ``lm_head``, untrained: its B is zero, on the tied embedding.
        sizes: vocabulary and width of the base.
        seed: seed of the random numbers.
    """
    shapes = {name: info.shape for name, info in read_folder_tensors(base).items()}
    blocks = sorted({int(name.split(".")[2]) for name in shapes if name.startswith("model.layers.")})
    layers: dict[str, str] = {}
    for block in blocks:
        if era == "P":
            layers[f"mid{block}"] = f"model.layers.{block}.self_attn.o_proj.weight"
        else:
            layers |= {f"l{block}.{short}": f"model.layers.{block}.{part}.weight" for part, short in PARTS.items()}
    layers |= {"lm_head": EMBEDDING} if head else {}
    random, tensors = np.random.default_rng(seed), {}
    for logical, key in layers.items():
        outputs, inputs = shapes[key]
        tensors[f"{logical}.lora_a"] = random.normal(0, 0.3, (RANK, inputs)).astype(np.float32)
        b = random.normal(0, 0.3, (outputs, RANK)) if logical != "lm_head" else np.zeros((outputs, RANK))
        tensors[f"{logical}.lora_b"] = b.astype(np.float32)
    return OriginalAdapter(layers, tensors, version, suffix, sizes)
