"""Bases that a CPU cannot serve, by the size of their heads."""

from __future__ import annotations

from typing import Any

import pytest

from shared.base_models.config import parse_model_config
from shared.base_models.cpu_heads import CPU_HEAD_SIZES, UnservedHead, unserved_head
from tests.serving.launch.launches import QWEN35_4B

TEXT: dict[str, Any] = QWEN35_4B["text_config"]


@pytest.mark.parametrize(
    ("changes", "head"),
    [
        ({}, None),
        ({"head_dim": 24}, ("head_dim", 24)),
        ({"linear_key_head_dim": 32}, ("linear_key_head_dim", 32)),
        ({"linear_value_head_dim": 256}, ("linear_value_head_dim", 256)),
    ],
)
def test_first_head_without_a_kernel_is_named(changes: dict[str, int], head: tuple[str, int] | None) -> None:
    unserved = unserved_head(parse_model_config(TEXT | changes))
    assert (unserved and unserved[:2]) == head


def test_message_names_the_sizes_that_are_served() -> None:
    assert (
        str(UnservedHead("head_dim", 24, (32, 64))) == "The base's head_dim is 24; on a CPU vLLM supports only 32, 64."
    )


@pytest.mark.vllm
def test_sizes_are_those_of_the_installed_vllm() -> None:
    from vllm.v1.attention.backends.cpu_attn import CPUAttentionBackend

    assert tuple(CPUAttentionBackend.get_supported_head_sizes()) == CPU_HEAD_SIZES
