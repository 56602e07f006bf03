"""A base model's config.json: its family and every number that decides a shape. Pure; no GPU library.

Names and defaults are those of transformers 5.19; the tests hold them against models that transformers builds.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any, NoReturn

from pydantic import BaseModel, ConfigDict

from shared.errors import ArtifactInvalid, Code

MAX_LAYERS = 1024
MAX_LENGTH = 1 << 28
FULL, LINEAR = "full_attention", "linear_attention"


class Family(StrEnum):
    """Architectures that can be tuned."""

    QWEN2 = "qwen2"
    QWEN3 = "qwen3"
    QWEN3_5 = "qwen3_5"
    LLAMA = "llama"
    MISTRAL = "mistral"
    GPT2 = "gpt2"


FAMILIES = {family.value: family for family in Family} | {"qwen3_5_text": Family.QWEN3_5}
"""``model_type`` → family: exact names only, because a near one (``qwen3_moe``, ``qwen2_vl``) has other tensors."""

GPT2_NAMES = {
    "hidden_size": "n_embd",
    "num_hidden_layers": "n_layer",
    "num_attention_heads": "n_head",
    "max_position_embeddings": "n_positions",
    "intermediate_size": "n_inner",
}
LINEAR_DEFAULTS = {
    "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 32,
}
DEFAULTS: dict[Family, dict[str, int]] = {
    Family.QWEN2: {"num_key_value_heads": 32},
    Family.QWEN3: {"num_key_value_heads": 32, "head_dim": 128},
    Family.QWEN3_5: {"num_key_value_heads": 4, "head_dim": 256, **LINEAR_DEFAULTS},
    Family.LLAMA: {},
    Family.MISTRAL: {"num_key_value_heads": 8},
    Family.GPT2: {"max_position_embeddings": 1024},
}
"""What transformers puts in place of an absent key; an explicit null means another rule (heads, hidden / heads, 4·hidden)."""


class LinearAttention(BaseModel):
    """Gated delta-net dimensions of a hybrid model (Qwen3.5)."""

    model_config = ConfigDict(frozen=True)
    kernel: int
    key_head_dim: int
    value_head_dim: int
    key_heads: int
    value_heads: int

    @property
    def key_dim(self) -> int:
        return self.key_head_dim * self.key_heads

    @property
    def value_dim(self) -> int:
        return self.value_head_dim * self.value_heads

    @property
    def conv_dim(self) -> int:
        """Channels of the short convolution: queries, keys and values."""
        return 2 * self.key_dim + self.value_dim


class ModelConfig(BaseModel):
    """The numbers of a config.json that decide shapes.

    Attributes:
        composite: a vision-language config; its language part is in ``text_config``.
        max_positions: longest context; None when the config does not say.
        tied: the head is the embedding matrix, so no ``lm_head`` is stored.
        attention_bias, mlp_bias: linear layers carry biases (Qwen2: only q, k and v, always).
        dtype: stored dtype as the config claims it, e.g. ``bfloat16``.
        linear: None unless the family is hybrid.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", protected_namespaces=())
    family: Family
    model_type: str
    composite: bool
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    vocab: int
    max_positions: int | None
    layer_types: tuple[str, ...]
    tied: bool
    attention_bias: bool
    mlp_bias: bool
    dtype: str | None
    linear: LinearAttention | None

    @property
    def query_dim(self) -> int:
        """Width of all query heads together."""
        return self.heads * self.head_dim

    @property
    def kv_dim(self) -> int:
        """Width of all key (or value) heads together."""
        return self.kv_heads * self.head_dim

    @property
    def qk_norm(self) -> bool:
        """Whether queries and keys are normalised per head."""
        return self.family in (Family.QWEN3, Family.QWEN3_5)


def parse_model_config(raw: Mapping[str, Any]) -> ModelConfig:
    """Read a parsed config.json.

    Raises:
        ArtifactInvalid: ``MODEL_FAMILY_UNSUPPORTED``, ``MODEL_CONFIG_INVALID`` or ``LAYER_TYPES_INVALID``; ``param`` is
            the key.
    """
    family = _family(raw)
    composite = family is Family.QWEN3_5 and isinstance(raw.get("text_config"), Mapping)
    text: Mapping[str, Any] = raw["text_config"] if composite else raw
    if raw.get("quantization_config") or text.get("quantization_config"):
        _invalid("quantization_config", "is set, but only full-precision bases are quantised to NF4 here")
    fields = _Fields(family, text)
    hidden, heads, layers = (fields.count(key) for key in ("hidden_size", "num_attention_heads", "num_hidden_layers"))
    if layers > MAX_LAYERS:
        _invalid(fields.name("num_hidden_layers"), f"is {layers}; at most {MAX_LAYERS} layers are taken")
    kv_heads = heads if family is Family.GPT2 else fields.optional("num_key_value_heads") or heads
    if heads % kv_heads:
        _invalid("num_key_value_heads", f"is {kv_heads}, which does not divide {heads} heads")
    return ModelConfig(
        family=family,
        model_type=str(raw["model_type"]),
        composite=composite,
        hidden=hidden,
        layers=layers,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=_head_dim(fields, hidden, heads),
        intermediate=_intermediate(fields, hidden),
        vocab=fields.count("vocab_size"),
        max_positions=fields.optional("max_position_embeddings"),
        layer_types=_layer_types(family, text, layers),
        tied=_flag(text, raw, "tie_word_embeddings", default=family is Family.GPT2),
        attention_bias=family is Family.GPT2 or _attention_bias(family, text),
        mlp_bias=family is Family.GPT2 or (family is Family.LLAMA and _flag(text, text, "mlp_bias", default=False)),
        dtype=_dtype(text) or _dtype(raw),
        linear=_linear(fields) if family is Family.QWEN3_5 else None,
    )


def _family(raw: Mapping[str, Any]) -> Family:
    model_type = raw.get("model_type")
    if not isinstance(model_type, str):
        _invalid("model_type", "is missing or no string")
    if model_type not in FAMILIES:
        raise ArtifactInvalid(
            Code.MODEL_FAMILY_UNSUPPORTED,
            f"model_type is {model_type[:80]!r}; these can be tuned: {', '.join(sorted(FAMILIES))}.",
            remedy="Choose a base model of one of these families.",
            param="model_type",
        )
    return FAMILIES[model_type]


class _Fields:
    """Positive integers of a config by their common name, whatever the family calls them."""

    def __init__(self, family: Family, raw: Mapping[str, Any]) -> None:
        self._family, self._raw = family, raw

    def name(self, key: str) -> str:
        return GPT2_NAMES.get(key, key) if self._family is Family.GPT2 else key

    def optional(self, key: str) -> int | None:
        """The value; the family's default when absent; None when null or without a default."""
        name = self.name(key)
        value = self._raw.get(name, DEFAULTS[self._family].get(key))
        if value is None:
            return None
        if not isinstance(value, int) or isinstance(value, bool) or not 0 < value <= MAX_LENGTH:
            _invalid(name, f"is {str(value)[:80]!r}, not a positive integer up to {MAX_LENGTH}")
        return value

    def count(self, key: str) -> int:
        """A value that must be there."""
        value = self.optional(key)
        if value is None:
            _invalid(self.name(key), "is missing")
        return value


def _head_dim(fields: _Fields, hidden: int, heads: int) -> int:
    if fields.name("hidden_size") == "hidden_size" and (stated := fields.optional("head_dim")):
        return stated
    if hidden % heads:
        _invalid(fields.name("num_attention_heads"), f"is {heads}, which does not divide the hidden size {hidden}")
    return hidden // heads


def _intermediate(fields: _Fields, hidden: int) -> int:
    if fields.name("intermediate_size") == "n_inner":
        return fields.optional("intermediate_size") or 4 * hidden
    return fields.count("intermediate_size")


def _layer_types(family: Family, raw: Mapping[str, Any], layers: int) -> tuple[str, ...]:
    """Kind of each layer. Sliding windows change no tensor, so all but a hybrid family count as full attention."""
    stated = raw.get("layer_types")
    if stated is not None and not isinstance(stated, list):
        _bad_layers("is not a list")
    if family is not Family.QWEN3_5:
        if LINEAR in (stated or ()):
            _bad_layers(f"names {LINEAR}, which {family} does not have")
        return (FULL,) * layers
    if stated is None:
        interval = raw.get("full_attention_interval", 4)
        if not isinstance(interval, int) or interval < 1:
            _invalid("full_attention_interval", "is not a positive integer")
        return tuple(LINEAR if (index + 1) % interval else FULL for index in range(layers))
    if len(stated) != layers:
        _bad_layers(f"must list {layers} layers, one kind for each")
    if strangers := [str(kind)[:40] for kind in stated if kind not in (FULL, LINEAR)]:
        _bad_layers(f"holds {strangers[0]!r}; a layer is {FULL} or {LINEAR}")
    return tuple(stated)


def _linear(fields: _Fields) -> LinearAttention:
    linear = LinearAttention(
        kernel=fields.count("linear_conv_kernel_dim"),
        key_head_dim=fields.count("linear_key_head_dim"),
        value_head_dim=fields.count("linear_value_head_dim"),
        key_heads=fields.count("linear_num_key_heads"),
        value_heads=fields.count("linear_num_value_heads"),
    )
    if linear.value_heads % linear.key_heads:
        _invalid("linear_num_value_heads", f"is {linear.value_heads}, not a multiple of {linear.key_heads} key heads")
    return linear


def _attention_bias(family: Family, raw: Mapping[str, Any]) -> bool:
    if family in (Family.QWEN2, Family.MISTRAL):  # fixed in their code, whatever the config says
        return family is Family.QWEN2
    return _flag(raw, raw, "attention_bias", default=False)


def _flag(text: Mapping[str, Any], raw: Mapping[str, Any], key: str, *, default: bool) -> bool:
    value = text.get(key, raw.get(key, default))
    if not isinstance(value, bool):
        _invalid(key, "is not true or false")
    return value


def _dtype(raw: Mapping[str, Any]) -> str | None:
    value = raw.get("dtype") or raw.get("torch_dtype")
    return value if isinstance(value, str) else None


def _invalid(key: str, reason: str) -> NoReturn:
    raise ArtifactInvalid(
        Code.MODEL_CONFIG_INVALID,
        f"config.json: {key} {reason}.",
        remedy="Use the config.json that was published with the weights.",
        param=key,
    )


def _bad_layers(reason: str) -> NoReturn:
    raise ArtifactInvalid(
        Code.LAYER_TYPES_INVALID,
        f"config.json: layer_types {reason}.",
        remedy="Use the config.json that was published with the weights.",
        param="layer_types",
    )
