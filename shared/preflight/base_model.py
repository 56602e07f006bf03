"""Can this model folder be tuned? The ordered checks before a GPU is asked for; the first failure wins.

Reads config.json, the shard index and safetensors *headers*: no weight, no GPU library, milliseconds for any model.
transformers fills a tensor that it does not find with random numbers and goes on; here a missing or misshapen tensor is
an error with its name. The order is the original system's, its codes too where they were good.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict

from shared.contract import TokenizerMode
from shared.errors import Code, ContractRejected
from shared.layout import DTYPE_BITS, TensorInfo
from shared.model_config import ModelConfig, parse_model_config
from shared.model_shards import Tensors, broken_model, find_shards, json_object, pickled_files, read_shards
from shared.model_tensors import (
    EMBEDDING_KEYS,
    Shape,
    detect_namespace,
    expected_tensors,
    middle_keys,
    parameter_count,
)

FLOAT_DTYPES = frozenset({"F32", "F16", "BF16"})
SAMPLE_KEYS = 24
REPORTED_KEYS = 32
PREFLIGHT_SCHEMA = "vox.mens.preflight.v0"


class Coverage(BaseModel):
    """How many of the expected tensor names were found; ``missing`` is capped."""

    model_config = ConfigDict(frozen=True)
    expected: int
    matched: int
    missing: tuple[str, ...]

    @property
    def complete(self) -> bool:
        return 0 < self.expected == self.matched


class ModelReport(BaseModel):
    """What the preflight found.

    Attributes:
        namespace: what stands before the layers' names in the weights.
        middle: one key per layer. inventory: every tensor of the language model, right shape and dtype.
        parameters: of the language model as the config describes it; a tied head counts once.
        bytes_by_dtype: bytes of everything in the shards, by safetensors' dtype.
    """

    model_config = ConfigDict(frozen=True, protected_namespaces=())
    config: ModelConfig
    namespace: str
    shards: tuple[str, ...]
    tensors: int
    middle: Coverage
    inventory: Coverage
    parameters: int
    bytes_by_dtype: dict[str, int]
    notes: tuple[str, ...]


def preflight_model(folder: Path, *, tokenizer_mode: TokenizerMode | str, strict: bool = True) -> ModelReport:
    """Check a model folder.

    Args:
        folder: as transformers would load it; files may be links, as in a hub cache.
        tokenizer_mode: of the contract.
        strict: missing or misshapen tensors are errors; else they are notes, and the report says what is incomplete.

    Raises:
        ContractRejected: ``QLORA_REQUIRES_HF_TOKENIZER``.
        ArtifactInvalid: the code of the first check that fails.
    """
    _check_tokenizer(folder, tokenizer_mode)
    raw_config = _config_bytes(folder)
    shards = find_shards(folder)
    config = parse_model_config(json_object(raw_config, "config.json", Code.MODEL_CONFIG_INVALID))
    tensors = read_shards(folder, shards)
    _check_embedding(tensors, config)
    namespace = detect_namespace(config, tensors)
    expected = expected_tensors(config, namespace)
    _check_linear_attention(tensors, expected)
    middle = _coverage(middle_keys(config, namespace), lambda key: key in tensors)
    inventory = _coverage(list(expected), lambda key: _fits(tensors.get(key), expected[key]))
    if strict:
        _require_middle(middle)
        _require_inventory(inventory, tensors, expected)
    return ModelReport(
        config=config,
        namespace=namespace,
        shards=tuple(shards),
        tensors=len(tensors),
        middle=middle,
        inventory=inventory,
        parameters=parameter_count(expected),
        bytes_by_dtype=_bytes_by_dtype(tensors),
        notes=tuple(_notes(folder, config, namespace, tensors, expected, middle, inventory)),
    )


def training_preflight_record(
    *, contract_digest: str, execution_kernel: str, notes: Sequence[str] = (), **results: BaseModel | None
) -> dict[str, Any]:
    """Content of ``training-preflight.json``: the original's four fields, and each result under its keyword.

    Args:
        contract_digest: not empty.
        execution_kernel: ``qlora`` or ``lora``.
        notes: sentences for people.
        results: e.g. ``model=ModelReport``, ``estimate=Estimate``; None is left out.

    Raises:
        ValueError: a value that the schema forbids.
    """
    if not contract_digest or execution_kernel not in ("qlora", "lora"):
        raise ValueError(f"no such record: contract_digest={contract_digest!r}, execution_kernel={execution_kernel!r}")
    record: dict[str, Any] = {
        "schema_version": PREFLIGHT_SCHEMA,
        "contract_digest": contract_digest,
        "execution_kernel": execution_kernel,
        "notes": list(notes),
    }
    return record | {name: result.model_dump(mode="json") for name, result in results.items() if result is not None}


def _check_tokenizer(folder: Path, mode: TokenizerMode | str) -> None:
    if mode != TokenizerMode.HF:
        raise ContractRejected(
            Code.QLORA_REQUIRES_HF_TOKENIZER,
            f"data.tokenizer_mode is {str(mode)!r}, but QLoRA trains with the base's own tokenizer.",
            remedy="Set data.tokenizer_mode to 'hf', or leave it out.",
            param="data.tokenizer_mode",
        )
    if not folder.is_dir():
        raise broken_model(Code.MODEL_WEIGHTS_NOT_FOUND, "The model folder is not there", folder.name)
    if not (folder / "tokenizer.json").is_file():
        raise broken_model(Code.TOKENIZER_NOT_FOUND, "The model folder has no tokenizer.json", "tokenizer.json")


def _config_bytes(folder: Path) -> bytes:
    if not (folder / "config.json").is_file():
        raise broken_model(Code.CONFIG_NOT_FOUND, "The model folder has no config.json", "config.json")
    return (folder / "config.json").read_bytes()


def _check_embedding(tensors: Tensors, config: ModelConfig) -> None:
    key = next((key for key in EMBEDDING_KEYS if key in tensors), None)
    if key is None:
        sample = sorted(tensors)[:SAMPLE_KEYS]
        raise broken_model(
            Code.EMBEDDING_NOT_FOUND,
            f"None of {', '.join(EMBEDDING_KEYS)} is in the weights; they hold {', '.join(sample) or 'nothing'}",
            EMBEDDING_KEYS[0],
            sample=sample,
        )
    shape = tensors[key].shape
    if len(shape) != 2:
        raise broken_model(Code.EMBEDDING_NOT_2D, f"{key} is present but not a 2-D matrix: its shape is {shape}", key)
    if shape != (config.vocab, config.hidden):
        expected = (config.vocab, config.hidden)
        raise broken_model(
            Code.EMBEDDING_SHAPE_MISMATCH, f"{key} is {shape}; config.json says {expected}", key, expected=expected
        )


def _check_linear_attention(tensors: Tensors, expected: dict[str, Shape]) -> None:
    for name, shape in expected.items():
        if ".linear_attn." in name and name in tensors and tensors[name].shape != shape:
            raise broken_model(
                Code.LINEAR_ATTENTION_SHAPE,
                f"{name} is {tensors[name].shape}; config.json's dimensions make it {shape}",
                name,
            )


def _coverage(keys: list[str], found: Callable[[str], bool]) -> Coverage:
    missing = [key for key in keys if not found(key)]
    return Coverage(expected=len(keys), matched=len(keys) - len(missing), missing=tuple(missing[:REPORTED_KEYS]))


def _fits(info: TensorInfo | None, shape: Shape) -> bool:
    return info is not None and info.shape == shape and info.dtype in FLOAT_DTYPES


def _require_middle(middle: Coverage) -> None:
    if not middle.complete:
        raise broken_model(
            Code.MIDDLE_COVERAGE_INCOMPLETE,
            f"Need {middle.expected} layers, found {middle.matched}; missing {', '.join(middle.missing)}",
            middle.missing[0],
            need=middle.expected,
            found=middle.matched,
            missing=list(middle.missing),
        )


def _require_inventory(inventory: Coverage, tensors: Tensors, expected: dict[str, Shape]) -> None:
    if inventory.complete:
        return
    faults = {name: _fault(tensors.get(name), expected[name]) for name in inventory.missing}
    first = inventory.missing[0]
    raise broken_model(
        Code.BLOCK_INVENTORY_INCOMPLETE,
        f"Need {inventory.expected} tensors, found {inventory.matched} as they must be; {first} {faults[first]}",
        first,
        need=inventory.expected,
        found=inventory.matched,
        faults=faults,
    )


def _fault(info: TensorInfo | None, shape: Shape) -> str:
    return f"is not there (shape {shape})" if info is None else f"is {info.dtype} {info.shape}, not floats of {shape}"


def _bytes_by_dtype(tensors: Tensors) -> dict[str, int]:
    sums: dict[str, int] = {}
    for info in tensors.values():
        sums[info.dtype] = sums.get(info.dtype, 0) + math.prod(info.shape) * DTYPE_BITS[info.dtype] // 8
    return dict(sorted(sums.items()))


def _notes(
    folder: Path,
    config: ModelConfig,
    namespace: str,
    tensors: Tensors,
    expected: dict[str, Shape],
    middle: Coverage,
    inventory: Coverage,
) -> list[str]:
    notes = []
    if config.composite and namespace == "model":
        notes.append("The config is composite but the weights are text-only; the names found are used.")
    if others := len(tensors.keys() - expected.keys()):
        notes.append(f"{others} further tensors (a vision tower, buffers, a stored tied head) are not trained.")
    if pickled := pickled_files(folder):
        notes.append(f"Pickle files are ignored: {', '.join(pickled[:3])}.")
    for what, coverage in (("layers", middle), ("tensors", inventory)):
        if not coverage.complete:
            notes.append(f"{coverage.matched} of {coverage.expected} {what} found: training would start from noise.")
    return notes
