"""Size of a replica's KV cache on a CPU, and its longest sequence, from the base's config and the machine's memory.

On a CPU, vLLM expects the size of its KV cache in bytes. If the cache cannot hold one sequence of the served length,
vLLM exits after half a minute. So the size is computed here with vLLM's own arithmetic, before vLLM starts:

    served length   the base's own, or as much of it as the memory for the KV cache holds
    KV cache        room for `CONCURRENT_TOKENS`, at least one sequence of the served length, at most the memory for it
    memory for it   the replica's allowance, less weights, adapters and the engine itself

An explicit setting is used unchanged. On a GPU, vLLM measures the free memory and chooses these values itself.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from serving.launch.lora_capacity import LoraSizes
from serving.settings import ServingSettings
from shared.base_models.config import MAX_LENGTH, ModelConfig
from shared.base_models.families import FULL
from shared.base_models.tensors import expected_tensors, parameter_count
from shared.base_models.weights import json_object
from shared.errors import Code, InvalidRequest, Unavailable

TOKENIZER_CONFIG_NAME = "tokenizer_config.json"
BLOCK_TOKENS = 128
"""Tokens in one of vLLM's blocks on a CPU."""
BATCH_TOKENS = 2048
"""Largest number of tokens in one step of vLLM's server on a CPU, by default."""
STATE_BYTES = 4
"""Bytes of an element of linear attention's state: an upper bound, as vLLM may use only 2."""
UNKNOWN_LENGTH = 2048
"""Context length that vLLM uses if the config does not name one."""

LEAST_CACHE_BYTES = 64 << 20
CONCURRENT_TOKENS = 32_768
LEAST_TOKENS = 512
"""Shortest useful context; the start is refused if a shorter one would be chosen."""
ENGINE_BYTES = 768 << 20
"""Memory of the server and its engine, without weights and caches."""


@dataclass(frozen=True, slots=True)
class CacheSizes:
    """Context length and cache size of a replica.

    Attributes:
        max_model_len: tokens of the longest sequence; None leaves it to vLLM.
        cache_bytes: size of the KV cache; None leaves it to vLLM.
        own_len: tokens that the base accepts; set only if the served length is shorter, for lack of memory.
        sequences: number of sequences of the served length that the cache holds at once; None if vLLM decides.
    """

    max_model_len: int | None
    cache_bytes: int | None
    own_len: int | None = None
    sequences: float | None = None

    def __str__(self) -> str:
        if self.cache_bytes is None:
            return f"up to {self.max_model_len:,} tokens" if self.max_model_len else "the base's own context"
        length = f"up to {self.max_model_len or UNKNOWN_LENGTH:,} tokens"
        if self.own_len:
            length += f" of the base's {self.own_len:,}, the limit of the KV cache"
        return f"{length}, KV cache {_gib(self.cache_bytes)} ({self.sequences:,.1f} sequences of that length)"


def weight_bytes(config: ModelConfig, dtype: str) -> int:
    """Return the bytes of the language model's weights in the engine's dtype."""
    return parameter_count(expected_tensors(config)) * _element(dtype)


def block_bytes(config: ModelConfig, dtype: str) -> int:
    """Return the bytes of one block of vLLM's pool, which has one page for each layer of a group of equal layers."""
    page, group, _ = _layout(config, dtype)
    return page * group


def sequence_bytes(config: ModelConfig, length: int, dtype: str, *, prefix_caching: bool) -> int:
    """Return the bytes of KV cache that vLLM needs for one sequence of ``length`` tokens."""
    page, group, block = _layout(config, dtype)
    full = config.layer_types.count(FULL)
    linear = config.layers - full
    tokens, more = length, 0
    if config.sliding_window is not None:
        # A window usually begins within a block, so it touches one more block.
        tokens, more = min(length, config.sliding_window - 1 + BATCH_TOKENS), 1
    pages = -(-full // group) * (-(-tokens // block) + more)
    # With prefix caching, the state after the previous step is kept in addition to the current one.
    pages += -(-linear // group) * (2 if prefix_caching else 1)
    return page * group * pages


def longest_sequence(config: ModelConfig, cache: int, length: int, dtype: str, *, prefix_caching: bool) -> int:
    """Return the length in tokens, up to ``length``, of the longest sequence that fits in ``cache`` bytes; a shorter
    one consists of whole blocks.
    """
    if _needed(config, length, dtype, prefix_caching) <= cache:
        return length
    least, most = 0, length // BLOCK_TOKENS
    while least < most:
        middle = (least + most + 1) // 2
        fits = _needed(config, middle * BLOCK_TOKENS, dtype, prefix_caching) <= cache
        least, most = (middle, most) if fits else (least, middle - 1)
    return least * BLOCK_TOKENS


def choose_cache(
    settings: ServingSettings, config: ModelConfig, sizes: LoraSizes, *, dtype: str, own_len: int | None, memory: int
) -> CacheSizes:
    """Choose the served length and the KV cache if the settings leave them open.

    Args:
        settings: settings of the replica.
        config: config of the served base.
        sizes: sizes of adapters.
        dtype: dtype in which the engine computes.
        own_len: tokens that the base accepts; None: its files name no length.
        memory: bytes that the replica may use.

    Raises:
        InvalidRequest: ``BASE_DOES_NOT_FIT``: one sequence of the requested length, or of the shortest useful length,
            does not fit in the memory.
    """
    requested = settings.serving_max_model_len
    if settings.serving_device == "cuda":
        return CacheSizes(requested, settings.serving_kv_cache_bytes)
    length, prefix = requested or own_len or UNKNOWN_LENGTH, settings.serving_prefix_caching
    other_bytes = weight_bytes(config, dtype) + ENGINE_BYTES + sizes.most_bytes
    room = settings.serving_kv_cache_bytes or max(0, memory - other_bytes)
    served = longest_sequence(config, room, length, dtype, prefix_caching=prefix)
    if served < (length if requested else min(length, LEAST_TOKENS)):
        raise _does_not_fit(settings, config, dtype, served, length, room, other_bytes, memory)
    needed = _needed(config, served, dtype, prefix)
    token = sequence_bytes(config, length, dtype, prefix_caching=prefix) / length
    wish = max(LEAST_CACHE_BYTES, int(CONCURRENT_TOKENS * token))
    cache = settings.serving_kv_cache_bytes or max(needed, min(room, wish))
    shortened = own_len if served < length else None
    stated = served if requested or own_len or shortened else None
    return CacheSizes(stated, cache, shortened, cache / sequence_bytes(config, served, dtype, prefix_caching=prefix))


def own_length(config: ModelConfig, folder: Path) -> int | None:
    """Return the number of tokens that the base accepts, from its config and its tokenizer's config; None if neither
    names it.
    """
    path = folder / TOKENIZER_CONFIG_NAME
    stated = json_object(path.read_bytes(), path.name, Code.MODEL_CONFIG_INVALID) if path.is_file() else {}
    limits = [config.max_positions, stated.get("model_max_length")]
    # transformers writes 10^30 for a tokenizer without a limit.
    return min(
        (int(limit) for limit in limits if isinstance(limit, int | float) and 0 < limit <= MAX_LENGTH), default=None
    )


def check_free(settings: ServingSettings, cache: CacheSizes, weights: int, free: int) -> None:
    """Refuse a start if too little memory is free now: vLLM itself would fail only after reading the weights.

    Raises:
        Unavailable: ``BASE_DOES_NOT_FIT``.
    """
    needed = weights + (cache.cache_bytes or 0)
    if settings.serving_device == "cpu" and needed > free:
        raise Unavailable(
            Code.BASE_DOES_NOT_FIT,
            f"{settings.serving_base} needs {_gib(needed)} of memory for weights and KV cache, but only {_gib(free)} "
            f"is free now.",
            remedy="End other programs on this machine, or lower MENS_SERVING_KV_CACHE_BYTES or MENS_SERVING_MAX_MODEL_LEN.",
            param="MENS_SERVING_KV_CACHE_BYTES",
            details={"needed_bytes": needed, "available_bytes": free},
        )


def _needed(config: ModelConfig, length: int, dtype: str, prefix_caching: bool) -> int:
    # vLLM keeps one additional block of its pool empty.
    return sequence_bytes(config, length, dtype, prefix_caching=prefix_caching) + block_bytes(config, dtype)


def _layout(config: ModelConfig, dtype: str) -> tuple[int, int, int]:
    """Return the bytes of a layer's page, the layers of a group, and the tokens of a block."""
    token = 2 * config.kv_dim * _element(dtype)
    if config.linear is None:
        return token * BLOCK_TOKENS, config.layers, BLOCK_TOKENS
    linear = config.linear
    state = linear.conv_dim * (linear.kernel - 1) * _element(dtype)
    state += linear.value_heads * linear.value_head_dim * linear.key_head_dim * STATE_BYTES
    # The state of a linear-attention layer fills one page, so its size determines the number of tokens in a block.
    block = BLOCK_TOKENS * -(-state // (BLOCK_TOKENS * token))
    counts = sorted({config.layer_types.count(kind) for kind in set(config.layer_types)})
    fewest, most = counts[0], counts[-1]
    # A group has as many layers as the less frequent kind of layer, unless both kinds are about equally frequent.
    return token * block, most if most < fewest * 1.5 else fewest, block


def _element(dtype: str) -> int:
    return 4 if dtype == "float32" else 2


def _does_not_fit(
    settings: ServingSettings,
    config: ModelConfig,
    dtype: str,
    served: int,
    length: int,
    room: int,
    other_bytes: int,
    memory: int,
) -> InvalidRequest:
    """Return the error for a base that does not fit. It names the needed and the available size, and the settings to
    change.
    """
    least = length if settings.serving_max_model_len else min(length, LEAST_TOKENS)
    needed = _needed(config, least, dtype, settings.serving_prefix_caching)
    shorter = f"lower MENS_SERVING_MAX_MODEL_LEN to {served}" if served >= LEAST_TOKENS else None
    if settings.serving_kv_cache_bytes:
        available, param = room, "MENS_SERVING_KV_CACHE_BYTES"
        message = (
            f"A sequence of {least:,} tokens needs a KV cache of {needed:,} bytes ({_gib(needed)}), and"
            f" MENS_SERVING_KV_CACHE_BYTES is {room:,}."
        )
        ways = [shorter, f"raise MENS_SERVING_KV_CACHE_BYTES to {needed}"]
    else:
        available, needed, param = memory, other_bytes + needed, "MENS_SERVING_MEMORY_BYTES"
        message = (
            f"{settings.serving_base} needs {_gib(needed)} of memory in {dtype} with a context of {least:,} tokens"
            f" ({_gib(weight_bytes(config, dtype))} of it for weights), and this replica may use {_gib(memory)}."
        )
        half = "set MENS_SERVING_DTYPE=bfloat16, which halves weights and KV cache" if dtype == "float32" else None
        ways = [
            shorter,
            half,
            "serve fewer bases on this machine",
            "raise MENS_SERVING_MEMORY_BYTES, or use a machine with more",
        ]
    remedy = "; or ".join(way for way in ways if way)
    return InvalidRequest(
        Code.BASE_DOES_NOT_FIT,
        message,
        remedy=f"{remedy[0].upper()}{remedy[1:]}.",
        param=param,
        details={"needed_bytes": needed, "available_bytes": available, "max_model_len": least},
    )


def _gib(size: int) -> str:
    return f"{size / (1 << 30):,.2f} GiB"
