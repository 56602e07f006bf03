"""Chats whose lengths are those of a realistic mix: lognormal, median 269 tokens, mean 441, 99th percentile about 2,800.

The text is the repository's own (`examples/`, `docs/`), so a base pretrained on it knows every word.
"""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
MEDIAN_TOKENS, SIGMA = 269, 0.994
LONGEST_TOKENS = 16_000
ANSWER_SHARE = 0.45
TURN_OVERHEAD_TOKENS = 5
"""Tokens that the template adds around a message."""

Sentence = tuple[str, int]
"""A string and its number of tokens."""


def example_texts() -> list[str]:
    """Return every string of the example files: documents, and the contents of messages."""
    texts: list[str] = []
    for path in sorted(ROOT.glob("examples/*.jsonl")):
        for row in map(json.loads, path.read_text(encoding="utf-8").splitlines()):
            texts += [row["text"]] if "text" in row else [message["content"] for message in row["messages"]]
    # A message that only calls tools has no content.
    return [text for text in texts if text]


def corpus() -> list[str]:
    """Return sentences of the examples and of the documentation."""
    texts = example_texts()
    for path in sorted(ROOT.glob("docs/*.md")):
        texts += [line.strip() for line in path.read_text(encoding="utf-8").splitlines() if len(line.split()) > 3]
    return texts


def chat_mix(count_tokens: Callable[[str], int], rows: int, seed: int = 7) -> list[dict[str, Any]]:
    """Return `rows` chats of one to three exchanges; 40 to 50 % of their tokens are the assistant's."""
    draw = random.Random(seed)
    sentences = [(text, count_tokens(text)) for text in corpus()]
    chats: list[dict[str, Any]] = []
    for _ in range(rows):
        exchanges = draw.choice((1, 1, 1, 2, 3))
        tokens = min(LONGEST_TOKENS, draw.lognormvariate(math.log(MEDIAN_TOKENS), SIGMA))
        content = max(8.0, tokens / exchanges - 2 * TURN_OVERHEAD_TOKENS)
        messages: list[dict[str, str]] = []
        for _ in range(exchanges):
            messages.append({"role": "user", "content": _text(draw, sentences, content * (1 - ANSWER_SHARE))})
            messages.append({"role": "assistant", "content": _text(draw, sentences, content * ANSWER_SHARE)})
        chats.append({"messages": messages})
    return chats


def _text(draw: random.Random, sentences: Sequence[Sentence], tokens: float) -> str:
    """Return sentences with about ``tokens`` tokens in total; the last one is cut at a word boundary."""
    chosen: list[str] = []
    while tokens > 0:
        sentence, length = draw.choice(sentences)
        if length > tokens:
            words = sentence.split(" ")
            sentence = " ".join(words[: max(1, math.ceil(len(words) * tokens / length))])
        chosen.append(sentence)
        tokens -= length
    return " ".join(chosen)
