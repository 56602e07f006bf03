"""The weight files of a base model folder, as transformers would choose them; only their headers are read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from shared.errors import ArtifactInvalid, Code
from shared.layout import TensorInfo, read_tensors

WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
PICKLE_SUFFIXES = frozenset({".bin", ".pt", ".pth", ".ckpt", ".pkl"})

Tensors = dict[str, TensorInfo]


def find_shards(folder: Path) -> dict[str, list[str] | None]:
    """The weight files that transformers loads, name → tensors that the index puts there (None: all).

    Raises:
        ArtifactInvalid: ``MODEL_WEIGHTS_NOT_FOUND``, or ``MODEL_WEIGHTS_PICKLED`` when there is only pickle.
    """
    if (folder / WEIGHTS).is_file():
        return {WEIGHTS: None}
    if not (folder / INDEX).is_file():
        raise _no_weights(folder)
    index = json_object((folder / INDEX).read_bytes(), INDEX, Code.MODEL_WEIGHTS_NOT_FOUND)
    shards: dict[str, list[str] | None] = {}
    for tensor, shard in _weight_map(index).items():
        names = shards.setdefault(shard, [])
        assert names is not None
        names.append(tensor)
    for shard in sorted(shards):
        if Path(shard).name != shard or not shard.endswith(".safetensors") or not (folder / shard).is_file():
            raise broken_model(
                Code.MODEL_WEIGHTS_NOT_FOUND, f"{INDEX} names the shard {shard!r}, which is not there", shard
            )
    return dict(sorted(shards.items()))


def _weight_map(index: dict[str, Any]) -> dict[str, str]:
    weight_map = index.get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map or not all(isinstance(v, str) for v in weight_map.values()):
        raise broken_model(Code.MODEL_WEIGHTS_NOT_FOUND, f"{INDEX} has no weight_map of tensor to shard", INDEX)
    return weight_map


def _no_weights(folder: Path) -> ArtifactInvalid:
    if pickled := pickled_files(folder):
        return ArtifactInvalid(
            Code.MODEL_WEIGHTS_PICKLED,
            f"The only weights are pickle ({pickled[0]}), which can run code and is never loaded.",
            remedy="Convert them to safetensors where it is safe to open them, or use a revision that has safetensors.",
            param=pickled[0],
        )
    return broken_model(Code.MODEL_WEIGHTS_NOT_FOUND, f"There is neither {WEIGHTS} nor {INDEX}", WEIGHTS)


def pickled_files(folder: Path) -> list[str]:
    """Files of a folder that may be pickle: never opened."""
    return sorted(path.name for path in folder.iterdir() if path.suffix.lower() in PICKLE_SUFFIXES)


def json_object(raw: bytes, name: str, code: Code) -> dict[str, Any]:
    """Raises:
    ArtifactInvalid: the given code, when the bytes are not a JSON object.
    """
    try:
        value = json.loads(raw)
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise broken_model(code, f"{name} is not a JSON object", name)
    return value


def read_shards(folder: Path, shards: dict[str, list[str] | None]) -> Tensors:
    """Tensors by name; one that the index puts into a shard that does not hold it is left out."""
    tensors: Tensors = {}
    for shard, names in shards.items():
        found = read_tensors(folder / shard)
        tensors |= found if names is None else {name: found[name] for name in names if name in found}
    return tensors


def broken_model(code: Code, reason: str, param: str, **details: object) -> ArtifactInvalid:
    """The error for a folder that is not a whole, consistent model; ``reason`` has no full stop."""
    remedy = "Fetch the whole model folder again, and check that config and weights belong together."
    return ArtifactInvalid(code, f"{reason}.", remedy=remedy, param=param, details=details)
