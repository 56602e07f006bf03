"""Safetensors shards, read and written piece by piece: no file is ever in memory as a whole."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType

import torch

from shared.base_models.weights import TensorInfo

TORCH_DTYPES = {"F32": torch.float32, "BF16": torch.bfloat16, "F16": torch.float16}
"""Dtypes whose tensors can be merged or converted; a tensor of another dtype is copied unchanged."""
STORED_DTYPES = {"float32": "F32", "bfloat16": "BF16", "float16": "F16"}
"""torch's name, as used in a contract → safetensors' name."""
COPY_BYTES = 8 << 20


class ShardReader:
    """Reads a base's shard by offset. Its pages are not mapped, so only the tensor being merged is in memory."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("rb", buffering=0)

    def __enter__(self) -> ShardReader:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()

    def elements(self, info: TensorInfo, start: int, stop: int) -> torch.Tensor:
        """Return elements ``start`` to ``stop`` of a tensor, flat and in its own dtype, which is one of
        ``TORCH_DTYPES``.
        """
        dtype = TORCH_DTYPES[info.dtype]
        if start == stop:
            return torch.empty(0, dtype=dtype)
        raw = self._read(info.start + start * dtype.itemsize, (stop - start) * dtype.itemsize)
        return torch.frombuffer(raw, dtype=dtype)

    def tensor(self, info: TensorInfo) -> torch.Tensor:
        """Return a whole tensor in its own dtype and shape."""
        return self.elements(info, 0, math.prod(info.shape)).view(info.shape)

    def pieces(self, info: TensorInfo) -> Iterator[bytearray]:
        """Yield a tensor's raw bytes, some megabytes at a time."""
        for offset in range(0, info.size, COPY_BYTES):
            yield self._read(info.start + offset, min(COPY_BYTES, info.size - offset))

    def _read(self, offset: int, size: int) -> bytearray:
        self._file.seek(offset)
        raw, done = bytearray(size), 0
        # A single read returns at most 2 GiB.
        while done < size and (count := self._file.readinto(memoryview(raw)[done:])):
            done += count
        if done < size:
            raise OSError(f"{self._file.name} ends {size - done} bytes before its header says")
        return raw


class ShardWriter:
    """Writes a shard front to back and hashes it meanwhile; the file gets its name once it is complete."""

    def __init__(self, path: Path, tensors: dict[str, TensorInfo]) -> None:
        """Start the file.

        Args:
            tensors: tensors by name, in the order in which their data will be written; their offsets are ignored.
        """
        self._path, self._partial = path, path.with_name(f"{path.name}.partial")
        self._sha256 = hashlib.sha256()
        self._file = self._partial.open("wb")
        self.write(header(tensors))

    def __enter__(self) -> ShardWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()
        if error is None:
            self._partial.replace(self._path)
        else:
            self._partial.unlink(missing_ok=True)

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Append bytes of the header or of the next tensor."""
        self._sha256.update(data)
        self._file.write(data)

    def write_tensor(self, values: torch.Tensor) -> None:
        """Append a tensor's elements, in the order of its dimensions."""
        self.write(values.contiguous().view(-1).view(torch.uint8).numpy().data)

    @property
    def digest(self) -> str:
        """SHA-256 of the bytes written so far, 64 hex digits."""
        return self._sha256.hexdigest()


def header(tensors: dict[str, TensorInfo]) -> bytes:
    """Return a safetensors header: 8 bytes of length, then JSON padded with spaces to a multiple of 8 bytes."""
    entries: dict[str, object] = {"__metadata__": {"format": "pt"}}
    position = 0
    for name, info in tensors.items():
        end = position + info.size
        entries[name] = {"dtype": info.dtype, "shape": list(info.shape), "data_offsets": [position, end]}
        position = end
    raw = json.dumps(entries, separators=(",", ":"), ensure_ascii=False).encode()
    raw += b" " * (-len(raw) % 8)
    return len(raw).to_bytes(8, "little") + raw
