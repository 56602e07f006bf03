"""A base of two shards with every kind of tensor, and an adapter for it: random, small, and made without a model class."""

from __future__ import annotations

import json
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

import worker.libraries  # noqa: F401 — first: without it bitsandbytes loads torch's compiler, 2 s
from bench.merging.made_manifest import made_manifest
from shared.artifacts.manifests import WEIGHTS_NAME, AdapterManifest, peft_keys
from worker.merging.model_folder import FolderMerge

RANK, ALPHA = 5, 7
LINEAR, WIDE, CONV1D = "model.layers.0.mlp.up_proj.weight", "lm_head.weight", "h.0.attn.c_attn.weight"
SHAPES = {LINEAR: (48, 32), WIDE: (700, 32), CONV1D: (32, 96)}
NORM, POSITIONS, SCALAR = "model.norm.weight", "model.positions", "model.scale"
SHARDS = {
    "model-00001-of-00002.safetensors": [LINEAR, NORM, POSITIONS],
    "model-00002-of-00002.safetensors": [WIDE, CONV1D, SCALAR],
}


@dataclass
class MergeInputs:
    """The two folders of a merge, and their contents."""

    base: Path
    adapter: Path
    manifest: AdapterManifest

    def merge(
        self, target: Path, dtype: str | None = None, quantised: AbstractSet[str] = frozenset(), key: str = ""
    ) -> dict[str, str]:
        """Merge into a folder; return the digests of the written files."""
        return FolderMerge(self.base, self.adapter, self.manifest, target, dtype, quantised).run(key)

    def base_tensors(self) -> dict[str, torch.Tensor]:
        return load_folder(self.base)

    def delta(self, key: str) -> torch.Tensor:
        """alpha/rank · B·A in float64, oriented as the base stores the tensor."""
        a, b = (load_file(self.adapter / WEIGHTS_NAME)[name].double() for name in peft_keys(key))
        delta = (b @ a) * (ALPHA / RANK)
        return delta.T if key == CONV1D else delta


def load_folder(folder: Path) -> dict[str, torch.Tensor]:
    """Every tensor of a model folder."""
    return {key: value for path in sorted(folder.glob("*.safetensors")) for key, value in load_file(path).items()}


def made_inputs(folder: Path) -> MergeInputs:
    """Contents of the folders that :func:`make_inputs` has written."""
    return MergeInputs(
        folder / "base",
        folder / "adapter",
        made_manifest(list(SHAPES), vocab=700, d_model=32, rank=RANK, alpha=ALPHA),
    )


def make_inputs(folder: Path) -> MergeInputs:
    """Write a bfloat16 base with a float32 norm, an integer tensor and a scalar, and a float32 adapter."""
    made = made_inputs(folder)
    random = torch.Generator().manual_seed(3)
    tensors = {key: torch.randn(shape, generator=random).bfloat16() for key, shape in SHAPES.items()}
    tensors |= {NORM: torch.randn(32, generator=random), POSITIONS: torch.arange(7), SCALAR: torch.tensor(0.1)}
    made.base.mkdir()
    for shard, names in SHARDS.items():
        save_file({name: tensors[name] for name in names}, made.base / shard, metadata={"format": "pt"})
    index = {
        "metadata": {"total_size": 1},
        "weight_map": {key: shard for shard, keys in SHARDS.items() for key in keys},
    }
    (made.base / "model.safetensors.index.json").write_text(json.dumps(index))
    (made.base / "config.json").write_text(json.dumps({"model_type": "qwen3", "dtype": "bfloat16"}))
    (made.base / "tokenizer.json").write_text("{}")
    lora = {}
    for key, shape in SHAPES.items():
        outputs, features = shape[::-1] if key == CONV1D else shape
        name_a, name_b = peft_keys(key)
        lora[name_a] = torch.randn((RANK, features), generator=random) * 0.1
        lora[name_b] = torch.randn((outputs, RANK), generator=random) * 10 ** torch.randn(
            (outputs, 1), generator=random
        )
    made.adapter.mkdir()
    save_file(lora, made.adapter / WEIGHTS_NAME)
    return made
