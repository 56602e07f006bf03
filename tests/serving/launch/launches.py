"""The launches that golden files record: each with settings and a base, prepared for a given machine."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from serving.launch.kv_cache import choose_cache
from serving.launch.lora_capacity import choose_sizes
from serving.launch.parsers import choose_parsers
from serving.launch.prepare import Launch, choose_dtype, served_end_ids
from serving.settings import ServingSettings
from shared.base_models.config import parse_model_config
from shared.base_models.cpu_threads import cpu_threads
from shared.tokenization.tokenizer import Tokenizer
from tests.support.template_families import FAMILIES, Family, make_base

MEMORY, CORES = 64 << 30, 8
FOLDER, DIGEST = Path("/models/base"), "d" * 64

TINY = {
    "model_type": "qwen3",
    "hidden_size": 128,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "intermediate_size": 384,
    "vocab_size": 2048,
    "tie_word_embeddings": True,
    "dtype": "float32",
}
QWEN3_8B = {
    "model_type": "qwen3",
    "hidden_size": 4096,
    "num_hidden_layers": 36,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "intermediate_size": 12288,
    "vocab_size": 151936,
    "dtype": "bfloat16",
}
LLAMA_70B = {
    "model_type": "llama",
    "hidden_size": 8192,
    "num_hidden_layers": 80,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "intermediate_size": 28672,
    "vocab_size": 128256,
    "dtype": "bfloat16",
}
MISTRAL_7B = {
    "model_type": "mistral",
    "hidden_size": 4096,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "intermediate_size": 14336,
    "vocab_size": 32768,
    "dtype": "bfloat16",
}
QWEN35_4B = {
    "model_type": "qwen3_5",
    "text_config": {
        "model_type": "qwen3_5_text",
        "hidden_size": 2560,
        "num_hidden_layers": 32,
        "num_attention_heads": 16,
        "num_key_value_heads": 4,
        "head_dim": 256,
        "intermediate_size": 9216,
        "vocab_size": 248320,
        "linear_num_value_heads": 32,
        "max_position_embeddings": 262144,
        "tie_word_embeddings": True,
        "dtype": "bfloat16",
    },
}

XML_TEMPLATE = """\
{#- ChatML; calls as XML; every answer after the last question begins with its reasoning. -#}
{%- if tools -%}
{{- '<|im_start|>system\\nCall like <tool_call>\\n<function=example>\\n</function>\\n</tool_call>\\n' + tools | tojson -}}
{{- '<|im_end|>\\n' -}}
{%- endif -%}
{%- for message in messages -%}
{{- '<|im_start|>' + message.role + '\\n' -}}
{%- if message.role == 'assistant' -%}{{- '<think>\\n\\n</think>\\n\\n' -}}{%- endif -%}
{{- message.content -}}
{%- for call in message.tool_calls or [] -%}
{{- '<tool_call>\\n<function=' + call.function.name + '>\\n' -}}
{%- for name, value in call.function.arguments.items() -%}
{{- '<parameter=' + name + '>\\n' + value | string + '\\n</parameter>\\n' -}}
{%- endfor -%}
{{- '</function>\\n</tool_call>' -}}
{%- endfor -%}
{{- '<|im_end|>\\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\\n<think>\\n' -}}{%- endif -%}
"""


@dataclass(frozen=True)
class Base:
    """The facts about a base that a launch needs."""

    config: dict[str, Any]
    family: Family
    template: str | None = None


def with_tokens(name: str, *tokens: str) -> Family:
    """A family whose tokenizer has more special tokens."""
    family = FAMILIES[name]
    return dataclasses.replace(family, tokens=(*family.tokens, *tokens))


LLAMA3 = with_tokens("llama3", "<|python_tag|>")
MISTRAL = with_tokens("mistral_nemo", "[TOOL_CALLS]")
QWEN35 = with_tokens("qwen3", "<think>", "</think>", "<tool_call>", "</tool_call>")

BASES = {
    "mens-tiny": Base(TINY, FAMILIES["chatml_marked"]),
    "qwen3-8b": Base(QWEN3_8B, FAMILIES["qwen3"]),
    "qwen2.5-7b": Base(QWEN3_8B | {"model_type": "qwen2"}, FAMILIES["qwen25"]),
    "llama3-70b": Base(LLAMA_70B, LLAMA3),
    "mistral-7b": Base(MISTRAL_7B, MISTRAL),
    "qwen3.5-4b": Base(QWEN35_4B, QWEN35, XML_TEMPLATE),
    "zephyr-7b": Base(MISTRAL_7B, FAMILIES["zephyr"]),
}


@dataclass(frozen=True)
class Case:
    """One golden file: a base and its settings."""

    base: str
    settings: dict[str, Any] = field(default_factory=dict)


CUDA = {"serving_device": "cuda", "serving_max_model_len": 4096}
CASES = {
    "cpu": Case("mens-tiny"),
    "cpu-all-set": Case(
        "mens-tiny",
        {
            "serving_host": "0.0.0.0",
            "serving_port": 9000,
            "serving_dtype": "bfloat16",
            "serving_cpu_threads": 2,
            "serving_max_loras": 2,
            "serving_max_cpu_loras": 3,
            "serving_max_lora_rank": 33,
            "serving_max_model_len": 256,
            "serving_kv_cache_bytes": 1 << 30,
            "serving_prefix_caching": False,
            "serving_tool_parser": "off",
            "serving_reasoning_parser": "qwen3",
        },
    ),
    "cpu-qwen3.5": Case("qwen3.5-4b"),
    "cuda": Case("qwen3-8b", CUDA),
    "cuda-tp2": Case("qwen3-8b", CUDA | {"serving_tensor_parallel": 2, "serving_max_loras": 16}),
    "cuda-tp2-pp2": Case(
        "llama3-70b",
        CUDA
        | {
            "serving_tensor_parallel": 2,
            "serving_pipeline_parallel": 2,
            "serving_gpu_memory_utilization": 0.95,
            "serving_lora_memory_bytes": 48 << 30,
        },
    ),
    "cuda-4bit": Case("llama3-70b", CUDA | {"serving_quantization": "mxfp4", "serving_kv_cache_bytes": 8 << 30}),
    "cuda-qwen3.5": Case("qwen3.5-4b", CUDA),
    "cuda-qwen2.5": Case("qwen2.5-7b", CUDA),
    "cuda-mistral": Case("mistral-7b", CUDA),
    "cuda-no-calls": Case("zephyr-7b", CUDA),
}


def launch(case: Case, folder: Path) -> Launch:
    """The launch of a case, as `serving.launch.prepare.prepare` makes it, with a stated memory and no stored adapter."""
    base = BASES[case.base]
    settings = ServingSettings(serving_base=case.base, serving_key="secret", **case.settings)
    config = parse_model_config(base.config)
    dtype = choose_dtype(settings, config)
    sizes = choose_sizes(settings, config, dtype=dtype, stored_rank=0, memory=MEMORY)
    cache = choose_cache(settings, config, sizes, dtype=dtype, own_len=config.max_positions, memory=MEMORY)
    tokenizer = load_tokenizer(base, folder)
    parsers, ends = choose_parsers(settings, tokenizer), served_end_ids(tokenizer, config)
    threads = settings.serving_cpu_threads or cpu_threads(config, CORES)
    return Launch(settings, FOLDER, DIGEST, config, dtype, sizes, cache, threads, parsers, ends)


def load_tokenizer(base: Base, folder: Path) -> Tokenizer:
    """The tokenizer of a base, written to the folder first."""
    return Tokenizer.load(make_base(folder, base.family, base.template))
