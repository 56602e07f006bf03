"""The number of threads by the size of a base's layers."""

from __future__ import annotations

import pytest

from shared.base_models.config import parse_model_config
from shared.base_models.cpu_threads import MOST_THREADS, cpu_threads
from tests.support.tiny_base import CONFIG

SMOLLM2 = CONFIG | {
    "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 576, "num_hidden_layers": 30,
    "num_attention_heads": 9, "num_key_value_heads": 3, "head_dim": 64, "intermediate_size": 1536, "vocab_size": 49152,
}  # fmt: skip


@pytest.mark.parametrize(
    ("raw", "cores", "threads"),
    [(CONFIG | {"vocab_size": 512}, 8, 1), (SMOLLM2, 8, 8), (SMOLLM2, 1, 1), (SMOLLM2, 96, MOST_THREADS)],
)
def test_threads_follow_from_the_size_of_the_layers(raw: dict[str, object], cores: int, threads: int) -> None:
    assert cpu_threads(parse_model_config(raw), cores) == threads
