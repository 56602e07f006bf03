"""Convert a PEFT folder written by another program to Mens' form: one rank and one scale for all layers, float32, and
the base's own names.

If every layer has the folder's rank and alpha, the numbers stay as they are. If patterns or rsLoRA change them, B is
multiplied by its layer's scale, which rounds once, and the factors are padded with zeros to the largest rank.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable
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
from shared.contract.choices import AdapterMethod, BaseQuant
from shared.errors import ArtifactInvalid, Code

PREFIX = ("base_model", "model")
"""First parts of every name that PEFT writes."""
FACTOR = re.compile(r"(?P<module>.+)\.lora_(?P<side>[AB])(?:\.(?P<adapter>[^.]+))?\.weight")
WRAPPERS = frozenset({"module", "_orig_mod", "_checkpoint_wrapped_module", "_fsdp_wrapped_module", "_forward_module"})
"""Parts of names that DDP, torch.compile, checkpointing, FSDP and Lightning add to a model that they wrap."""
SAVE_AGAIN = (
    "Save the adapter with save_pretrained of the unwrapped PEFT model, whose names are "
    "base_model.model.<layer>.lora_A.weight, and import that folder."
)
WITH_ITS_CONFIG = "Import the weights with the adapter_config.json that was written with them."
_WITHOUT_EMBEDDINGS = (
    "Save it without embeddings (save_embedding_layers=False); if they were trained, train it again without them."
)
_OTHER_METHODS = (
    ("lora_magnitude_vector", "Train it again without DoRA (use_dora: false)."),
    ("bias", "Train it again without biases (bias: none, lora_bias: false)."),
    ("embed", _WITHOUT_EMBEDDINGS),
    ("lm_head", _WITHOUT_EMBEDDINGS),
)
"""Parts of tensor names that show that another method was used, each with the remedy."""
Pairs = dict[str, tuple[Any, Any]]
"""A and B, float32, by the module that they belong to."""


def peft_contents(request: ImportRequest, options: PeftOptions, base: TargetBase) -> Contents:
    """Read and check an adapter in PEFT's format; return its contents with one rank and one scale.

    Raises:
        ArtifactInvalid: ``ADAPTER_NOT_SERVABLE``: it changes layers that vLLM does not adapt;
            ``ADAPTER_IMPORT_INCOMPLETE`` or ``ADAPTER_SHAPE_MISMATCH``, naming what is wrong.
    """
    options.refuse_unservable()
    stored = read_tensors(request.weights)
    pairs, notes = tensor_names(stored)
    keys = stored_keys(pairs, base, request.base.name)
    matcher = ModuleMatcher(options)
    refuse_untrained(pairs, base, matcher)
    verify_values(request.weights, stored)
    values = load_float32(request.weights, stored)
    factors: Pairs = {module: (values[a], values[b]) for module, (a, b) in pairs.items()}
    notes += [
        (
            "PEFT records neither the quantisation of the base nor a template; the adapter is treated as trained on "
            "full precision."
        )
    ]
    if HEAD in factors and not keeps_head(HEAD_KEY, factors[HEAD][1], base):
        del factors[HEAD]
        notes.append("lm_head: its B is all zeros, so it has no effect and was left out.")
    if not factors:
        raise incomplete("adapter_model.safetensors", "does not contain any layer that changes the base", SAVE_AGAIN)
    rank, alpha, is_changed = to_one_scale(factors, options, matcher)
    if is_changed:
        notes.append(
            f"Ranks or scales differ by layer: B was multiplied by its layer's scale, and all layers now have rank "
            f"{rank}."
        )
    weights = {
        name: value for module in factors for name, value in zip(peft_keys(keys[module]), factors[module], strict=True)
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


def tensor_names(stored: Iterable[str]) -> tuple[dict[str, tuple[str, str]], list[str]]:
    """Return the stored names of A and B for each module, and notes on names that are not PEFT's own.

    Parts of a name that a wrapper added, and the adapter's name inside of it, are removed.

    Raises:
        ArtifactInvalid: ``ADAPTER_NOT_SERVABLE``: a tensor is neither A nor B, or belongs to a second adapter;
            ``ADAPTER_IMPORT_INCOMPLETE``: a module lacks one of them, or has one twice.
    """
    by_module: dict[str, dict[str, str]] = {}
    adapters: dict[str, str] = {}
    removed: set[str] = set()
    for name in stored:
        if (match := FACTOR.fullmatch(name)) is None:
            raise _not_a_factor(name)
        module, wrappers = _unwrapped(match["module"])
        removed |= wrappers
        adapters.setdefault(match["adapter"] or "", name)
        if len(adapters) > 1:
            raise _several_adapters(adapters)
        sides = by_module.setdefault(module, {})
        if other := sides.get(match["side"]):
            raise incomplete(module, f"is in the weights twice, as {other} and as {name}", SAVE_AGAIN)
        sides[match["side"]] = name
    for module, sides in by_module.items():
        if missing := {"A", "B"} - sides.keys():
            raise incomplete(module, f"has no lora_{missing.pop()} in the weights", SAVE_AGAIN)
    removed |= {f".{adapter}" for adapter in adapters if adapter}
    return {module: (sides["A"], sides["B"]) for module, sides in by_module.items()}, _notes_on_names(removed)


def _unwrapped(module: str) -> tuple[str, set[str]]:
    """Return a module's name in the base, and the parts that were removed from it or are missing."""
    names = module.split(".")
    removed = set(names) & WRAPPERS
    names = [part for part in names if part not in WRAPPERS]
    prefixes = 0
    while tuple(names[:2]) == PREFIX:
        names, prefixes = names[2:], prefixes + 1
    if prefixes != 1:
        removed.add(f"{prefixes} times {'.'.join(PREFIX)}")
    return ".".join(names), removed


def _notes_on_names(removed: set[str]) -> list[str]:
    """Return a note on the parts that were removed from the tensors' names."""
    if not removed:
        return []
    return [f"The names of the weights are not PEFT's own ({', '.join(sorted(removed))}); they were read as PEFT's."]


def _not_a_factor(name: str) -> ArtifactInvalid:
    """Return the refusal of a tensor that is not an A or B, with a remedy that depends on what it is."""
    remedy = next((remedy for part, remedy in _OTHER_METHODS if part in name), SAVE_AGAIN)
    reason = (
        f"The weights hold {name}, which is not an A or B of a linear layer: vLLM would ignore it or refuse the "
        "adapter."
    )
    return ArtifactInvalid(Code.ADAPTER_NOT_SERVABLE, reason, remedy=remedy, param=name)


def _several_adapters(adapters: dict[str, str]) -> ArtifactInvalid:
    """Return the refusal of weights of several adapters, given a tensor of each."""
    names, second = sorted(adapters), list(adapters.values())[1]
    return ArtifactInvalid(
        Code.ADAPTER_NOT_SERVABLE,
        f"The weights hold tensors of several adapters: {', '.join(name or 'one without a name' for name in names)}.",
        remedy="Save one adapter: save_pretrained(FOLDER, selected_adapters=[NAME]).",
        param=second,
    )


def stored_keys(modules: Iterable[str], base: TargetBase, name: str) -> dict[str, str]:
    """Map each module to the base's tensor, whichever transformers class the adapter was trained on.

    Raises:
        ArtifactInvalid: ``ADAPTER_IMPORT_INCOMPLETE``: the base has no such layer, or two modules map to the same
            layer.
    """
    layer_keys = _names_of_layers(base)
    keys: dict[str, str] = {}
    for module in modules:
        if module not in layer_keys:
            reason = f"is in the weights, but is not a linear layer of {name} that can be adapted"
            raise incomplete(module, reason, "Import it for the base that it was trained on.")
        if layer_keys[module] in keys.values():
            raise incomplete(module, f"is the second layer on {layer_keys[module]}", SAVE_AGAIN)
        keys[module] = layer_keys[module]
    return keys


def refuse_untrained(modules: Collection[str], base: TargetBase, matcher: ModuleMatcher) -> None:
    """Refuse weights that lack layers named in the config: PEFT would use the base's own weights there.

    Raises:
        ArtifactInvalid: ``ADAPTER_IMPORT_INCOMPLETE``, naming the first of these layers.
    """
    spaces = sorted(_namespaces(base), key=len, reverse=True)
    used = next((space for space in spaces if any(module.startswith(f"{space}.") for module in modules)), spaces[-1])
    layers = [join_name(used, layer) for layer in _layers(base)]
    missing = [module for module in (*layers, HEAD) if module not in modules and matcher.is_target(module)]
    if missing:
        raise incomplete(
            missing[0],
            f"is one of {len(missing)} layers that adapter_config.json names (target_modules) but the weights lack; "
            f"the weights have {len(modules)} layers",
            "Import the complete weights. If only some layers were trained, name these in target_modules, "
            "exclude_modules or layers_to_transform.",
        )


def _namespaces(base: TargetBase) -> set[str]:
    """Return every namespace that a class of transformers has for the base's layers."""
    spec = base.config.spec
    return {spec.namespace, default_namespace(base.config), *spec.stored_namespaces}


def _layers(base: TargetBase) -> list[str]:
    """Return the names of the base's linear layers, relative to the namespace."""
    return [name.removeprefix(base.config.spec.namespace).removeprefix(".") for name in linear_layers(base.config)]


def _names_of_layers(base: TargetBase) -> dict[str, str]:
    """Map every possible name of a linear layer to the base's tensor."""
    stored = detect_namespace(base.config, base.tensors)
    layers = {join_name(space, layer): layer for layer in _layers(base) for space in _namespaces(base)}
    return {HEAD: HEAD_KEY} | {name: f"{join_name(stored, layer)}.weight" for name, layer in layers.items()}


def load_float32(path: Path, stored: Tensors) -> dict[str, Any]:
    """Load a file's tensors as float32 arrays with unchanged values; the caller has checked their types."""
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


def to_one_scale(pairs: Pairs, options: PeftOptions, matcher: ModuleMatcher) -> tuple[int, int, bool]:
    """Convert all layers to one rank and one scale, in place; return rank, alpha, and whether anything was changed.

    Raises:
        ArtifactInvalid: ``ADAPTER_SHAPE_MISMATCH``: a layer's factors do not have the rank in the config;
            ``ADAPTER_IMPORT_INCOMPLETE``: the weights hold a layer that PEFT would not load.
    """
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
        reason = "is in the weights, but adapter_config.json (target_modules) leaves it out, so PEFT would not load it"
        raise incomplete(module, reason, WITH_ITS_CONFIG)
    rank, alpha = matcher.rank_and_alpha(module)
    if a.ndim != 2 or b.ndim != 2 or not a.shape[0] == b.shape[1] == rank:
        raise ArtifactInvalid(
            Code.ADAPTER_SHAPE_MISMATCH,
            f"{module} has A {a.shape} and B {b.shape}, and adapter_config.json says rank {rank}.",
            remedy=WITH_ITS_CONFIG,
            param=module,
        )
    return rank, alpha


def _scaled(a: Any, b: Any, scale: float, rank: int) -> tuple[Any, Any]:
    """Multiply B by the scale, and pad both factors with zeros to the rank; the scaled product stays the same."""
    import numpy as np

    missing = rank - a.shape[0]
    scaled = (b.astype(np.float64) * scale).astype(np.float32)
    return np.pad(a, ((0, missing), (0, 0))), np.pad(scaled, ((0, 0), (0, missing)))
