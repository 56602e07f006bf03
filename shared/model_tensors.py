"""The tensors a model of a given config must have, and the linear layers that LoRA is put on. Pure arithmetic.

A *namespace* is what stands before ``layers.`` (GPT-2: ``h.``) in the tensor names: ``model`` for most,
``model.language_model`` for the language part of a composite model, ``transformer`` or nothing for GPT-2.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

from shared.model_config import LINEAR, Family, LinearAttention, ModelConfig

Shape = tuple[int, ...]
"""As safetensors stores it: (out, in) for linear layers, (in, out) for GPT-2's Conv1D."""

EMBEDDING_KEYS = (
    "wte.weight",
    "transformer.wte.weight",
    "model.embed_tokens.weight",
    "model.language_model.embed_tokens.weight",
)
"""Where an embedding matrix is looked for, in order."""

NAMESPACES: dict[Family, tuple[str, ...]] = {
    Family.QWEN3_5: ("model.language_model", "model"),
    Family.GPT2: ("transformer", ""),
}
HEAD = "lm_head"


def default_namespace(config: ModelConfig) -> str:
    """Namespace in which transformers writes such a model."""
    if config.composite:
        return "model.language_model"
    return "transformer" if config.family is Family.GPT2 else "model"


def detect_namespace(config: ModelConfig, names: Iterable[str]) -> str:
    """Namespace that the tensors really use: text-only weights under a composite config are common, and sound.

    The default when none of the family's namespaces occurs.
    """
    default, names = default_namespace(config), list(names)
    for namespace in (default, *NAMESPACES.get(config.family, ())):
        prefix = _join(namespace, block_word(config)) + "."
        if any(name.startswith(prefix) for name in names):
            return namespace
    return default


def block_word(config: ModelConfig) -> str:
    """What numbers the blocks: ``layers``, or GPT-2's ``h``."""
    return "h" if config.family is Family.GPT2 else "layers"


def block_prefix(config: ModelConfig, namespace: str, layer: int) -> str:
    """``model.layers.3`` and the like."""
    return _join(namespace, f"{block_word(config)}.{layer}")


def expected_tensors(config: ModelConfig, namespace: str | None = None) -> dict[str, Shape]:
    """Every stored tensor of the language model, name → shape.

    Rotary frequencies are left out (they follow from the config), and so is the head of a tied model.
    """
    namespace = default_namespace(config) if namespace is None else namespace
    tensors = _outer_tensors(config, namespace)
    for layer in range(config.layers):
        prefix = block_prefix(config, namespace, layer)
        tensors |= {f"{prefix}.{name}": shape for name, shape in _block(config, layer).items()}
    if not config.tied:
        tensors[f"{HEAD}.weight"] = (config.vocab, config.hidden)
    return tensors


def embedding_tensors(config: ModelConfig) -> dict[str, Shape]:
    """The embedding matrices and an untied head: what stays unquantised and grows with the vocabulary."""
    keep = ("embed_tokens.weight", "wte.weight", "wpe.weight", f"{HEAD}.weight")
    return {name: shape for name, shape in expected_tensors(config).items() if name.endswith(keep)}


def middle_keys(config: ModelConfig, namespace: str) -> list[str]:
    """One key per layer whose presence shows that the layer is there: its attention's output projection."""
    if config.family is Family.GPT2:
        names = ["attn.c_proj.weight"] * config.layers
    else:
        names = [
            "linear_attn.out_proj.weight" if kind == LINEAR else "self_attn.o_proj.weight"
            for kind in config.layer_types
        ]
    return [f"{block_prefix(config, namespace, layer)}.{name}" for layer, name in enumerate(names)]


def linear_layers(config: ModelConfig) -> dict[str, tuple[int, int]]:
    """Every linear layer but the head, full module name → (in, out) features, as the trainer names them.

    The trainer loads the text-only class, so a composite model's layers are under ``model`` there.
    """
    namespace = "transformer" if config.family is Family.GPT2 else "model"
    return {
        f"{block_prefix(config, namespace, layer)}.{name}": shape
        for layer in range(config.layers)
        for name, shape in _linears(config, layer).items()
    }


def lora_modules(config: ModelConfig, target_modules: Sequence[str] | None = None) -> dict[str, tuple[int, int]]:
    """The linear layers that get a LoRA pair: all, or those that PEFT matches with the names (equal, or last parts)."""
    layers = linear_layers(config)
    if target_modules is None:
        return layers
    if HEAD in target_modules:
        layers[HEAD] = (config.hidden, config.vocab)
    return {name: shape for name, shape in layers.items() if any(_matches(name, target) for target in target_modules)}


def lora_targets(config: ModelConfig) -> dict[str, list[tuple[int, int]]]:
    """Short module name → (in, out) of each layer that has it: what ``all-linear`` means without the head."""
    targets: dict[str, list[tuple[int, int]]] = {}
    for name, shape in linear_layers(config).items():
        targets.setdefault(name.rsplit(".", 1)[-1], []).append(shape)
    return targets


def parameter_count(tensors: Mapping[str, Shape]) -> int:
    """Elements of all tensors together."""
    return sum(math.prod(shape) for shape in tensors.values())


def _matches(name: str, target: str) -> bool:
    return name == target or name.endswith(f".{target}")


def _join(namespace: str, rest: str) -> str:
    return f"{namespace}.{rest}" if namespace else rest


def _outer_tensors(config: ModelConfig, namespace: str) -> dict[str, Shape]:
    h = config.hidden
    if config.family is not Family.GPT2:
        outer: dict[str, Shape] = {"embed_tokens.weight": (config.vocab, h), "norm.weight": (h,)}
    else:
        positions = config.max_positions or 0
        outer = {"wte.weight": (config.vocab, h), "wpe.weight": (positions, h), "ln_f.weight": (h,), "ln_f.bias": (h,)}
    return {_join(namespace, name): shape for name, shape in outer.items()}


def _block(config: ModelConfig, layer: int) -> dict[str, Shape]:
    """Tensors of one block, names relative to it."""
    tensors: dict[str, Shape] = {}
    for name, (inputs, outputs) in _linears(config, layer).items():
        conv1d = config.family is Family.GPT2
        tensors[f"{name}.weight"] = (inputs, outputs) if conv1d else (outputs, inputs)
        if _has_bias(config, name):
            tensors[f"{name}.bias"] = (outputs,)
    return tensors | _small_tensors(config, layer)


def _linears(config: ModelConfig, layer: int) -> dict[str, tuple[int, int]]:
    """Linear layers of one block, name relative to it → (in, out)."""
    h, i = config.hidden, config.intermediate
    if config.family is Family.GPT2:
        return {"attn.c_attn": (h, 3 * h), "attn.c_proj": (h, h), "mlp.c_fc": (h, i), "mlp.c_proj": (i, h)}
    mlp = {"mlp.gate_proj": (h, i), "mlp.up_proj": (h, i), "mlp.down_proj": (i, h)}
    if config.layer_types[layer] == LINEAR:
        return _linear_attention(h, _dims(config)) | mlp
    gate = 2 if config.family is Family.QWEN3_5 else 1  # Qwen3.5's q_proj yields a gate beside the queries
    return {
        "self_attn.q_proj": (h, gate * config.query_dim),
        "self_attn.k_proj": (h, config.kv_dim),
        "self_attn.v_proj": (h, config.kv_dim),
        "self_attn.o_proj": (config.query_dim, h),
    } | mlp


def _linear_attention(hidden: int, dims: LinearAttention) -> dict[str, tuple[int, int]]:
    return {
        "linear_attn.in_proj_qkv": (hidden, dims.conv_dim),
        "linear_attn.in_proj_z": (hidden, dims.value_dim),
        "linear_attn.in_proj_b": (hidden, dims.value_heads),
        "linear_attn.in_proj_a": (hidden, dims.value_heads),
        "linear_attn.out_proj": (dims.value_dim, hidden),
    }


def _has_bias(config: ModelConfig, name: str) -> bool:
    if name.startswith("linear_attn."):
        return False
    if name.startswith("mlp."):
        return config.mlp_bias
    return config.attention_bias and not (config.family is Family.QWEN2 and name.endswith("o_proj"))


def _small_tensors(config: ModelConfig, layer: int) -> dict[str, Shape]:
    """Norms, convolution and decay of one block."""
    h: Shape = (config.hidden,)
    if config.family is Family.GPT2:
        return {f"{norm}.{part}": h for norm in ("ln_1", "ln_2") for part in ("weight", "bias")}
    tensors: dict[str, Shape] = {"input_layernorm.weight": h, "post_attention_layernorm.weight": h}
    if config.layer_types[layer] == LINEAR:
        dims = _dims(config)
        tensors["linear_attn.conv1d.weight"] = (dims.conv_dim, 1, dims.kernel)
        tensors["linear_attn.norm.weight"] = (dims.value_head_dim,)
        tensors |= {f"linear_attn.{name}": (dims.value_heads,) for name in ("dt_bias", "A_log")}
    elif config.qk_norm:
        tensors |= {f"self_attn.{name}.weight": (config.head_dim,) for name in ("q_norm", "k_norm")}
    return tensors


def _dims(config: ModelConfig) -> LinearAttention:
    assert config.linear is not None, "only a hybrid config has linear-attention layers"
    return config.linear
