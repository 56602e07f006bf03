"""Safetensors headers: names, dtypes and shapes of a file's tensors without reading one weight.

The format is the safetensors specification's: 8 bytes little-endian header length, a JSON header, then the data. This
reader needs no GPU stack, so the control plane and the serving tier can judge a file before any library maps it.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path

from shared.errors import ArtifactInvalid, Code

MAX_HEADER_BYTES = 100_000_000
DTYPE_BITS = {
    "BOOL": 8, "U8": 8, "I8": 8, "F8_E4M3": 8, "F8_E5M2": 8, "I16": 16, "U16": 16, "F16": 16, "BF16": 16,
    "I32": 32, "U32": 32, "F32": 32, "I64": 64, "U64": 64, "F64": 64,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """One tensor's entry in the header."""

    dtype: str
    shape: tuple[int, ...]


def read_tensors(path: Path) -> dict[str, TensorInfo]:
    """Tensors of a safetensors file by name.

    Raises:
        ArtifactInvalid: ``SAFETENSORS_INVALID``: truncated, oversized or malformed, or data that does not fill the file.
    """
    with path.open("rb") as file:
        size = file.seek(0, 2)
        file.seek(0)
        length = int.from_bytes(file.read(8), "little")
        if size < 8 or length > min(MAX_HEADER_BYTES, size - 8):
            raise _invalid(path, f"the header says {length} bytes, the file has {size}")
        header = _parse(path, file.read(length))
    _check_coverage(path, header, size - 8 - length)
    return {name: _tensor(path, name, entry) for name, entry in header.items()}


def read_folder_tensors(folder: Path) -> dict[str, TensorInfo]:
    """Tensors of every ``*.safetensors`` file in a model folder, by name."""
    tensors: dict[str, TensorInfo] = {}
    for path in sorted(folder.glob("*.safetensors")):
        tensors.update(read_tensors(path))
    return tensors


def _parse(path: Path, raw: bytes) -> dict[str, dict[str, object]]:
    try:
        header = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise _invalid(path, f"the header is not JSON ({error})") from None
    if not isinstance(header, dict) or not all(isinstance(entry, dict) for entry in header.values()):
        raise _invalid(path, "the header is not an object of tensors")
    header.pop("__metadata__", None)
    return header


def _check_coverage(path: Path, header: dict[str, dict[str, object]], data_bytes: int) -> None:
    """The tensors' data follow one another and fill the file: no gap, no overlap, nothing behind them."""
    position = 0
    for start, end in sorted(_offsets(path, name, entry) for name, entry in header.items()):
        if start != position or end < start:
            raise _invalid(path, f"its data has a gap or an overlap at byte {position}")
        position = end
    if position != data_bytes:
        raise _invalid(path, f"its tensors take {position} bytes of {data_bytes}")


def _offsets(path: Path, name: str, entry: dict[str, object]) -> tuple[int, int]:
    match entry.get("data_offsets"):
        case [int(start), int(end)]:
            return start, end
    raise _invalid(path, f"tensor {name!r} has no data offsets")


def _tensor(path: Path, name: str, entry: dict[str, object]) -> TensorInfo:
    match entry:
        case {"dtype": str(dtype), "shape": list(shape), "data_offsets": [int(start), int(end)]} if (
            dtype in DTYPE_BITS and all(isinstance(n, int) and n >= 0 for n in shape)
        ):
            info = TensorInfo(dtype, tuple(shape))
        case _:
            raise _invalid(path, f"tensor {name!r} has a malformed entry")
    if (end - start) * 8 != math.prod(info.shape) * DTYPE_BITS[dtype]:
        raise _invalid(path, f"tensor {name!r} has {end - start} bytes, which do not fit its shape")
    return info


def _invalid(path: Path, reason: str) -> ArtifactInvalid:
    return ArtifactInvalid(
        Code.SAFETENSORS_INVALID,
        f"{path.name} is not a sound safetensors file: {reason}.",
        remedy="Write the file again; never edit one by hand.",
        param=path.name,
    )
