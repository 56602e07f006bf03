"""A base model's config.json: its family and every number that decides a shape. Pure; no GPU library.

Names and defaults are those of transformers 5.19; the tests compare them with models that transformers builds.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NoReturn

from pydantic import BaseModel, ConfigDict

from shared.base_models.families import FAMILY_OF_MODEL_TYPE, FULL, LINEAR, SLIDING, SPECS, Family, FamilySpec, Size
from shared.errors import ArtifactInvalid, Code

# A config is untrusted, and each layer becomes a dozen entries of `expected_tensors`.
MAX_LAYERS = 1024
MAX_LENGTH = 1 << 28
DTYPES = frozenset({"float32", "float16", "bfloat16"})
"""Stored dtypes of weights that can be tuned and served."""


class ModelValue(BaseModel):
    """Frozen, closed value: the base of every pydantic model of this package."""

    model_config = ConfigDict(extra="forbid", frozen=True, protected_namespaces=())


class LinearAttention(ModelValue):
    """Gated delta-net dimensions of a hybrid model (Qwen3.5)."""

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


class ModelConfig(ModelValue):
    """The numbers of a config.json that decide shapes.

    Attributes:
        composite: a vision-language config; its language part is in ``text_config``.
        max_positions: longest context; None when the config does not say.
        tied: the head is the embedding matrix, so no ``lm_head`` is stored.
        attention_bias, mlp_bias: linear layers carry biases (Qwen2: only q, k and v, always).
        dtype: stored dtype as the config claims it, e.g. ``bfloat16``.
        sliding_window: number of earlier tokens that every layer sees; None: some layer sees all of them.
        linear: None unless the family is hybrid.
    """

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
    sliding_window: int | None = None

    @property
    def spec(self) -> FamilySpec:
        """Specification of the model's family."""
        return SPECS[self.family]

    @property
    def query_dim(self) -> int:
        """Width of all query heads together."""
        return self.heads * self.head_dim

    @property
    def kv_dim(self) -> int:
        """Width of all key (or value) heads together."""
        return self.kv_heads * self.head_dim

    @property
    def sizes(self) -> dict[Size, int]:
        """The numbers that determine the shapes of a family's layout."""
        sizes: dict[Size, int] = {
            "hidden": self.hidden,
            "intermediate": self.intermediate,
            "vocab": self.vocab,
            "positions": self.max_positions or 0,
            "head": self.head_dim,
            "query": self.query_dim,
            "gated_query": 2 * self.query_dim,
            "kv": self.kv_dim,
            "qkv": self.query_dim + 2 * self.kv_dim,
        }
        if self.linear:
            sizes |= {
                "linear_conv": self.linear.conv_dim,
                "linear_kernel": self.linear.kernel,
                "linear_value": self.linear.value_dim,
                "linear_value_head": self.linear.value_head_dim,
                "linear_heads": self.linear.value_heads,
            }
        return sizes


def parse_model_config(raw: Mapping[str, Any]) -> ModelConfig:
    """Read a parsed config.json.

    Raises:
        ArtifactInvalid: ``MODEL_FAMILY_UNSUPPORTED``, ``MODEL_CONFIG_INVALID`` or ``LAYER_TYPES_INVALID``; ``param`` is
            the key.
    """
    family = _family(raw)
    spec = SPECS[family]
    composite = spec.composite and isinstance(raw.get("text_config"), Mapping)
    text: Mapping[str, Any] = raw["text_config"] if composite else raw
    if quantised := raw.get("quantization_config") or text.get("quantization_config"):
        _refuse_quantised(quantised)
    numbers = ConfigNumbers(spec, text)
    hidden, heads, layers = (
        numbers.required(key) for key in ("hidden_size", "num_attention_heads", "num_hidden_layers")
    )
    if layers > MAX_LAYERS:
        _invalid(numbers.name("num_hidden_layers"), f"is {layers}; at most {MAX_LAYERS} layers are supported")
    kv_heads = (numbers.optional("num_key_value_heads") if spec.grouped_heads else None) or heads
    if heads % kv_heads:
        _invalid("num_key_value_heads", f"is {kv_heads}, which does not divide {heads} heads")
    head_dim = numbers.optional("head_dim") if spec.stated_head_dim else None
    if head_dim is None and hidden % heads:
        name = numbers.name("num_attention_heads")
        _invalid(name, f"is {heads}, which does not divide the hidden size {hidden}")
    intermediate = numbers.optional("intermediate_size") if spec.derived_intermediate else None
    return ModelConfig(
        family=family,
        model_type=str(raw["model_type"]),
        composite=composite,
        hidden=hidden,
        layers=layers,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim or hidden // heads,
        intermediate=intermediate
        or (4 * hidden if spec.derived_intermediate else numbers.required("intermediate_size")),
        vocab=numbers.required("vocab_size"),
        max_positions=numbers.optional("max_position_embeddings"),
        layer_types=_layer_types(family, text, layers),
        tied=_flag(text, raw, "tie_word_embeddings", default=spec.tied),
        attention_bias=_bias(spec.attention_bias, text, "attention_bias"),
        mlp_bias=_bias(spec.mlp_bias, text, "mlp_bias"),
        dtype=_checked_dtype(_dtype(text) or _dtype(raw)),
        linear=_linear_attention(numbers) if spec.hybrid else None,
        sliding_window=_sliding_window(spec, numbers, text, layers),
    )


def _family(raw: Mapping[str, Any]) -> Family:
    model_type = raw.get("model_type")
    if not isinstance(model_type, str):
        _invalid("model_type", "is missing or not a string")
    if model_type not in FAMILY_OF_MODEL_TYPE:
        raise ArtifactInvalid(
            Code.MODEL_FAMILY_UNSUPPORTED,
            f"model_type is {model_type[:80]!r}; these can be tuned: {', '.join(sorted(FAMILY_OF_MODEL_TYPE))}.",
            remedy="Choose a base model of a supported family.",
            param="model_type",
        )
    return FAMILY_OF_MODEL_TYPE[model_type]


class ConfigNumbers:
    """Positive integers of a config.json by their common key, whatever the family calls them."""

    def __init__(self, spec: FamilySpec, raw: Mapping[str, Any]) -> None:
        self._spec, self._raw = spec, raw

    def name(self, key: str) -> str:
        """Return the family's own name of a key."""
        return self._spec.keys.get(key, key)

    def optional(self, key: str) -> int | None:
        """Return the value; the family's default when absent; None when null or without a default."""
        name = self.name(key)
        value = self._raw.get(name, self._spec.defaults.get(key))
        if value is None:
            return None
        # `true` is an int for Python.
        if not isinstance(value, int) or isinstance(value, bool) or not 0 < value <= MAX_LENGTH:
            _invalid(name, f"is {str(value)[:80]!r}, not a positive integer up to {MAX_LENGTH}")
        return value

    def required(self, key: str) -> int:
        """Return a required value."""
        value = self.optional(key)
        if value is None:
            _invalid(self.name(key), "is missing")
        return value


def _layer_types(family: Family, raw: Mapping[str, Any], layers: int) -> tuple[str, ...]:
    """Return the kind of each layer. Sliding windows change no tensor, so all families but hybrid ones count as full
    attention.
    """
    stated = raw.get("layer_types")
    if stated is not None and not isinstance(stated, list):
        _invalid_layer_types("is not a list")
    if not SPECS[family].hybrid:
        if LINEAR in (stated or ()):
            _invalid_layer_types(f"names {LINEAR}, which {family} does not have")
        return (FULL,) * layers
    if stated is None:
        interval = raw.get("full_attention_interval", 4)
        if not isinstance(interval, int) or interval < 1:
            _invalid("full_attention_interval", "is not a positive integer")
        return tuple(LINEAR if (index + 1) % interval else FULL for index in range(layers))
    if len(stated) != layers:
        _invalid_layer_types(f"must list one kind for each of the {layers} layers")
    if unknown := [str(kind)[:40] for kind in stated if kind not in (FULL, LINEAR)]:
        _invalid_layer_types(f"holds {unknown[0]!r}; a layer is {FULL} or {LINEAR}")
    return tuple(stated)


def _sliding_window(spec: FamilySpec, numbers: ConfigNumbers, raw: Mapping[str, Any], layers: int) -> int | None:
    """Return the window if every layer has it; otherwise None, because some layers need the cache of the whole
    sequence.
    """
    window = (
        numbers.optional("sliding_window") if spec.sliding_window is not None and raw.get("sliding_window") else None
    )
    if window is None or not _flag(raw, raw, "use_sliding_window", default=spec.sliding_window is True):
        return None
    stated = raw.get("layer_types")
    if isinstance(stated, list):
        return window if set(stated) == {SLIDING} else None
    first = raw.get("max_window_layers", 0 if spec.sliding_window else layers)
    return window if first == 0 else None


def _linear_attention(numbers: ConfigNumbers) -> LinearAttention:
    linear = LinearAttention(
        kernel=numbers.required("linear_conv_kernel_dim"),
        key_head_dim=numbers.required("linear_key_head_dim"),
        value_head_dim=numbers.required("linear_value_head_dim"),
        key_heads=numbers.required("linear_num_key_heads"),
        value_heads=numbers.required("linear_num_value_heads"),
    )
    if linear.value_heads % linear.key_heads:
        _invalid("linear_num_value_heads", f"is {linear.value_heads}, not a multiple of {linear.key_heads} key heads")
    return linear


def _bias(fixed: bool | None, raw: Mapping[str, Any], key: str) -> bool:
    return _flag(raw, raw, key, default=False) if fixed is None else fixed


def _flag(text: Mapping[str, Any], raw: Mapping[str, Any], key: str, *, default: bool) -> bool:
    # A composite config may have the flag outside of its language part.
    value = text.get(key, raw.get(key, default))
    if not isinstance(value, bool):
        _invalid(key, "is not true or false")
    return value


def _dtype(raw: Mapping[str, Any]) -> str | None:
    # Newer releases of transformers write `dtype`, older ones `torch_dtype`.
    value = raw.get("dtype") or raw.get("torch_dtype")
    return value if isinstance(value, str) else None


def _checked_dtype(dtype: str | None) -> str | None:
    # Some exporters write `auto` to leave the choice to the weights.
    if dtype not in {None, "auto", *DTYPES}:
        _invalid("dtype", f"is {str(dtype)[:40]!r}; only weights of {', '.join(sorted(DTYPES))} can be tuned")
    return dtype


def _refuse_quantised(quantised: object) -> NoReturn:
    """Refuse a checkpoint with quantised weights, naming the method (gptq, awq, bitsandbytes, fp8)."""
    method = quantised.get("quant_method") if isinstance(quantised, Mapping) else None
    raise ArtifactInvalid(
        Code.MODEL_CONFIG_INVALID,
        f"config.json: quantization_config is set ({str(method or 'no method')[:40]}), but Mens quantises only "
        f"full-precision bases to NF4.",
        remedy="Add the repository with the model's full-precision weights; quantised ones are often derived from it, as -GPTQ,"
        " -AWQ, -FP8 or -bnb-4bit.",
        param="quantization_config",
    )


def _invalid(key: str, reason: str) -> NoReturn:
    raise ArtifactInvalid(
        Code.MODEL_CONFIG_INVALID,
        f"config.json: {key} {reason}.",
        remedy="Use the config.json that was published with the weights.",
        param=key,
    )


def _invalid_layer_types(reason: str) -> NoReturn:
    raise ArtifactInvalid(
        Code.LAYER_TYPES_INVALID,
        f"config.json: layer_types {reason}.",
        remedy="Use the config.json that was published with the weights.",
        param="layer_types",
    )


def broken_model(code: Code, reason: str, param: str, **details: object) -> ArtifactInvalid:
    """Return the error for a folder that is not a complete, consistent model; ``reason`` has no full stop."""
    remedy = "Fetch the whole model folder again, and check that config and weights belong together."
    return ArtifactInvalid(code, f"{reason}.", remedy=remedy, param=param, details=details)
