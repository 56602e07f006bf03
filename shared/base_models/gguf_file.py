"""Header of a GGUF file, read within limits: architecture, metadata, tensors and how they are stored. No weights are
read.

The libraries that read the format trust its counts: a few bytes can make them take minutes and gigabytes. So a file is
read here first; a header that passes is small, its tensors are within the file, and they end where the file does.
"""

from __future__ import annotations

import math
import struct
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from shared.errors import ArtifactInvalid, Code

MAGIC = b"GGUF"
VERSIONS = (2, 3)
MAX_HEADER_BYTES = 64 << 20
"""Largest number of bytes before the weights. A vocabulary of 260,000 tokens with its merges takes about 12 MB."""
# A file is untrusted: its counts are checked before anything of that size is read.
MAX_FIELDS = 4096
MAX_TENSORS = 1 << 15
MAX_ELEMENTS = 1 << 21
"""Largest number of elements of an array: the largest vocabularies have 260,000 tokens and 520,000 merges."""
MAX_STRING_BYTES = 1 << 20
"""Largest number of bytes of a string; chat templates are the longest."""
# GGML's own limit, and the alignment of files that name none.
MAX_DIMENSIONS = 4
DEFAULT_ALIGNMENT = 32

_FORMATS = {0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?", 10: "<Q", 11: "<q", 12: "<d"}
_STRING, _ARRAY = 8, 9

Value = int | float | bool | str


@dataclass(frozen=True, slots=True)
class GgufTensor:
    """One tensor: number of elements, type of its blocks, and its bytes in the file."""

    elements: int
    stored_type: str
    size: int


@dataclass(frozen=True, slots=True)
class GgufHeader:
    """A GGUF file's header.

    Attributes:
        architecture: llama.cpp's name of the architecture, e.g. ``llama``.
        metadata: numbers and strings by key; for an array, the number of its elements.
        tensors: the tensors by name.
    """

    architecture: str
    metadata: Mapping[str, Value]
    tensors: Mapping[str, GgufTensor]

    @property
    def stored_type(self) -> str:
        """Type of block that stores most weights, e.g. ``Q4_1``."""
        counts: Counter[str] = Counter()
        for tensor in self.tensors.values():
            counts[tensor.stored_type] += tensor.elements
        return counts.most_common(1)[0][0]

    @property
    def elements(self) -> int:
        """Number of elements of all tensors."""
        return sum(tensor.elements for tensor in self.tensors.values())


def read_gguf_header(path: Path) -> GgufHeader:
    """Read the header of a GGUF file.

    Raises:
        ArtifactInvalid: ``GGUF_INVALID``: the file is not GGUF, is damaged or truncated, or exceeds a limit of this
            module; ``GGUF_UNSUPPORTED``: it is one of several files of a model, or has weights in blocks of an unknown
            type.
    """
    with path.open("rb") as file:
        size = file.seek(0, 2)
        file.seek(0)
        reader = _Reader(file, path)
        if reader.take(4) != MAGIC:
            raise invalid(path, "it does not begin as a GGUF file does")
        version = reader.number("<I")
        if version not in VERSIONS:
            raise invalid(path, f"its version is {version}, not {' or '.join(map(str, VERSIONS))}")
        tensors, fields = reader.count(MAX_TENSORS, "tensors"), reader.count(MAX_FIELDS, "metadata fields")
        metadata: dict[str, Value] = {}
        for _ in range(fields):
            key = reader.string()
            metadata[key] = reader.value(reader.number("<I"))
        entries = [reader.tensor() for _ in range(tensors)]
        table_end = reader.position
    architecture = metadata.get("general.architecture")
    if not isinstance(architecture, str) or not entries:
        raise invalid(path, "it does not name an architecture, or does not contain tensors")
    if metadata.get("split.count", 1) not in (0, 1):
        raise unsupported(path, "is one of several files of a model", "Join them with llama.cpp's gguf-split --merge.")
    start = _data_start(path, metadata, table_end)
    return GgufHeader(architecture, metadata, _tensors(path, entries, start, size))


def invalid(path: Path, reason: str) -> ArtifactInvalid:
    """Return the error for a damaged or forged file; ``reason`` has no full stop."""
    remedy = "Download the file again, and compare its SHA-256 with the publisher's."
    return ArtifactInvalid(
        Code.GGUF_INVALID, f"{path.name} is not a sound GGUF file: {reason}.", remedy=remedy, param=path.name
    )


def unsupported(path: Path, reason: str, remedy: str = "") -> ArtifactInvalid:
    """Return the error for a valid file whose conversion would give a different model; ``reason`` has no full stop."""
    remedy = remedy or "Use the repository with the model's safetensors: `mens base add NAME --hub REPO`."
    return ArtifactInvalid(Code.GGUF_UNSUPPORTED, f"{path.name} {reason}.", remedy=remedy, param=path.name)


_Entry = tuple[str, tuple[int, ...], int, int]
"""Name, dimensions, type's number, offset from the first weight."""


class _Reader:
    """Reads a header sequentially, and stops at the limits or at the end of the file."""

    def __init__(self, file: BinaryIO, path: Path) -> None:
        self._file, self._path = file, path
        self.position = 0

    def take(self, count: int) -> bytes:
        """Read the next bytes."""
        self.position += count
        if self.position > MAX_HEADER_BYTES:
            raise invalid(self._path, f"its header has more than {MAX_HEADER_BYTES} bytes")
        data = self._file.read(count)
        if len(data) < count:
            raise invalid(self._path, "it ends within its header")
        return data

    def number(self, layout: str) -> int:
        """Read one integer."""
        return int(struct.unpack(layout, self.take(struct.calcsize(layout)))[0])

    def count(self, limit: int, noun: str) -> int:
        """Read a number of elements, up to a limit."""
        elements = self.number("<Q")
        if elements > limit:
            raise invalid(self._path, f"it claims to have {elements} {noun}; at most {limit} are read")
        return elements

    def string(self) -> str:
        """Read a UTF-8 string."""
        try:
            return self.take(self.count(MAX_STRING_BYTES, "bytes in one string")).decode()
        except UnicodeDecodeError:
            raise invalid(self._path, "a string of its metadata is not UTF-8") from None

    def value(self, kind: int) -> Value:
        """Read a field's value; for an array, return the number of its elements."""
        if kind in _FORMATS:
            number: Value = struct.unpack(_FORMATS[kind], self.take(struct.calcsize(_FORMATS[kind])))[0]
            return number
        if kind == _STRING:
            return self.string()
        if kind != _ARRAY:
            raise invalid(self._path, f"a field of its metadata has the unknown type {kind}")
        element, count = self.number("<I"), self.count(MAX_ELEMENTS, "elements in one array")
        if element in _FORMATS:
            self.take(count * struct.calcsize(_FORMATS[element]))
        elif element == _STRING:
            for _ in range(count):
                self.take(self.count(MAX_STRING_BYTES, "bytes in one string"))
        else:
            raise invalid(self._path, f"an array of its metadata has elements of the type {element}")
        return count

    def tensor(self) -> _Entry:
        """Read an entry of the table of tensors."""
        name, dimensions = self.string(), self.number("<I")
        if not 0 < dimensions <= MAX_DIMENSIONS:
            raise invalid(self._path, f"the tensor {name[:80]!r} has {dimensions} dimensions")
        shape = tuple(self.number("<Q") for _ in range(dimensions))
        return name, shape, self.number("<I"), self.number("<Q")


def _data_start(path: Path, metadata: Mapping[str, Value], table_end: int) -> int:
    """Return the offset of the weights: the table's end, aligned."""
    alignment = metadata.get("general.alignment", DEFAULT_ALIGNMENT)
    if type(alignment) is not int or not 0 < alignment <= 1 << 20 or alignment & (alignment - 1):
        raise invalid(path, f"its alignment is {str(alignment)[:20]!r}, not a power of two")
    return -(-table_end // alignment) * alignment


def _tensors(path: Path, entries: list[_Entry], start: int, size: int) -> dict[str, GgufTensor]:
    """Return the tensors by name; each must be within the file."""
    from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType

    tensors: dict[str, GgufTensor] = {}
    for name, shape, kind, offset in entries:
        try:
            stored = GGMLQuantizationType(kind)
        except ValueError:
            raise unsupported(path, f"has weights in blocks of the unknown type {kind}") from None
        block, block_bytes = GGML_QUANT_SIZES[stored]
        elements = math.prod(shape)
        if name in tensors or shape[0] % block:
            raise invalid(path, f"the tensor {name[:80]!r} occurs twice, or has a width that its blocks do not divide")
        tensor = GgufTensor(elements, stored.name, elements // block * block_bytes)
        if start + offset + tensor.size > size:
            raise invalid(path, f"it is truncated: {name[:80]!r} ends at byte {start + offset + tensor.size} of {size}")
        tensors[name] = tensor
    return tensors
