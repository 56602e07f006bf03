"""Chats of real text for ``bench/datasets/preparation.py``, and a tokenizer trained on such text, in a folder like a base's.

The text is available on every machine with this repository: its documents and examples, the standard library's
docstrings and its reference topics. Lengths are lognormal, as in published chat sets.
"""

from __future__ import annotations

import ast
import json
import math
import os
import pydoc_data.topics
import random
from collections.abc import Iterator
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from bench.datasets.chats import ROOT, example_texts

MEDIAN_TOKENS, SIGMA, MAX_TOKENS = 269, 0.995, 7_000
"""Lognormal with a mean of 441 tokens and a 99th percentile of about 2,800."""
TURN_TOKENS = 6
TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
"""How the Qwen family splits strings into words."""
TEMPLATE = (
    "{%- for message in messages %}{{- '<|im_start|>' + message['role'] + '\\n' }}"
    "{%- if message['role'] == 'assistant' %}{% generation %}{{- message['content'] + '<|im_end|>' }}{% endgeneration %}"
    "{%- else %}{{- message['content'] + '<|im_end|>' }}{%- endif %}{{- '\\n' }}{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}"
)
SYSTEMS = (
    "You are a helpful assistant. Answer in plain English, and say so when you do not know.",
    "You explain the Python standard library to people who write programs every day. Be brief and exact.",
    "You answer questions about a fine-tuning service. Quote the manual where you can.",
)


def paragraphs(*, library: bool = True) -> list[str]:
    """Return every paragraph of the sources, in a fixed order, each once.

    Args:
        library: whether the sources include the standard library, whose parsing takes seconds.
    """
    documents = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
    texts = [*(path.read_text(encoding="utf-8") for path in documents), *example_texts()]
    if library:
        texts += [*pydoc_data.topics.topics.values(), *_docstrings()]
    stripped = (paragraph.strip() for text in texts for paragraph in text.split("\n\n"))
    return list(dict.fromkeys(paragraph for paragraph in stripped if len(paragraph) > 20))


def _docstrings() -> Iterator[str]:
    """Yield docstrings of the standard library."""
    for path in sorted(Path(os.__file__).parent.rglob("*.py")):
        if {"site-packages", "test", "tests", "lib2to3"} & set(path.parts):
            continue
        try:
            tree = ast.parse(path.read_bytes())
        except (SyntaxError, ValueError):
            continue
        for node in ast.walk(tree):
            if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
                yield ast.get_docstring(node) or ""


def make_base(folder: Path, texts: list[str], vocabulary: int) -> None:
    """Train a byte-level BPE with `vocabulary` tokens and write the tokenizer files of a base."""
    bpe = Tokenizer(models.BPE())
    split = pre_tokenizers.Split(Regex(SPLIT), "isolated")
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    bpe.pre_tokenizer = pre_tokenizers.Sequence([split, byte_level])
    bpe.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=vocabulary, initial_alphabet=alphabet, show_progress=False)
    bpe.train_from_iterator(texts, trainer)
    bpe.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in TOKENS])
    folder.mkdir(parents=True, exist_ok=True)
    bpe.save(str(folder / "tokenizer.json"))
    names = {"eos_token": TOKENS[2], "pad_token": TOKENS[0]}
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "PreTrainedTokenizerFast", **names}))
    (folder / "chat_template.jinja").write_text(TEMPLATE)


def write_chats(path: Path, base: Path, texts: list[str], rows: int, seed: int = 7) -> None:
    """Write a JSONL file of chats whose lengths follow the distribution."""
    tokenizer, draw = Tokenizer.from_file(str(base / "tokenizer.json")), random.Random(seed)
    sizes = [len(encoding.ids) for encoding in tokenizer.encode_batch(texts)]
    with path.open("w", encoding="utf-8") as file:
        for _ in range(rows):
            tokens = min(MAX_TOKENS, draw.lognormvariate(math.log(MEDIAN_TOKENS), SIGMA))
            file.write(json.dumps({"messages": _chat(draw, texts, sizes, tokens)}, ensure_ascii=False) + "\n")


def _chat(draw: random.Random, texts: list[str], sizes: list[int], tokens: float) -> list[dict[str, str]]:
    turns: list[dict[str, str]] = []
    if draw.random() < 0.3:
        turns.append({"role": "system", "content": draw.choice(SYSTEMS)})
        tokens -= 20
    pairs = draw.choice((1, 1, 1, 2, 3))
    for _ in range(pairs):
        budget = tokens / pairs - 2 * TURN_TOKENS
        turns.append({"role": "user", "content": _stretch(draw, texts, sizes, budget / 3)})
        turns.append({"role": "assistant", "content": _stretch(draw, texts, sizes, budget * 2 / 3)})
    return turns


def _stretch(draw: random.Random, texts: list[str], sizes: list[int], tokens: float) -> str:
    """Return consecutive paragraphs, cut at a word to about `tokens` tokens."""
    place, taken, have = draw.randrange(len(texts)), [], 0
    while have < tokens and place < len(texts):
        left = tokens - have
        words = texts[place].split(" ")
        cut = max(1, round(len(words) * min(1.0, left / sizes[place])))
        taken.append(" ".join(words[:cut]))
        have, place = have + sizes[place], place + 1
    return "\n\n".join(taken).strip() or "Yes."
