"""Safetensors headers, and the weight files of a base's folder, chosen as transformers does. No weights are read."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from shared.base_models.config import broken_model
from shared.errors import ArtifactInvalid, Code
from shared.lone_surrogates import has_lone_surrogate

WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
PICKLE_SUFFIXES = frozenset({".bin", ".pt", ".pth", ".ckpt", ".pkl"})
MAX_HEADER_BYTES = 4 << 20
"""Largest size of a header in bytes. A tensor takes about 120 bytes, so this is enough for 30,000 tensors; with
safetensors' own limit of 100 MB, refusing a file could take a minute and gigabytes of memory.
"""
MAX_DIMENSIONS = 64
"""Largest number of dimensions of a tensor, as in NumPy; a weight of a model has at most five."""
MAX_DIMENSION = (1 << 63) - 1
"""Largest size of a dimension, as in PyTorch. A product of numbers with thousands of digits would take minutes."""
DTYPE_BITS = {
    "BOOL": 8, "U8": 8, "I8": 8, "F8_E4M3": 8, "F8_E5M2": 8, "I16": 16, "U16": 16, "F16": 16, "BF16": 16,
    "I32": 32, "U32": 32, "F32": 32, "I64": 64, "U64": 64, "F64": 64,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """One tensor's entry in the header; the position of its data does not count when entries are compared."""

    dtype: str
    shape: tuple[int, ...]
    start: int = field(default=0, compare=False)
    size: int = field(default=0, compare=False)


Tensors = dict[str, TensorInfo]
Header = dict[str, dict[str, object]]


def read_tensors(path: Path) -> Tensors:
    """Return the tensors of a safetensors file by name.

    Raises:
        ArtifactInvalid: ``SAFETENSORS_INVALID``: truncated, oversized or malformed, or data that does not fill the
            file.
    """
    with path.open("rb") as file:
        size = file.seek(0, 2)
        file.seek(0)
        length = int.from_bytes(file.read(8), "little")
        # Checked before the header is read: a forged length must not exhaust the memory.
        if size < 8 or length > min(MAX_HEADER_BYTES, size - 8):
            raise _invalid(path, f"the header says {length} bytes of {size}; at most {MAX_HEADER_BYTES} are read")
        raw = file.read(length)
    header = _parse_header(path, raw)
    _check_metadata(path, header.pop("__metadata__", {}))
    _check_offsets(path, header, size - 8 - length)
    return {name: _tensor(path, name, entry, 8 + length) for name, entry in header.items()}


def read_folder_tensors(folder: Path) -> Tensors:
    """Return the tensors of every ``*.safetensors`` file in a model folder, by name."""
    tensors: Tensors = {}
    for path in sorted(folder.glob("*.safetensors")):
        tensors.update(read_tensors(path))
    return tensors


def find_shards(folder: Path) -> dict[str, list[str] | None]:
    """Return the weight files that transformers loads, name → tensors that the index puts there (None: all).

    Raises:
        ArtifactInvalid: ``MODEL_WEIGHTS_NOT_FOUND``, or ``MODEL_WEIGHTS_PICKLED`` when all weights are pickle.
    """
    if (folder / WEIGHTS).is_file():
        return {WEIGHTS: None}
    if not (folder / INDEX).is_file():
        if pickled := pickled_files(folder):
            raise ArtifactInvalid(
                Code.MODEL_WEIGHTS_PICKLED,
                f"The only weights are pickle ({pickled[0]}), which can run code and is never loaded.",
                remedy=(
                    "Convert them to safetensors where it is safe to open them, or use a revision that has safetensors."
                ),
                param=pickled[0],
            )
        raise broken_model(Code.MODEL_WEIGHTS_NOT_FOUND, f"Neither {WEIGHTS} nor {INDEX} exists", WEIGHTS)
    index = json_object((folder / INDEX).read_bytes(), INDEX, Code.MODEL_WEIGHTS_NOT_FOUND)
    weight_map = index.get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map or not all(isinstance(v, str) for v in weight_map.values()):
        raise broken_model(Code.MODEL_WEIGHTS_NOT_FOUND, f"{INDEX} has no weight_map of tensor to shard", INDEX)
    shards: dict[str, list[str]] = {}
    for tensor, shard in weight_map.items():
        shards.setdefault(shard, []).append(tensor)
    # The index may be hostile: a shard is a plain file name, never a path and never pickle.
    for shard in sorted(shards):
        if Path(shard).name != shard or not shard.endswith(".safetensors") or not (folder / shard).is_file():
            raise broken_model(
                Code.MODEL_WEIGHTS_NOT_FOUND, f"{INDEX} names the shard {shard!r}, which does not exist", shard
            )
    return {shard: shards[shard] for shard in sorted(shards)}


def pickled_files(folder: Path) -> list[str]:
    """Return the files of a folder that may be pickle, without opening them."""
    return sorted(path.name for path in folder.iterdir() if path.suffix.lower() in PICKLE_SUFFIXES)


def json_object(raw: bytes, name: str, code: Code) -> dict[str, Any]:
    """Parse a JSON object.

    Raises:
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
    """Return the tensors by name; a tensor that is missing in the index's shard is left out."""
    tensors: Tensors = {}
    for shard, names in shards.items():
        stored = read_tensors(folder / shard)
        tensors |= stored if names is None else {name: stored[name] for name in names if name in stored}
    return tensors


def _parse_header(path: Path, raw: bytes) -> Header:
    try:
        # Decoded here, because json would also accept UTF-16 and a byte-order mark.
        header = json.loads(raw.decode(), object_pairs_hook=_unique, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise _invalid(path, f"the header is not JSON ({error})") from None
    # Some writers use this to mean "no metadata", and the format's own reader accepts it.
    if isinstance(header, dict) and header.get("__metadata__", {}) is None:
        del header["__metadata__"]
    if not isinstance(header, dict) or not all(isinstance(entry, dict) for entry in header.values()):
        raise _invalid(path, "the header is not an object of tensors")
    if has_lone_surrogate(raw):
        raise _invalid(path, "a string in the header has an unpaired surrogate")
    return header


def _unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
    # Readers disagree on which of two entries with the same name is valid.
    unique = dict(pairs)
    if len(unique) != len(pairs):
        raise ValueError("a name occurs twice in an object")
    return unique


def _refuse_constant(name: str) -> object:
    raise ValueError(f"{name} is not a JSON value")


def _check_metadata(path: Path, metadata: dict[str, object]) -> None:
    if not all(isinstance(value, str) for value in metadata.values()):
        raise _invalid(path, "a metadata value is not a string")


def _check_offsets(path: Path, header: Header, data_bytes: int) -> None:
    """Check that the tensors' data are contiguous and fill the file: no gap, no overlap, nothing after them."""
    offsets = []
    for name, entry in header.items():
        match entry.get("data_offsets"):
            case [int(start), int(end)] if _are_integers([start, end]):
                offsets.append((start, end))
            case _:
                raise _invalid(path, f"tensor {name!r} has no data offsets")
    position = 0
    for start, end in sorted(offsets):
        if start != position or end < start:
            raise _invalid(path, f"its data has a gap or an overlap at byte {position}")
        position = end
    if position != data_bytes:
        raise _invalid(path, f"its tensors take {position} bytes of {data_bytes}")


def _tensor(path: Path, name: str, entry: dict[str, object], data_start: int) -> TensorInfo:
    match entry:
        case {"dtype": str(dtype), "shape": list(shape), "data_offsets": [int(start), int(end)]} if (
            dtype in DTYPE_BITS
            and len(shape) <= MAX_DIMENSIONS
            and _are_integers([*shape, start, end])
            and all(0 <= n <= MAX_DIMENSION for n in shape)
        ):
            info = TensorInfo(dtype, tuple(shape), data_start + start, end - start)
        case _:
            raise _invalid(path, f"tensor {name!r} has a malformed entry")
    if (end - start) * 8 != math.prod(info.shape) * DTYPE_BITS[dtype]:
        raise _invalid(path, f"tensor {name!r} has {end - start} bytes, which do not fit its shape")
    return info


def _are_integers(values: Sequence[object]) -> bool:
    # JSON's true is an int to Python.
    return all(type(value) is int for value in values)


def _invalid(path: Path, reason: str) -> ArtifactInvalid:
    return ArtifactInvalid(
        Code.SAFETENSORS_INVALID,
        f"{path.name} is not a sound safetensors file: {reason}.",
        remedy="Write the file again; never edit one by hand.",
        param=path.name,
    )
