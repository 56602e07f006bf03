"""Small bases of many families: a byte-level tokenizer, the family's special tokens, and a chat template.

The templates are imitations, written for the tests: each has the markup of its family and the rules that its first line
names, e.g. which thoughts stay, but is not the file that any model is published with. `published_templates.py` has
published ones.
"""

# ruff: noqa: RUF001
from __future__ import annotations

import functools
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors, trainers

TEMPLATES = Path(__file__).parents[1] / "shared" / "templates"
CORPUS = Path(__file__).parents[2] / "examples" / "base_corpus.jsonl"


@dataclass(frozen=True)
class Family:
    """The content of a family's tokenizer files.

    Attributes:
        tokens: added tokens of the vocabulary.
        named: the special tokens that templates may write by name.
        rstrip: whether added tokens swallow the white space after them.
        stops: the EOS tokens of generation_config.json.
    """

    name: str
    tokens: tuple[str, ...]
    named: dict[str, str]
    rstrip: bool = False
    stops: tuple[str, ...] = ()

    @property
    def template(self) -> str:
        return (TEMPLATES / f"{self.name}.jinja").read_text(encoding="utf-8")


IM = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
THINKING = (*IM, "<think>", "</think>", "<tool_call>", "</tool_call>")
DEEPSEEK = (
    "<｜begin▁of▁sentence｜>",
    "<｜end▁of▁sentence｜>",
    "<｜User｜>",
    "<｜Assistant｜>",
    "<｜tool▁calls▁begin｜>",
    "<｜tool▁call▁begin｜>",
    "<｜tool▁call▁end｜>",
    "<｜tool▁calls▁end｜>",
    "<｜tool▁output▁begin｜>",
    "<｜tool▁output▁end｜>",
)
HARMONY = ("<|startoftext|>", "<|return|>", "<|start|>", "<|message|>", "<|end|>", "<|channel|>", "<|call|>")
COMMAND = ("<BOS_TOKEN>", "<|START_OF_TURN_TOKEN|>", "<|END_OF_TURN_TOKEN|>", "<|USER_TOKEN|>", "<|CHATBOT_TOKEN|>")
LLAMA3 = ("<|begin_of_text|>", "<|end_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>")

FAMILIES = {
    family.name: family
    for family in (
        Family("chatml_marked", IM, {"eos_token": "<|im_end|>", "pad_token": "<|endoftext|>"}),
        Family("no_prompt", IM, {"eos_token": "<|im_end|>"}),
        Family("qwen25", IM, {"eos_token": "<|endoftext|>"}),
        Family("qwen3", IM, {"eos_token": "<|im_end|>"}),
        Family("qwen35", THINKING, {"eos_token": "<|im_end|>"}),
        Family("qwen36", THINKING, {"eos_token": "<|im_end|>"}),
        Family("qwen38", THINKING, {"eos_token": "<|im_end|>"}),
        Family("llama3", LLAMA3, {"bos_token": "<|begin_of_text|>", "eos_token": "<|end_of_text|>"}),
        Family("llama2", ("<s>", "</s>"), {"bos_token": "<s>", "eos_token": "</s>"}),
        Family("mistral_nemo", ("<s>", "</s>", "[INST]", "[/INST]"), {"bos_token": "<s>", "eos_token": "</s>"}),
        Family(
            "gemma",
            ("<bos>", "<eos>", "<start_of_turn>", "<end_of_turn>"),
            {"bos_token": "<bos>", "eos_token": "<eos>"},
        ),
        Family(
            "phi3",
            ("<s>", "<|endoftext|>", "<|system|>", "<|user|>", "<|assistant|>", "<|end|>"),
            {"bos_token": "<s>", "eos_token": "<|endoftext|>"},
            rstrip=True,
        ),
        Family(
            "harmony",
            HARMONY,
            {"bos_token": "<|startoftext|>", "eos_token": "<|return|>"},
            stops=("<|return|>", "<|call|>"),
        ),
        Family("deepseek_r1", DEEPSEEK, {"bos_token": DEEPSEEK[0], "eos_token": DEEPSEEK[1]}),
        Family("zephyr", ("<s>", "</s>"), {"bos_token": "<s>", "eos_token": "</s>"}),
        Family(
            "command_r",
            (*COMMAND, "<|SYSTEM_TOKEN|>"),
            {"bos_token": "<BOS_TOKEN>", "eos_token": "<|END_OF_TURN_TOKEN|>"},
        ),
    )
}

TOOLS = [
    {
        "type": "function",
        "function": {"name": "add", "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}}},
    }
]
CALL = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1, "unit": "<€>"}'}}


def turn(role: str, content: str | None, **more: Any) -> dict[str, Any]:
    return {"role": role, "content": content, **more}


CASES: dict[str, dict[str, Any]] = {
    "single": {"messages": [turn("user", "Hi"), turn("assistant", "Hello there.")]},
    "system": {"messages": [turn("system", "Be brief."), turn("user", "Hi"), turn("assistant", "Hello.")]},
    "multi": {
        "messages": [
            turn("user", "One?"),
            turn("assistant", "First answer."),
            turn("user", "Two?"),
            turn("assistant", "Second answer."),
        ]
    },
    "system_multi": {
        "messages": [
            turn("system", "Be brief."),
            turn("user", "One?"),
            turn("assistant", "First answer."),
            turn("user", "Two?"),
            turn("assistant", "Second answer."),
        ]
    },
    "thoughts": {
        "messages": [
            turn("user", "One?"),
            turn("assistant", "<think>\nhm\n</think>\n\nFirst answer."),
            turn("user", "Two?"),
            turn("assistant", "<think>\nso\n</think>\n\nSecond answer."),
        ]
    },
    "tools": {
        "messages": [
            turn("user", "1 + 1?"),
            turn("assistant", None, tool_calls=[CALL]),
            turn("tool", "2", tool_call_id="c1"),
            turn("assistant", "Two."),
        ],
        "tools": TOOLS,
    },
    "unicode": {"messages": [turn("user", "Sag „é“ 🙂"), turn("assistant", "Żółć — 数据 👩‍👩‍👧🏽 e\u0301")]},
    "white_space": {"messages": [turn("user", " Hi "), turn("assistant", "  padded \n")]},
    "weight_0": {
        "messages": [
            turn("user", "One?"),
            turn("assistant", "First answer.", weight=0),
            turn("user", "Two?"),
            turn("assistant", "Second answer."),
        ]
    },
    "no_history": {"messages": [turn("assistant", "I begin.")]},
    "developer": {"messages": [turn("developer", "Be brief."), turn("user", "Hi"), turn("assistant", "Hello.")]},
    "late_system": {
        "messages": [
            turn("user", "One?"),
            turn("assistant", "First answer."),
            turn("system", "Be brief."),
            turn("user", "Two?"),
            turn("assistant", "Second answer."),
        ]
    },
    "late_developer": {
        "messages": [
            turn("system", "Be kind."),
            turn("user", "One?"),
            turn("developer", "Be brief."),
            turn("assistant", "First answer."),
        ]
    },
    "reasoning": {
        "messages": [
            turn("user", "One?"),
            turn("assistant", "First answer.", reasoning_content="hm, so"),
            turn("user", "Two?"),
            turn("assistant", "Second answer.", reasoning_content="well, then"),
        ]
    },
    "reasoned_and_called": {
        "messages": [
            turn("user", "1 + 1?"),
            turn("assistant", None, tool_calls=[CALL], reasoning_content="I must add."),
            turn("tool", "2", tool_call_id="c1"),
            turn("assistant", "Two.", reasoning_content="It says two."),
        ],
        "tools": TOOLS,
    },
    "said_and_called": {
        "messages": [
            turn("user", "1 + 1?"),
            turn("assistant", "Let me see.", tool_calls=[CALL]),
            turn("tool", "2", tool_call_id="c1"),
            turn("assistant", "Two."),
        ],
        "tools": TOOLS,
    },
}


@functools.cache
def _trained() -> str:
    """A byte-level BPE trained on the example corpus, as JSON."""
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=1000, initial_alphabet=alphabet, show_progress=False)
    bpe.train_from_iterator(CORPUS.read_text(encoding="utf-8").splitlines(), trainer)
    return bpe.to_str()


def make_base(folder: Path, family: Family, template: str | None = None) -> Path:
    """Write a family's tokenizer files, with its own template or a different one."""
    folder.mkdir(parents=True, exist_ok=True)
    backend = Tokenizer.from_str(_trained())
    backend.add_special_tokens([AddedToken(token, rstrip=family.rstrip, special=True) for token in family.tokens])
    # Like many bases: a BOS of the tokenizer's own, and offsets without the white space.
    first = family.tokens[0]
    own_bos = processors.TemplateProcessing(f"{first} $A", None, [(first, backend.token_to_id(first))])
    backend.post_processor = processors.Sequence([processors.ByteLevel(trim_offsets=True), own_bos])
    backend.save(str(folder / "tokenizer.json"))
    config = {"tokenizer_class": "PreTrainedTokenizerFast", **family.named}
    if family.stops:
        stops = [backend.token_to_id(token) for token in family.stops]
        (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": stops}))
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    (folder / "chat_template.jinja").write_text(family.template if template is None else template, encoding="utf-8")
    return folder
