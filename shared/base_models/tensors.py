"""The tensors that a model of a given config must have, and the linear layers that LoRA is put on. Pure arithmetic.

A *namespace* is the prefix before ``layers.`` (GPT-2: ``h.``) in the tensor names: ``model`` for most,
``model.language_model`` for the language part of a composite model, ``transformer`` or nothing for GPT-2.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

from shared.base_models.config import ModelConfig
from shared.base_models.families import Others, join_name

Shape = tuple[int, ...]
"""Shape of a tensor in safetensors: (out, in) for linear layers, (in, out) for GPT-2's Conv1D."""

HEAD = "lm_head"
COMPOSITE_NAMESPACE = "model.language_model"
"""Namespace of the language part of a vision-language model."""


def default_namespace(config: ModelConfig) -> str:
    """Return the namespace in which transformers saves such a model."""
    return COMPOSITE_NAMESPACE if config.composite else config.spec.namespace


def detect_namespace(config: ModelConfig, names: Iterable[str]) -> str:
    """Return the namespace that the tensors really use: text-only weights under a composite config are common, and
    valid.

    Returns the default when none of the family's namespaces occurs.
    """
    # The default first: if tensors of several namespaces occur, the class that transformers builds decides.
    default, names = default_namespace(config), list(names)
    for namespace in (default, *config.spec.stored_namespaces):
        prefix = join_name(namespace, config.spec.block) + "."
        if any(name.startswith(prefix) for name in names):
            return namespace
    return default


def expected_tensors(config: ModelConfig, namespace: str | None = None) -> dict[str, Shape]:
    """Return every stored tensor of the language model, name → shape.

    Rotary frequencies are left out (they follow from the config), and so is the head of a tied model.
    """
    spec, namespace = config.spec, default_namespace(config) if namespace is None else namespace
    blocks: dict[str, dict[str, Shape]] = {kind: {} for kind in set(config.layer_types)}
    for kind, block in blocks.items():
        mixer = spec.mixers[kind]
        for name, (inputs, outputs) in _linears(config, kind).items():
            block[f"{name}.weight"] = (inputs, outputs) if spec.transposed else (outputs, inputs)
            if (config.attention_bias and name in mixer.biased) or (config.mlp_bias and name in spec.mlp):
                block[f"{name}.bias"] = (outputs,)
        block.update(_shapes(config, spec.norms) | _shapes(config, mixer.others))
    tensors = {join_name(namespace, name): shape for name, shape in _shapes(config, spec.outer).items()}
    for layer, kind in enumerate(config.layer_types):
        prefix = _block_prefix(config, namespace, layer)
        tensors |= {f"{prefix}.{name}": shape for name, shape in blocks[kind].items()}
    if not config.tied:
        tensors[f"{HEAD}.weight"] = (config.vocab, config.hidden)
    return tensors


def middle_keys(config: ModelConfig, namespace: str) -> list[str]:
    """Return one key per layer whose presence proves that the layer is complete: its attention's output projection."""
    return [
        f"{_block_prefix(config, namespace, layer)}.{config.spec.mixers[kind].output}.weight"
        for layer, kind in enumerate(config.layer_types)
    ]


def linear_layers(config: ModelConfig) -> dict[str, tuple[int, int]]:
    """Return every linear layer except the head, full module name → (in, out) features, with the trainer's names.

    The trainer loads the text-only class, so a composite model's layers are under ``model`` there.
    """
    linears = {kind: _linears(config, kind) for kind in set(config.layer_types)}
    return {
        f"{_block_prefix(config, config.spec.namespace, layer)}.{name}": shape
        for layer, kind in enumerate(config.layer_types)
        for name, shape in linears[kind].items()
    }


def lora_modules(config: ModelConfig, target_modules: Sequence[str] | None = None) -> dict[str, tuple[int, int]]:
    """Return the linear layers that get a LoRA pair: all, or those that PEFT matches with `target_modules`. A target is
    a module's whole name or its last components.
    """
    layers = linear_layers(config)
    if target_modules is None:
        return layers
    if HEAD in target_modules:
        layers[HEAD] = (config.hidden, config.vocab)
    return {
        name: shape
        for name, shape in layers.items()
        if any(name == target or name.endswith(f".{target}") for target in target_modules)
    }


def parameter_count(tensors: Mapping[str, Shape]) -> int:
    """Return the number of elements of all tensors."""
    return sum(math.prod(shape) for shape in tensors.values())


def _block_prefix(config: ModelConfig, namespace: str, layer: int) -> str:
    """Return the prefix of a block's tensors, such as ``model.layers.3``."""
    return join_name(namespace, f"{config.spec.block}.{layer}")


def _linears(config: ModelConfig, kind: str) -> dict[str, tuple[int, int]]:
    """Return the linear layers of a block, name relative to the block → (in, out)."""
    sizes, spec = config.sizes, config.spec
    layers = {**spec.mixers[kind].linears, **spec.mlp}
    return {name: (sizes[inputs], sizes[outputs]) for name, (inputs, outputs) in layers.items()}


def _shapes(config: ModelConfig, tensors: Others) -> dict[str, Shape]:
    sizes = config.sizes
    return {name: tuple(1 if size == 1 else sizes[size] for size in shape) for name, shape in tensors.items()}
