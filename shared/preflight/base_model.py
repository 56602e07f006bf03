"""Check whether a base model's folder can be tuned, in order, before a GPU is needed; the first failure wins.

Reads config.json, the shard index and safetensors *headers*: no weight, no GPU library, milliseconds for any model.
transformers fills a tensor that it does not find with random numbers and continues; here a missing or misshapen tensor
is an error with its name. The order is the original system's, and so are the error codes where possible.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Collection, Sequence
from pathlib import Path

from shared.base_models.config import ModelConfig, broken_model, parse_model_config
from shared.base_models.families import EMBEDDING_KEYS
from shared.base_models.tensors import (
    Shape,
    detect_namespace,
    expected_tensors,
    linear_layers,
    lora_modules,
    middle_keys,
    parameter_count,
)
from shared.base_models.weights import (
    DTYPE_BITS,
    Tensors,
    find_shards,
    json_object,
    pickled_files,
    read_shards,
)
from shared.contract.choices import TokenizerMode
from shared.errors import Code, ContractRejected
from shared.preflight.types import Coverage, ModelReport

FLOAT_DTYPES = frozenset({"F32", "F16", "BF16"})
SAMPLE_KEYS = 24
REPORTED_KEYS = 32


def preflight_model(folder: Path, *, tokenizer_mode: TokenizerMode | str, strict: bool = True) -> ModelReport:
    """Check a model folder.

    Args:
        folder: folder that transformers could load; files may be links, as in a hub cache.
        tokenizer_mode: the contract's choice.
        strict: missing or misshapen tensors are errors; else they are notes, and the report names what is incomplete.

    Raises:
        ContractRejected: ``QLORA_REQUIRES_HF_TOKENIZER``.
        ArtifactInvalid: the code of the first check that fails.
    """
    _check_files(folder, tokenizer_mode)
    raw_config = (folder / "config.json").read_bytes()
    shards = find_shards(folder)
    config = parse_model_config(json_object(raw_config, "config.json", Code.MODEL_CONFIG_INVALID))
    tensors = read_shards(folder, shards)
    _check_embedding(tensors, config)
    namespace = detect_namespace(config, tensors)
    expected = expected_tensors(config, namespace)
    for name, shape in expected.items():
        if ".linear_attn." in name and name in tensors and tensors[name].shape != shape:
            raise broken_model(
                Code.LINEAR_ATTENTION_SHAPE,
                f"{name} is {tensors[name].shape}; config.json's dimensions make it {shape}",
                name,
            )
    middle = _coverage(middle_keys(config, namespace), tensors.keys())
    sound = {
        name
        for name, shape in expected.items()
        if (info := tensors.get(name)) and info.shape == shape and info.dtype in FLOAT_DTYPES
    }
    inventory = _coverage(list(expected), sound)
    # Layers first: "layer 7 is missing" is more useful than the names of its nine tensors.
    if strict:
        _check_coverage(middle, inventory, tensors, expected)
    bytes_by_dtype: Counter[str] = Counter()
    for info in tensors.values():
        bytes_by_dtype[info.dtype] += math.prod(info.shape) * DTYPE_BITS[info.dtype] // 8
    return ModelReport(
        config=config,
        namespace=namespace,
        shards=tuple(shards),
        tensors=len(tensors),
        middle=middle,
        inventory=inventory,
        parameters=parameter_count(expected),
        bytes_by_dtype=dict(sorted(bytes_by_dtype.items())),
        notes=tuple(_notes(folder, config, namespace, len(tensors.keys() - expected.keys()), middle, inventory)),
    )


def read_model_type(folder: Path) -> str | None:
    """Return ``model_type`` of the folder's config.json, unchecked; None if it cannot be read."""
    try:
        value = json.loads((folder / "config.json").read_bytes()).get("model_type")
    except (OSError, ValueError, RecursionError, AttributeError):
        return None  # `preflight_model` says what is wrong with it
    return value if isinstance(value, str) else None


def check_targets(target_modules: Sequence[str] | None, config: ModelConfig) -> None:
    """Check that every name in a contract's ``adapter.target_modules`` belongs to linear layers of the base.

    PEFT itself refuses only if none of the names matches, and only after the weights were loaded.

    Raises:
        ContractRejected: ``TARGET_MODULES_UNKNOWN``; ``details["choices"]`` has the names.
    """
    unknown = [target for target in target_modules or () if not lora_modules(config, [target])]
    if unknown:
        names = sorted({name.rsplit(".", 1)[-1] for name in linear_layers(config)})
        raise ContractRejected(
            Code.TARGET_MODULES_UNKNOWN,
            f"adapter.target_modules names {', '.join(map(repr, unknown))}; this base's linear layers are "
            f"{', '.join(names)}.",
            remedy="Use some of those names, or leave target_modules out to tune them all.",
            param="adapter.target_modules",
            details={"unknown": unknown, "choices": names},
        )


def _check_files(folder: Path, tokenizer_mode: TokenizerMode | str) -> None:
    if tokenizer_mode != TokenizerMode.HF:
        raise ContractRejected(
            Code.QLORA_REQUIRES_HF_TOKENIZER,
            f"data.tokenizer_mode is {str(tokenizer_mode)!r}, but QLoRA trains with the base's own tokenizer.",
            remedy="Set data.tokenizer_mode to 'hf', or leave it out.",
            param="data.tokenizer_mode",
        )
    if not folder.is_dir():
        raise broken_model(Code.MODEL_WEIGHTS_NOT_FOUND, "The model folder does not exist", folder.name)
    for name, code in (("tokenizer.json", Code.TOKENIZER_NOT_FOUND), ("config.json", Code.CONFIG_NOT_FOUND)):
        if not (folder / name).is_file():
            raise broken_model(code, f"The model folder does not contain {name}", name)


def _check_embedding(tensors: Tensors, config: ModelConfig) -> None:
    key = next((key for key in EMBEDDING_KEYS if key in tensors), None)
    if key is None:
        sample = sorted(tensors)[:SAMPLE_KEYS]
        raise broken_model(
            Code.EMBEDDING_NOT_FOUND,
            f"None of {', '.join(EMBEDDING_KEYS)} is in the weights; they contain {', '.join(sample) or 'nothing'}",
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


def _coverage(keys: list[str], present: Collection[str]) -> Coverage:
    missing = [key for key in keys if key not in present]
    return Coverage(expected=len(keys), matched=len(keys) - len(missing), missing=tuple(missing[:REPORTED_KEYS]))


def _check_coverage(middle: Coverage, inventory: Coverage, tensors: Tensors, expected: dict[str, Shape]) -> None:
    """Refuse a model with layers missing, then one with tensors missing or misshapen."""
    if not middle.complete:
        raise broken_model(
            Code.MIDDLE_COVERAGE_INCOMPLETE,
            f"Need {middle.expected} layers, found {middle.matched}; missing {', '.join(middle.missing)}",
            middle.missing[0],
            need=middle.expected,
            found=middle.matched,
            missing=list(middle.missing),
        )
    if not inventory.complete:
        faults = {
            name: f"is {info.dtype} {info.shape}, not floats of {expected[name]}"
            if (info := tensors.get(name))
            else f"is missing (shape {expected[name]})"
            for name in inventory.missing
        }
        first = inventory.missing[0]
        raise broken_model(
            Code.BLOCK_INVENTORY_INCOMPLETE,
            f"Need {inventory.expected} tensors, found {inventory.matched} valid ones; {first} {faults[first]}",
            first,
            need=inventory.expected,
            found=inventory.matched,
            faults=faults,
        )


def _notes(
    folder: Path, config: ModelConfig, namespace: str, further: int, middle: Coverage, inventory: Coverage
) -> list[str]:
    notes = []
    if config.composite and namespace == "model":
        notes.append(
            "The config is composite, but the weights contain only the language model; the names in the weights are "
            "used."
        )
    if further:
        notes.append(f"{further} further tensors (a vision tower, buffers, a stored tied head) are not trained.")
    if pickled := pickled_files(folder):
        notes.append(f"Pickle files are ignored: {', '.join(pickled[:3])}.")
    for noun, coverage in (("layers", middle), ("tensors", inventory)):
        if not coverage.complete:
            notes.append(f"{coverage.matched} of {coverage.expected} {noun} found: training would start from noise.")
    return notes
