"""Merge in the original system's format: an adapter in that layout is folded into the tensors that it names, and only
these are written, to one float32 file.

W' = W + (B·A)·alpha / max(rank, 1), computed as every merge here is (`exact_product.py`): the same bytes everywhere,
within one rounding of the original's float32. Everything is checked, in the original's order, before a byte is written,
and each refusal has a code.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from shared.artifacts.original_layout import (
    MAX_SIDECAR_BYTES,
    SUFFIXES,
    SidecarV2,
    SidecarV3,
    parse_sidecar,
    refuse_bin,
)
from shared.base_models.families import is_transposed
from shared.base_models.weights import TensorInfo, Tensors, read_tensors
from shared.errors import ArtifactInvalid, Code, InvalidRequest, NotFound
from shared.hashing import digest_file
from worker.merging.exact_product import ScaledProduct
from worker.merging.shards import TORCH_DTYPES, ShardReader, ShardWriter

PIECE_ELEMENTS = 1 << 18
"""Number of elements computed at a time."""
FAMILY_PREFIXES = {
    "GPT-2": ("h.", "transformer.h.", "wte.", "transformer.wte."),
    "Qwen3.5": ("model.language_model.",),
    "Qwen2": ("model.layers.", "model.embed_tokens."),
}
"""Prefixes of a family's tensors in the base, by which the original distinguishes families; ``lm_head.weight`` occurs
in any."""


@dataclass(frozen=True, slots=True)
class SubsetMerge:
    """One subset merge in the original's format.

    Attributes:
        base_shards: the base's safetensors files, or those that hold the tensors that the adapter names.
        adapter: ``candle_qlora_adapter.safetensors``.
        meta: the sidecar, version 2 or 3.
        output: the file to write; it must not exist yet.
    """

    base_shards: tuple[Path, ...]
    adapter: Path
    meta: Path
    output: Path

    def run(self) -> SubsetMerged:
        """Check everything, then write the file, which gets its name once it is complete.

        Raises:
            InvalidRequest: ``MERGE_NO_BASE_SHARDS``, ``REQUEST_INVALID``: the output exists, or its folder cannot be
                created.
            NotFound: ``MERGE_BASE_SHARD_NOT_FOUND``, ``MERGE_ADAPTER_NOT_FOUND``, ``MERGE_META_NOT_FOUND``.
            ArtifactInvalid: ``MERGE_META_FORMAT``, ``MERGE_MIXED_FAMILIES``, ``MERGE_BASE_DIGEST_MISMATCH``,
                ``MERGE_ADAPTER_TENSOR_MISSING``, ``MERGE_DTYPE``, ``MERGE_BASE_KEY_NOT_FOUND``, ``MERGE_SHAPE``,
                ``MERGE_NOT_FINITE``.
        """
        self._check_files()
        sidecar = read_sidecar(self.meta)
        layers = {name: sidecar.base_key_map[name] for name in sidecar.layer_order if name in sidecar.base_key_map}
        refuse_mixed_families(layers.values())
        self._check_digests(sidecar)
        stored = read_tensors(self.adapter)
        located = {key: (path, info) for path in reversed(self.base_shards) for key, info in read_tensors(path).items()}
        merged = {}
        for logical, key in layers.items():
            if key in merged:
                raise _meta_format(f"{logical} is the second layer on {key}", "base_key_map")
            merged[key] = checked_layer(logical, key, sidecar.rank, stored, located)
        if not merged:
            raise _meta_format("no layer of layer_order is in base_key_map", "layer_order")
        scale = sidecar.alpha / max(sidecar.rank, 1)
        written = {key: _as_float32(located[key][1]) for key in sorted(merged)}
        with ShardReader(self.adapter) as adapter, ShardWriter(self.output, written) as out:
            for key in written:
                a, b = (adapter.tensor(info) for info in merged[key])
                product = ScaledProduct(a.T, b.T, scale) if is_transposed(key) else ScaledProduct(b, a, scale)
                _write_sum(key, *located[key], product, out)
            digest = out.digest
        return SubsetMerged(digest, list(layers), [name for name in sidecar.layer_order if name not in layers])

    def _check_files(self) -> None:
        if not self.base_shards:
            raise InvalidRequest(
                Code.MERGE_NO_BASE_SHARDS,
                "The base to merge into is missing.",
                remedy="Name each safetensors file of the base with --base-shard.",
                param="base_shard",
            )
        for shard in self.base_shards:
            _require(shard, Code.MERGE_BASE_SHARD_NOT_FOUND, "base_shard", "Fetch the base again, or correct the path.")
        _require(self.adapter, Code.MERGE_ADAPTER_NOT_FOUND, "adapter", "Give the original's safetensors file.")
        for path, param in ((self.adapter, "adapter"), *((shard, "base_shard") for shard in self.base_shards)):
            refuse_bin(path.name, param)
        _require(self.meta, Code.MERGE_META_NOT_FOUND, "meta", "Give the sidecar that was written with the adapter.")
        if self.output.exists():
            raise InvalidRequest(
                Code.REQUEST_INVALID,
                f"{self.output} already exists, and a merge does not overwrite files.",
                remedy="Name another output.",
                param="output",
            )
        self._make_folder()

    def _make_folder(self) -> None:
        try:
            self.output.parent.mkdir(parents=True, exist_ok=True)
        except (FileExistsError, NotADirectoryError):
            raise InvalidRequest(
                Code.REQUEST_INVALID,
                f"{self.output.parent} cannot be created: it, or one of its parents, is a file.",
                remedy="Name another output.",
                param="output",
            ) from None

    def _check_digests(self, sidecar: SidecarV2 | SidecarV3) -> None:
        """Compare the shards with the digests that were recorded at training; adapters of the original system have
        none.
        """
        recorded = sidecar.base_digests or {}
        for shard in self.base_shards:
            if shard.name in recorded and digest_file(shard) != recorded[shard.name]:
                raise ArtifactInvalid(
                    Code.MERGE_BASE_DIGEST_MISMATCH,
                    f"{shard.name} is not the file that the adapter was trained on.",
                    remedy="Merge into the base that it was trained on.",
                    param=shard.name,
                )


@dataclass(frozen=True, slots=True)
class SubsetMerged:
    """SHA-256 of the file, the layers in it, and the layers that were left out because the sidecar's map does not
    contain them.
    """

    digest: str
    layers: list[str]
    skipped: list[str]


def read_sidecar(path: Path) -> SidecarV2 | SidecarV3:
    """Read the sidecar of either version.

    Raises:
        ArtifactInvalid: ``MERGE_META_FORMAT``.
    """
    try:
        with path.open("rb") as file:
            return parse_sidecar(file.read(MAX_SIDECAR_BYTES + 1))
    except ArtifactInvalid as error:
        raise _meta_format(error.message, error.param) from None


def refuse_mixed_families(keys: Iterable[str]) -> None:
    """Refuse base tensors of more than one family.

    Raises:
        ArtifactInvalid: ``MERGE_MIXED_FAMILIES``, with the number of tensors of each.
    """
    counts = Counter(family for key in keys if (family := family_of(key)))
    if len(counts) > 1:
        listed = ", ".join(f"{count} of {family}" for family, count in sorted(counts.items()))
        raise ArtifactInvalid(
            Code.MERGE_MIXED_FAMILIES,
            f"base_key_map names tensors of several model families: {listed}.",
            remedy="Merge each adapter into the base that it was trained on; correct the sidecar's base_key_map.",
            param="base_key_map",
        )


def family_of(key: str) -> str | None:
    """Return the family that a base tensor's name belongs to; None if it could belong to any."""
    return next((family for family, prefixes in FAMILY_PREFIXES.items() if key.startswith(prefixes)), None)


def checked_layer(
    logical: str, key: str, rank: int, stored: Tensors, located: Mapping[str, tuple[Path, TensorInfo]]
) -> tuple[TensorInfo, TensorInfo]:
    """Return A and B of a layer, after checking that they fit their base tensor.

    Raises:
        ArtifactInvalid: ``MERGE_ADAPTER_TENSOR_MISSING``, ``MERGE_DTYPE``, ``MERGE_BASE_KEY_NOT_FOUND``, ``MERGE_SHAPE``.
    """
    matrices = []
    for side in ("lora_a", "lora_b"):
        name = next((name for suffix in SUFFIXES if (name := f"{logical}.{side}{suffix}") in stored), None)
        if name is None:
            raise _refused(
                Code.MERGE_ADAPTER_TENSOR_MISSING, logical, f"The adapter is missing {logical}.{side}",
                "Merge the complete adapter, with its own sidecar.",
            )  # fmt: skip
        if stored[name].dtype != "F32":
            raise _refused(
                Code.MERGE_DTYPE, name, f"{name} is stored as {stored[name].dtype}; the original's adapters are F32",
                "Merge the adapter as it was trained.",
            )  # fmt: skip
        matrices.append(stored[name])
    if key not in located:
        raise _refused(
            Code.MERGE_BASE_KEY_NOT_FOUND, key, f"{key}, the tensor of {logical}, is not in any of the base's files",
            "Name the shard that holds it with --base-shard too.",
        )  # fmt: skip
    a, b = matrices
    base = located[key][1]
    if base.dtype not in TORCH_DTYPES:
        raise _refused(
            Code.MERGE_DTYPE, key, f"{key} of the base is stored as {base.dtype}; only F32, F16 and BF16 can be merged",
            "Merge into the base in full precision.",
        )  # fmt: skip
    fits = len(a.shape) == len(b.shape) == 2 and a.shape[0] == b.shape[1] == rank
    shape = (b.shape[0], a.shape[1]) if fits else ()
    if not fits or base.shape != (shape[::-1] if is_transposed(key) else shape):
        raise _refused(
            Code.MERGE_SHAPE, key, f"{logical} has A {a.shape} and B {b.shape} of rank {rank}, and {key} is {base.shape}",
            "Merge into the base that the adapter was trained on.",
        )  # fmt: skip
    return a, b


def _write_sum(key: str, path: Path, info: TensorInfo, product: ScaledProduct, out: ShardWriter) -> None:
    columns, count = info.shape[1], math.prod(info.shape)
    step = max(1, PIECE_ELEMENTS // columns) * columns
    with ShardReader(path) as base:
        for start in range(0, count, step):
            stop = min(count, start + step)
            values = base.elements(info, start, stop).view(-1, columns).double()
            total = product.rows(start // columns, stop // columns).add_(values).float()
            if not total.isfinite().all():
                raise _refused(
                    Code.MERGE_NOT_FINITE, key, f"{key} would hold a number that is not finite",
                    "Restore the base or the adapter: one of them is damaged.",
                )  # fmt: skip
            out.write_tensor(total)


def _as_float32(info: TensorInfo) -> TensorInfo:
    return TensorInfo(dtype="F32", shape=info.shape, start=0, size=4 * math.prod(info.shape))


def _require(path: Path, code: Code, param: str, remedy: str) -> None:
    if not path.is_file():
        raise NotFound(code, f"The file {path} does not exist.", remedy=remedy, param=param)


def _refused(code: Code, param: str, reason: str, remedy: str) -> ArtifactInvalid:
    return ArtifactInvalid(code, f"{reason}.", remedy=remedy, param=param)


def _meta_format(reason: str, param: str | None) -> ArtifactInvalid:
    return ArtifactInvalid(
        Code.MERGE_META_FORMAT,
        f"The sidecar cannot be used: {reason.removesuffix('.')}.",
        remedy="Give the sidecar of version 2 or 3 that was written with the adapter.",
        param=param,
    )
