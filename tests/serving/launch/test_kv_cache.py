"""The served length and the KV cache on a CPU: they fit the memory, or the start is refused with both sizes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.launch.kv_cache import (
    ENGINE_BYTES,
    LEAST_TOKENS,
    CacheSizes,
    block_bytes,
    check_free,
    choose_cache,
    longest_sequence,
    own_length,
    sequence_bytes,
    weight_bytes,
)
from serving.launch.lora_capacity import LoraSizes
from serving.launch.prepare import fitted
from serving.settings import ServingSettings
from shared.base_models.config import parse_model_config
from shared.errors import MensError
from tests.serving.launch.launches import MISTRAL_7B, QWEN35_4B, TINY

SMOLLM2 = {
    "model_type": "llama",
    "hidden_size": 576,
    "num_hidden_layers": 30,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "intermediate_size": 1536,
    "vocab_size": 49152,
    "max_position_embeddings": 8192,
    "tie_word_embeddings": True,
    "dtype": "bfloat16",
}
CONFIGS = [parse_model_config(raw) for raw in (TINY, SMOLLM2, MISTRAL_7B | {"sliding_window": 4096}, QWEN35_4B)]
NO_ADAPTERS = LoraSizes(8, 1, 1, 1 << 20, 1 << 30)
GIB = 1 << 30


def choose(raw: dict[str, object], memory: int, own_len: int | None = 8192, **more: object) -> CacheSizes:
    config = parse_model_config(raw)
    settings = ServingSettings(serving_base="b", **more)
    dtype = "bfloat16" if config.spec.hybrid else settings.serving_dtype or "float32"
    return choose_cache(settings, config, NO_ADAPTERS, dtype=dtype, own_len=own_len, memory=memory)


def refusal(*arguments: object, **more: object) -> MensError:
    with pytest.raises(MensError) as caught:
        choose(*arguments, **more)  # type: ignore[arg-type]
    return caught.value


def test_real_base_gets_its_own_length_and_room_for_several_sequences() -> None:
    sizes = choose(SMOLLM2, 24 * GIB)
    # 30 layers, keys and values of 3 heads of 64, fp32.
    assert sequence_bytes(CONFIGS[1], 8192, "float32", prefix_caching=True) == 8192 * 30 * 2 * 3 * 64 * 4
    assert (sizes.max_model_len, sizes.own_len, sizes.sequences) == (8192, None, 4)


def test_tiny_base_keeps_the_cache_that_suits_it() -> None:
    assert choose(TINY, 24 * GIB, 512) == CacheSizes(512, 64 << 20, None, 64)


def test_little_memory_shortens_the_length_and_says_so() -> None:
    sizes = choose(SMOLLM2, 3 * GIB // 2)
    assert sizes.max_model_len and LEAST_TOKENS <= sizes.max_model_len < 8192 == sizes.own_len
    assert "of the base's 8,192" in str(sizes)


@pytest.mark.parametrize("memory", [GIB // 2, GIB, 5 * GIB // 4])
def test_base_that_does_not_fit_with_its_adapters_is_named_before_them(memory: int) -> None:
    def fit(memory: int) -> CacheSizes:
        return fitted(ServingSettings(serving_base="b"), CONFIGS[1], "float32", 0, 8192, memory)[1]

    with pytest.raises(MensError) as caught:
        fit(memory)
    assert (caught.value.code, caught.value.param) == ("BASE_DOES_NOT_FIT", "MENS_SERVING_MEMORY_BYTES")
    assert fit(caught.value.details["needed_bytes"]).max_model_len, "what the error says is enough"


def test_base_without_room_is_refused_with_both_sizes_and_the_settings() -> None:
    error = refusal(SMOLLM2, 5 * GIB // 4)
    assert (error.code, error.param) == ("BASE_DOES_NOT_FIT", "MENS_SERVING_MEMORY_BYTES")
    assert error.details["needed_bytes"] > error.details["available_bytes"] == 5 * GIB // 4
    assert "1.25 GiB" in error.message and "MENS_SERVING_DTYPE=bfloat16" in str(error.remedy)
    # And what the remedy says helps.
    assert choose(SMOLLM2, 5 * GIB // 4, serving_dtype="bfloat16").max_model_len


def test_length_of_the_setting_is_never_shortened() -> None:
    error = refusal(SMOLLM2, 3 * GIB // 2, serving_max_model_len=8192)
    shorter = int(str(error.remedy).partition("MENS_SERVING_MAX_MODEL_LEN to ")[2].partition(";")[0])
    assert choose(SMOLLM2, 3 * GIB // 2, serving_max_model_len=shorter).max_model_len == shorter


def test_cache_of_the_setting_is_taken_and_the_length_follows_it() -> None:
    sizes = choose(SMOLLM2, GIB, serving_kv_cache_bytes=64 << 20)
    # What vLLM itself proposed for this base and 64 MiB, without the block that it keeps empty: 1,280 and not 1,408.
    assert (sizes.max_model_len, sizes.cache_bytes) == (1280, 64 << 20)
    error = refusal(SMOLLM2, GIB, serving_kv_cache_bytes=64 << 20, serving_max_model_len=8192)
    assert error.param == "MENS_SERVING_KV_CACHE_BYTES"
    raised = int(str(error.remedy).rpartition(" to ")[2].rstrip("."))
    assert choose(SMOLLM2, GIB, serving_kv_cache_bytes=raised, serving_max_model_len=8192).max_model_len == 8192


def test_gpu_is_left_to_vllm() -> None:
    assert choose(SMOLLM2, 1, serving_device="cuda") == CacheSizes(None, None)
    given = choose(SMOLLM2, 1, serving_device="cuda", serving_max_model_len=9, serving_kv_cache_bytes=1 << 20)
    assert given == CacheSizes(9, 1 << 20)


@given(
    config=st.sampled_from(CONFIGS),
    cache=st.integers(0, 1 << 36),
    length=st.integers(1, 1 << 18),
    prefix=st.booleans(),
)
def test_longest_sequence_fits_and_one_block_more_does_not(config, cache: int, length: int, prefix: bool) -> None:
    def fits(tokens: int) -> bool:
        needed = sequence_bytes(config, tokens, "float32", prefix_caching=prefix)
        return needed + block_bytes(config, "float32") <= cache

    longest = longest_sequence(config, cache, length, "float32", prefix_caching=prefix)
    assert longest <= length
    assert longest == 0 or fits(longest)
    assert longest == length or not fits(min(length, longest + 128))


@given(
    memory=st.integers(0, 1 << 36),
    own=st.integers(LEAST_TOKENS, 1 << 18),
    raw=st.sampled_from([TINY, SMOLLM2, QWEN35_4B]),
)
def test_what_is_chosen_never_takes_more_than_the_memory(memory: int, own: int, raw: dict[str, object]) -> None:
    config = parse_model_config(raw)
    try:
        sizes = choose(raw, memory, own)
    except MensError as error:
        assert error.details["needed_bytes"] > error.details["available_bytes"]
        return
    dtype = "bfloat16" if config.spec.hybrid else "float32"
    assert sizes.cache_bytes and sizes.sequences and sizes.sequences >= 1
    assert weight_bytes(config, dtype) + ENGINE_BYTES + NO_ADAPTERS.most_bytes + sizes.cache_bytes <= memory


def test_memory_that_is_missing_now_is_said_before_vllm_starts() -> None:
    settings, sizes = ServingSettings(serving_base="b"), CacheSizes(512, 3 * GIB, None, 1.0)
    check_free(settings, sizes, GIB, 4 * GIB)
    with pytest.raises(MensError, match=r"BASE_DOES_NOT_FIT: b needs 4.00 GiB .* but only 3.50 GiB is free"):
        check_free(settings, sizes, GIB, 7 * GIB // 2)
    check_free(ServingSettings(serving_base="b", serving_device="cuda"), CacheSizes(None, None), GIB, 0)


@pytest.mark.parametrize(
    ("positions", "tokenizer", "length"),
    [(8192, '{"model_max_length": 2048}', 2048), (8192, '{"model_max_length": 1e30}', 8192), (8192, None, 8192),
     (None, "{}", None)],
)  # fmt: skip
def test_own_length_is_the_least_that_the_files_name(tmp_path, positions, tokenizer, length) -> None:
    if tokenizer:
        (tmp_path / "tokenizer_config.json").write_text(tokenizer)
    assert own_length(parse_model_config(SMOLLM2 | {"max_position_embeddings": positions}), tmp_path) == length
