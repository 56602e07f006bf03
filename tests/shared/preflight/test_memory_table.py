"""The memory table of docs/bases.md has the figures of the estimator."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from shared.base_models.config import ModelConfig, parse_model_config
from shared.base_models.tensors import expected_tensors, parameter_count
from shared.preflight.activations import Recompute
from shared.preflight.estimate import vram_parts
from shared.preflight.types import Configuration
from tests.support.base_configs import QWEN3_06B, QWEN3_8B
from tests.support.builders import contract

PAGE = Path(__file__).resolve().parents[3] / "docs" / "bases.md"
GIB, MIB = 1 << 30, 1 << 20
SHAPE = ("hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "intermediate_size")


def qwen3(*shape: int, tied: bool = False) -> dict[str, Any]:
    return QWEN3_8B | dict(zip(SHAPE, shape, strict=True)) | {"tie_word_embeddings": tied}


def llama(*shape: int, vocab: int, tied: bool) -> dict[str, Any]:
    sizes = dict(zip(SHAPE, shape, strict=True))
    return {"model_type": "llama", "vocab_size": vocab, "tie_word_embeddings": tied, **sizes}


BASES = {
    "SmolLM2-135M": llama(576, 30, 9, 3, 1536, vocab=49152, tied=True),
    "Qwen3-0.6B": QWEN3_06B,
    "Qwen3-1.7B": qwen3(2048, 28, 16, 8, 6144, tied=True),
    "Qwen3-4B": qwen3(2560, 36, 32, 8, 9728, tied=True),
    "Qwen3-8B": QWEN3_8B,
    "Qwen3-14B": qwen3(5120, 40, 40, 8, 17408),
    "Qwen3-32B": qwen3(5120, 64, 64, 8, 25600),
    "Llama-3.3-70B": llama(8192, 80, 64, 8, 28672, vocab=128256, tied=False),
}


def training(config: ModelConfig, quant: str, *, on_gpu: bool) -> str:
    """Memory of a row of 2,048 tokens, as the table writes it."""
    requested = contract(quant={"base": quant}, adapter={"rank": 16, "method": "qlora" if quant == "nf4" else "lora"})
    row = Configuration(
        batch_size=1, grad_accum=1, seq_len=2048, recompute=Recompute.BLOCKS if on_gpu else Recompute.NONE
    )
    return f"{vram_parts(requested, config, row, on_gpu=on_gpu).total / GIB:.1f} GiB"


def row_of(name: str) -> str:
    config = parse_model_config(BASES[name])
    keys = 2 * 2 * config.kv_dim * config.layers * 1000
    cells = [
        name,
        f"{2 * parameter_count(expected_tensors(config)) / 1e9:.1f} GB",
        *(training(config, quant, on_gpu=on_gpu) for on_gpu in (True, False) for quant in ("nf4", "none")),
        f"{math.floor(keys / MIB + 0.5)} MiB",
    ]
    return f"| {' | '.join(cells)} |"


@pytest.mark.parametrize("name", BASES)
def test_the_table_has_the_estimators_figures(name: str) -> None:
    assert row_of(name) in PAGE.read_text().splitlines()
