"""Bases with the chat templates that models are published with, as TRL's package has them.

The tokenizers are small ones of the tests with the special tokens of each family.
"""

from __future__ import annotations

from pathlib import Path

from tests.support.template_families import Family, make_base
from tests.system.fetched import published_templates

QWEN = (
    *("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<think>", "</think>"),
    *("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>"),
)
LLAMA = (
    *("<|begin_of_text|>", "<|end_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"),
    *("<|python_tag|>", "<|eom_id|>"),
)
PUBLISHED = {
    family.name: family
    for family in (
        *(
            Family(name, QWEN, {"eos_token": "<|im_end|>", "pad_token": "<|endoftext|>"})
            for name in (
                "qwen2_5",
                "qwen3",
                "qwen3_instruct_2507",
                "qwen3_5_think",
                "qwen3_5_nothink",
                "qwen3_6",
                "qwen3_8",
            )
        ),
        *(
            Family(name, LLAMA, {"bos_token": "<|begin_of_text|>", "eos_token": "<|eot_id|>"})
            for name in ("llama3", "llama3_1", "llama3_2")
        ),
    )
}


def make_published_base(folder: Path, name: str) -> Path:
    """Write the tokenizer files of a base with the published template of that name."""
    template = (published_templates() / f"{name}.jinja").read_text(encoding="utf-8")
    return make_base(folder, PUBLISHED[name], template)
