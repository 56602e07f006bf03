"""Our calculation of the KV cache compared with vLLM's own, for every served family and each kind of attention."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from serving.launch.kv_cache import block_bytes, sequence_bytes
from shared.base_models.config import parse_model_config
from shared.base_models.families import LORA_FAMILIES

pytestmark = pytest.mark.vllm

SCRIPT = Path(__file__).parents[2] / "support" / "vllm_kv_cache.py"

SHAPE = {
    "hidden_size": 128,
    "num_hidden_layers": 8,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "intermediate_size": 256,
    "vocab_size": 512,
    "max_position_embeddings": 8192,
    "rms_norm_eps": 1e-6,
}
LINEAR = {
    "linear_key_head_dim": 64,
    "linear_value_head_dim": 64,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_conv_kernel_dim": 4,
    "mamba_ssm_dtype": "float32",
}
WIDE = {
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 32,
}
CONFIGS: dict[str, dict[str, Any]] = {
    "llama": {"model_type": "llama", "architectures": ["LlamaForCausalLM"]},
    "qwen2": {"model_type": "qwen2", "architectures": ["Qwen2ForCausalLM"]},
    "qwen2, every layer with a window": {
        "model_type": "qwen2",
        "architectures": ["Qwen2ForCausalLM"],
        "use_sliding_window": True,
        "sliding_window": 256,
        "max_window_layers": 0,
    },
    "qwen2, a window that is not used": {
        "model_type": "qwen2",
        "architectures": ["Qwen2ForCausalLM"],
        "use_sliding_window": False,
        "sliding_window": 256,
        "max_window_layers": 0,
    },
    "qwen3": {"model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"]},
    "mistral": {"model_type": "mistral", "architectures": ["MistralForCausalLM"], "sliding_window": None},
    "mistral with a window": {
        "model_type": "mistral",
        "architectures": ["MistralForCausalLM"],
        "sliding_window": 256,
    },
    "qwen3_5": {"model_type": "qwen3_5_text", "architectures": ["Qwen3_5ForCausalLM"], **LINEAR},
    "qwen3_5 with wide states": {
        "model_type": "qwen3_5_text",
        "architectures": ["Qwen3_5ForCausalLM"],
        **LINEAR,
        **WIDE,
    },
    "qwen3_5, every second layer linear": {
        "model_type": "qwen3_5_text",
        "architectures": ["Qwen3_5ForCausalLM"],
        "full_attention_interval": 2,
        **LINEAR,
    },
}
STAND_IN = """
import importlib.abc, importlib.machinery, sys

class Anything(type):
    def __getattr__(cls, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return name

def member(name):
    if name.startswith("__"):
        raise AttributeError(name)
    return Anything(name, (), {})

class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name, path, target=None):
        return importlib.machinery.ModuleSpec(name, self, is_package=True) if name.partition(".")[0] == "torchvision" else None
    def create_module(self, spec):
        return None
    def exec_module(self, module):
        module.__getattr__ = member

sys.meta_path.append(Finder())
"""
"""A torchvision whose modules have any class: vLLM's module of Qwen3.5 imports image processors, which nothing here uses."""


def test_every_served_family_is_compared() -> None:
    assert {name.partition(",")[0].partition(" ")[0] for name in CONFIGS} == set(LORA_FAMILIES)


@pytest.mark.timeout(600)
def test_arithmetic_equals_vllms(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(STAND_IN)
    metadata = tmp_path / "torchvision-0.28.0.dist-info" / "METADATA"
    metadata.parent.mkdir()
    metadata.write_text("Metadata-Version: 2.1\nName: torchvision\nVersion: 0.28.0\n")
    cases = [
        [SHAPE | raw, tokens, "bfloat16" if "qwen3_5" in name else "float32", prefix_caching]
        for name, raw in CONFIGS.items()
        for tokens, prefix_caching in [(100, True), (4000, True), (4096, False)]
    ]
    variables = {
        "PYTHONPATH": str(tmp_path),
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_PLUGINS": "",
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "OMP_NUM_THREADS": "1",
    }
    done = subprocess.run(
        [sys.executable, str(SCRIPT)],
        env=os.environ | variables,
        input=json.dumps(cases),
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    measured = json.loads(done.stdout.splitlines()[-1])
    ours = [
        [sequence_bytes(parse_model_config(raw), tokens, dtype, prefix_caching=prefix), block_bytes(parse_model_config(raw), dtype)]
        for raw, tokens, dtype, prefix in cases
    ]  # fmt: skip
    assert ours == measured
