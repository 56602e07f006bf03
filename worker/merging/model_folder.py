"""A base's folder with an adapter folded into its weights: W' = W + alpha/rank · B·A, shard by shard, piece by piece.

Shards, tensor names and the files next to the weights are the base's. Each tensor keeps its dtype unless another is
requested. A shard that was complete before a kill is recognised by its digest and not written again.
"""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Callable
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from shared.artifacts.manifests import WEIGHTS_NAME, AdapterManifest, peft_keys
from shared.base_models.catalog import model_files
from shared.base_models.families import is_transposed
from shared.base_models.weights import INDEX, TensorInfo, Tensors, find_shards, read_tensors
from shared.errors import ArtifactInvalid, Code, InvalidRequest
from shared.hashing import digest_file
from shared.tokenization.end_tokens import with_end_tokens
from shared.tokenization.tokenizer import Tokenizer
from worker.merging.exact_product import ScaledProduct
from worker.merging.shards import STORED_DTYPES, TORCH_DTYPES, ShardReader, ShardWriter
from worker.run_folder import MERGE_PROGRESS_NAME, read_json, write_json
from worker.training.model.nf4 import through_nf4

CONFIG = "config.json"
GENERATION_CONFIG = "generation_config.json"
SPECIAL_IDS = ("bos_token_id", "pad_token_id")
"""Ids that transformers reads from config.json, in addition to the EOS, without a generation config."""
PIECE_ELEMENTS = 1 << 18
"""Number of elements computed at a time: in float64 they fit into a processor's cache."""
ShardWritten = Callable[[int, int], None]
"""A function that is called with the number of finished shards and their total."""


@dataclass(frozen=True, slots=True)
class FolderMerge:
    """One merge of a folder.

    Attributes:
        base: the base's folder, checked.
        adapter: the adapter's folder, checked against its manifest and the base's tensors.
        manifest: the adapter's manifest.
        target: the folder to fill; ``merge_progress.json`` is written next to it.
        dtype: dtype of every floating-point tensor (``float32``, ``bfloat16``, ``float16``); each keeps its own when
            None.
        quantised: names of the weights that are quantised to NF4 and back, as in training.
        double_quant: whether the scales of NF4's blocks were quantised too.
    """

    base: Path
    adapter: Path
    manifest: AdapterManifest
    target: Path
    dtype: str | None = None
    quantised: AbstractSet[str] = frozenset()
    double_quant: bool = True

    def run(self, key: str, shard_written: ShardWritten = lambda _done, _all: None) -> dict[str, str]:
        """Write the folder, or the rest of it after an interrupted run.

        Args:
            key: digest of everything that decides the bytes; files that a run with another key left are written again.
            shard_written: called after each shard.

        Returns:
            SHA-256 of every file, by name.

        Raises:
            ArtifactInvalid: ``MERGE_DTYPE``: a tensor to merge is not F32, F16 or BF16; ``MERGE_NOT_FINITE``: a value is
                out of the range of the dtype that it is stored in.
        """
        self.target.mkdir(parents=True, exist_ok=True)
        record = self.target.with_name(MERGE_PROGRESS_NAME)
        earlier = read_json(record) or {}
        digests: dict[str, str] = earlier["files"] if earlier.get("key") == key else {}
        shards = sorted(find_shards(self.base))
        for done, name in enumerate(shards, 1):
            path = self.target / name
            if not (path.is_file() and digests.get(name) == digest_file(path)):
                digests[name] = self._write_shard(name)
                write_json(record, {"key": key, "files": digests})
            shard_written(done, len(shards))
        others = self._copy_others()
        return {name: digests[name] for name in shards} | {path.name: digest_file(path) for path in others}

    def _write_shard(self, name: str) -> str:
        stored = read_tensors(self.base / name)
        written = {key: self._written(key, info) for key, info in stored.items()}
        # Wide elements first, as safetensors does: each tensor then begins at a multiple of its element's size.
        order = sorted(stored, key=lambda key: (-_element_bytes(written[key]), stored[key].start))
        with (
            ShardReader(self.base / name) as base,
            ShardReader(self.adapter / WEIGHTS_NAME) as adapter,
            ShardWriter(self.target / name, {key: written[key] for key in order}) as out,
        ):
            lora = read_tensors(self.adapter / WEIGHTS_NAME)
            for key in order:
                self._write_tensor(key, stored[key], base, self._product(key, adapter, lora), out)
        return out.digest

    def _written(self, key: str, info: TensorInfo) -> TensorInfo:
        """Return the dtype and size that the merged model stores for a tensor."""
        if key in self.manifest.base_key_map.values() and info.dtype not in TORCH_DTYPES:
            raise ArtifactInvalid(
                Code.MERGE_DTYPE,
                f"{key} of the base is stored as {info.dtype}; only F32, F16 and BF16 weights can be merged.",
                remedy="Merge into the base in full precision.",
                param=key,
            )
        if self.dtype is None or info.dtype not in TORCH_DTYPES:
            return info
        dtype = STORED_DTYPES[self.dtype]
        return replace(info, dtype=dtype, size=math.prod(info.shape) * TORCH_DTYPES[dtype].itemsize)

    def _product(self, key: str, adapter: ShardReader, lora: Tensors) -> ScaledProduct | None:
        """Return the adapter's change to a tensor, oriented as the base stores it; None if the adapter does not change
        it.
        """
        if key not in self.manifest.base_key_map.values():
            return None
        a, b = (adapter.tensor(lora[name]).float() for name in peft_keys(key))
        scale = self.manifest.alpha / self.manifest.rank
        return ScaledProduct(a.T, b.T, scale) if is_transposed(key) else ScaledProduct(b, a, scale)

    def _write_tensor(
        self, key: str, info: TensorInfo, base: ShardReader, product: ScaledProduct | None, out: ShardWriter
    ) -> None:
        if product is None and key not in self.quantised and self._written(key, info).dtype == info.dtype:
            for piece in base.pieces(info):
                out.write(piece)
            return
        # The scales of NF4's scales need the whole tensor; every other operation needs one piece at a time.
        whole = through_nf4(base.tensor(info), self.double_quant).view(-1) if key in self.quantised else None
        columns = info.shape[1] if product else 1
        step = max(1, PIECE_ELEMENTS // columns) * columns
        count = math.prod(info.shape)
        for start in range(0, count, step):
            stop = min(count, start + step)
            values = base.elements(info, start, stop) if whole is None else whole[start:stop]
            if product:
                values = product.rows(start // columns, stop // columns).add_(values.view(-1, columns).double())
            out.write_tensor(self._rounded(key, info, values))

    def _rounded(self, key: str, info: TensorInfo, values: torch.Tensor) -> torch.Tensor:
        """Return values in the stored dtype: rounded to nearest, by way of float32."""
        dtype = TORCH_DTYPES[self._written(key, info).dtype]
        values = values.float()
        extremes = torch.stack(values.aminmax())
        if not extremes.isfinite().all():
            # The adapter's numbers were checked, and a sum of finite ones stays far within float32's range.
            raise ArtifactInvalid(
                Code.MERGE_NOT_FINITE,
                f"{key} of the base contains a number that is not finite.",
                remedy="The base itself is damaged: fetch it again, or use another base. Another dtype does not help.",
                param=key,
            )
        if not extremes.to(dtype).isfinite().all():
            raise ArtifactInvalid(
                Code.MERGE_NOT_FINITE,
                f"{key} has values outside the range of {dtype}, in which they would become infinite.",
                remedy="Merge with dtype bfloat16 or float32.",
                param="dtype",
            )
        return values.to(dtype)

    def _copy_others(self) -> list[Path]:
        """Copy tokenizer, template and similar files unchanged.

        Config and index are updated with the dtype of the weights; the generation config names every token that ends a
        turn.
        """
        copied = []
        for path in model_files(self.base):
            if path.suffix == ".safetensors":
                continue
            target = self.target / path.name
            if self.dtype and path.name == CONFIG:
                write_json(target, with_dtype(json.loads(path.read_bytes()), self.dtype))
            elif self.dtype and path.name == INDEX:
                write_json(target, self._index(json.loads(path.read_bytes())))
            else:
                shutil.copyfile(path, target)
            copied.append(target)
        if ends := self._generation_config():
            target = self.target / GENERATION_CONFIG
            write_json(target, ends)
            copied = sorted({*copied, target})
        return copied

    def _generation_config(self) -> dict[str, object] | None:
        """Return the generation config with the end token that training taught; None if the base's files already name
        it.
        """
        try:
            tokenizer = Tokenizer.load(self.base)
        except InvalidRequest:  # without a chat template nothing was taught
            return None
        config = read_json(self.base / CONFIG) or {}
        stored = read_json(self.base / GENERATION_CONFIG)
        before = {name: config[name] for name in SPECIAL_IDS if name in config} if stored is None else stored
        ended = with_end_tokens(before, tokenizer)
        return None if ended == before else ended

    def _index(self, index: dict[str, object]) -> dict[str, object]:
        shards = (read_tensors(self.target / name) for name in find_shards(self.base))
        size = sum(info.size for shard in shards for info in shard.values())
        metadata = index.get("metadata")
        return index | {"metadata": (metadata if isinstance(metadata, dict) else {}) | {"total_size": size}}


def with_dtype(config: dict[str, object], dtype: str) -> dict[str, object]:
    """Return a model's config with the dtype of its weights, also in its language part, under the key that the config
    uses.
    """
    name = "torch_dtype" if "torch_dtype" in config and "dtype" not in config else "dtype"
    changed = config | {name: dtype}
    text = config.get("text_config")
    if isinstance(text, dict) and (own_key := next((key for key in ("dtype", "torch_dtype") if key in text), None)):
        changed["text_config"] = text | {own_key: dtype}
    return changed


def _element_bytes(info: TensorInfo) -> int:
    return info.size // max(1, math.prod(info.shape))
