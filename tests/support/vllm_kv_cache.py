"""`python vllm_kv_cache.py`: the KV cache that vLLM requires for one sequence, computed by vLLM itself.

Reads a JSON list of ``[config, tokens, dtype, prefix caching]`` from its standard input and prints a list of ``[bytes of the sequence,
bytes of a block]``. The models are made without weights.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from vllm.config import get_layers_from_vllm_config, set_current_vllm_config
from vllm.distributed import init_distributed_environment, initialize_model_parallel
from vllm.engine.arg_utils import EngineArgs
from vllm.model_executor.layers.attention_layer_base import AttentionLayerBase
from vllm.model_executor.model_loader.utils import initialize_model
from vllm.platforms import current_platform
from vllm.usage.usage_lib import UsageContext
from vllm.v1.attention.backends.utils import get_supported_kv_cache_layouts, resolve_kv_cache_layout
from vllm.v1.core.kv_cache_utils import (
    _max_memory_usage_bytes_from_groups,
    _pool_bytes_per_block,
    get_kv_cache_groups,
)


def measure(config: dict[str, Any], tokens: int, dtype: str, prefix_caching: bool, folder: Path) -> list[int]:
    """Bytes of a sequence and of a block, as the engine computes them when it starts."""
    (folder / "config.json").write_text(json.dumps(config))
    engine = EngineArgs(
        model=str(folder),
        skip_tokenizer_init=True,
        dtype=dtype,
        max_model_len=tokens,
        enable_lora=True,
        enable_prefix_caching=prefix_caching,
        distributed_executor_backend="uni",
        kv_cache_memory_bytes=1 << 30,
        language_model_only="text_config" in config,
    ).create_engine_config(UsageContext.OPENAI_API_SERVER)
    with set_current_vllm_config(engine):
        if not torch.distributed.is_initialized():
            init_distributed_environment(1, 0, f"file://{folder}/rendezvous", 0, "gloo")
            initialize_model_parallel(1, 1)
        with torch.device("meta"):
            initialize_model(engine)
        current_platform.update_block_size_for_backend(engine)
    layers = get_layers_from_vllm_config(engine, AttentionLayerBase)
    specs = {name: spec for name, layer in layers.items() if (spec := layer.get_kv_cache_spec(engine))}
    supported = get_supported_kv_cache_layouts({layer.get_attn_backend() for layer in layers.values()})
    resolve_kv_cache_layout(engine, [[layout.name for layout in supported]], list(specs.values()))
    groups = get_kv_cache_groups(engine, specs)
    return [_max_memory_usage_bytes_from_groups(engine, groups), _pool_bytes_per_block(engine, groups)]


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        cases: list[tuple[dict[str, Any], int, str, bool]] = json.load(sys.stdin)
        print(json.dumps([measure(*case, Path(folder)) for case in cases]))
