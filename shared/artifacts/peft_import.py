"""Convert a PEFT folder from elsewhere to our terms: one rank and one scale for all layers, float32, the base's own
names.

If every layer has the folder's rank and alpha, the numbers stay as they are. If patterns or rsLoRA change them, B is
multiplied by its layer's scale, which rounds once, and the factors are padded with zeros to the largest rank.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from shared.artifacts.imported_folder import (
    HEAD_KEY,
    Contents,
    ImportRequest,
    TargetBase,
    base_name_note,
    keeps_head,
)
from shared.artifacts.manifests import ManifestQuant, peft_keys
from shared.artifacts.original_layout import base_key_map, incomplete
from shared.artifacts.peft_options import ModuleMatcher, PeftOptions
from shared.artifacts.tensor_values import verify_values
from shared.base_models.families import join_name
from shared.base_models.tensors import HEAD, default_namespace, detect_namespace, linear_layers
from shared.base_models.weights import Tensors, read_tensors
from shared.contract.sections import AdapterMethod, BaseQuant
from shared.errors import ArtifactInvalid, Code

FACTOR = re.compile(r"base_model\.model\.(.+)\.lora_([AB])\.weight")
Pairs = dict[str, tuple[Any, Any]]
"""A and B, float32, by the module that they belong to."""


def peft_contents(request: ImportRequest, options: PeftOptions, base: TargetBase) -> Contents:
    """Read and check an adapter in PEFT's format; return its contents with one rank and one scale.

    Raises:
        ArtifactInvalid: ``ADAPTER_NOT_SERVABLE``: it changes layers that vLLM does not adapt;
            ``ADAPTER_IMPORT_INCOMPLETE``, ``NOT_SERVABLE_HEAD``, ``ADAPTER_IMPORT_FORMAT``, ``ADAPTER_SHAPE_MISMATCH``,
            ``ADAPTER_DTYPE_UNSUPPORTED``, ``ADAPTER_VALUES_INVALID`` or ``SAFETENSORS_INVALID``, naming what is wrong.
    """
    options.refuse_unservable()
    stored = read_tensors(request.weights)
    pairs = tensor_names(stored)
    keys = stored_keys(pairs, base, request.base.name)
    verify_values(request.weights, stored)
    values = load_float32(request.weights, stored)
    found: Pairs = {module: (values[a], values[b]) for module, (a, b) in pairs.items()}
    notes = [
        "PEFT records neither the quantisation of the base nor a template; the adapter counts as trained on full precision."
    ]
    if HEAD in found and not keeps_head(HEAD_KEY, found[HEAD][1], base):
        del found[HEAD]
        notes.append("lm_head: its B is all zeros, so it has no effect and was left out.")
    if not found:
        raise incomplete("adapter_model.safetensors", "does not contain any layer that changes the base")
    rank, alpha, is_changed = to_one_scale(found, options)
    if is_changed:
        notes.append(
            f"Ranks or scales differ by layer: B was multiplied by its layer's scale, and all are of rank {rank} now."
        )
    weights = {
        name: value for module in found for name, value in zip(peft_keys(keys[module]), found[module], strict=True)
    }
    return Contents(
        base_key_map(weights),
        weights,
        rank,
        alpha,
        AdapterMethod.LORA,
        ManifestQuant(base_quant=BaseQuant.NONE),
        notes=notes + base_name_note(options.base_model_name_or_path, request),
    )


def tensor_names(stored: Tensors) -> dict[str, tuple[str, str]]:
    """Return the stored names of A and B for each module.

    Raises:
        ArtifactInvalid: ``ADAPTER_NOT_SERVABLE``: a tensor is neither; ``ADAPTER_IMPORT_INCOMPLETE``: a module lacks
            one.
    """
    found: dict[str, dict[str, str]] = {}
    for name in stored:
        match = FACTOR.fullmatch(name)
        if match is None:
            raise ArtifactInvalid(
                Code.ADAPTER_NOT_SERVABLE,
                f"The weights hold {name}, which is not an A or B of a linear layer: vLLM would ignore it or refuse the adapter.",
                remedy="Train a plain LoRA adapter of linear layers; save it without embeddings (save_embedding_layers=False).",
                param=name,
            )
        found.setdefault(match[1], {})[match[2]] = name
    for module, sides in found.items():
        if missing := {"A", "B"} - sides.keys():
            raise incomplete(module, f"has no lora_{missing.pop()} in the weights")
    return {module: (sides["A"], sides["B"]) for module, sides in found.items()}


def stored_keys(modules: Iterable[str], base: TargetBase, name: str) -> dict[str, str]:
    """Map each module to the base's tensor, whichever transformers class the adapter was trained on.

    Raises:
        ArtifactInvalid: ``ADAPTER_IMPORT_INCOMPLETE``: the base has no such layer, or two modules are the same one.
    """
    known = _names_of_layers(base)
    keys: dict[str, str] = {}
    for module in modules:
        if module not in known:
            raise incomplete(module, f"is in the weights, but is not a linear layer of {name} that can be adapted")
        if known[module] in keys.values():
            raise incomplete(module, f"is the second layer on {known[module]}")
        keys[module] = known[module]
    return keys


def _names_of_layers(base: TargetBase) -> dict[str, str]:
    """Map every possible name of a linear layer to the base's tensor."""
    spec, stored = base.config.spec, detect_namespace(base.config, base.tensors)
    names = {HEAD: HEAD_KEY}
    for module in linear_layers(base.config):
        layer = module.removeprefix(spec.namespace).removeprefix(".")
        for namespace in {spec.namespace, default_namespace(base.config), *spec.stored_namespaces}:
            names[join_name(namespace, layer)] = f"{join_name(stored, layer)}.weight"
    return names


def load_float32(path: Path, stored: Tensors) -> dict[str, Any]:
    """Load a file's tensors as float32 arrays, with unchanged values; their types were checked."""
    import numpy as np  # missing where only the control plane is installed

    values = {}
    with path.open("rb") as file:
        for name, info in stored.items():
            file.seek(info.start)
            raw = np.frombuffer(file.read(info.size), {"F32": "<f4", "F16": "<f2", "BF16": "<u2"}[info.dtype])
            # bfloat16, which NumPy lacks, is the upper half of a float32.
            wide = (raw.astype("<u4") << 16).view("<f4") if info.dtype == "BF16" else raw.astype("<f4")
            values[name] = wide.reshape(info.shape)
    return values


def to_one_scale(pairs: Pairs, options: PeftOptions) -> tuple[int, int, bool]:
    """Convert all layers to one rank and one scale, in place; return rank, alpha, and whether anything was changed.

    Raises:
        ArtifactInvalid: ``ADAPTER_SHAPE_MISMATCH``: a layer's factors are not of its rank;
            ``ADAPTER_IMPORT_INCOMPLETE``: PEFT would not load a layer that the weights hold; ``ADAPTER_IMPORT_FORMAT``.
    """
    matcher = ModuleMatcher(options)
    sizes = {module: _size(module, *pair, matcher) for module, pair in pairs.items()}
    rank, alpha = max(sizes.values())
    if len(set(sizes.values())) == 1 and not options.use_rslora and float(alpha).is_integer():
        return rank, int(alpha), False
    for module, (own_rank, own_alpha) in sizes.items():
        scale = own_alpha / (math.sqrt(own_rank) if options.use_rslora else own_rank)
        pairs[module] = _scaled(*pairs[module], scale, rank)
    return rank, rank, True


def _size(module: str, a: Any, b: Any, matcher: ModuleMatcher) -> tuple[int, float]:
    if not matcher.is_target(module):
        raise incomplete(module, "is in the weights, but target_modules leaves it out, so PEFT would not load it")
    rank, alpha = matcher.rank_and_alpha(module)
    if a.ndim != 2 or b.ndim != 2 or not a.shape[0] == b.shape[1] == rank:
        raise ArtifactInvalid(
            Code.ADAPTER_SHAPE_MISMATCH,
            f"{module} has A {a.shape} and B {b.shape}, and adapter_config.json says rank {rank}.",
            remedy="Import the weights with the adapter_config.json that was written with them.",
            param=module,
        )
    return rank, alpha


def _scaled(a: Any, b: Any, scale: float, rank: int) -> tuple[Any, Any]:
    """Convert the pair to a scale of one, padded with zeros to a rank: the product stays the same."""
    import numpy as np

    missing = rank - a.shape[0]
    scaled = (b.astype(np.float64) * scale).astype(np.float32)
    return np.pad(a, ((0, missing), (0, 0))), np.pad(scaled, ((0, 0), (0, missing)))
