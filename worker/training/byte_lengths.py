"""How many bytes of text each token of a byte-level vocabulary stands for: positions without a tokenizer's offsets.

With a byte-level BPE the tokens of a text, end to end, are the text's own UTF-8 bytes, so where each token begins and
ends is a running sum over its ids. Asking a tokenizer for offsets costs more than all the rest of labelling.
"""

from __future__ import annotations

import json
import unicodedata
from typing import Any

import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer, pre_tokenizers

UNKNOWN = 1 << 40
"""Length of an id that stands for no known text: no sum with one in it is right, and sums still rise."""


def byte_lengths(backend: Tokenizer) -> npt.NDArray[np.int64] | None:
    """Bytes of each id's text, and last of any id beyond; None unless tokens are the text's bytes by the very make of the tokenizer.

    An added token that swallows white space around it makes the sum over a row too small: who uses the lengths compares
    it with the bytes of the row's text.
    """
    made = json.loads(backend.to_str())
    if not (_is_byte_level(made["model"], made["pre_tokenizer"]) and _keeps_text(made["normalizer"])):
        return None
    sizes: dict[int, int] = {id_: len(token) for token, id_ in made["model"]["vocab"].items()}
    sizes |= {token["id"]: len(token["content"].encode()) for token in made["added_tokens"]}
    table = np.full(max(sizes) + 2, UNKNOWN, np.int64)  # the last entry is for ids beyond
    table[list(sizes)] = list(sizes.values())
    return table


def is_kept(text: str) -> bool:
    """Whether the only normalisation that :func:`byte_lengths` puts up with, NFC, leaves the text as it is."""
    return text.isascii() or unicodedata.is_normalized("NFC", text)


def _is_byte_level(model: dict[str, Any], pre_tokenizer: dict[str, Any] | None) -> bool:
    steps = (pre_tokenizer or {}).get("pretokenizers", [pre_tokenizer])
    *earlier, last = steps or [None]
    return bool(
        model["type"] == "BPE"
        and not any(model.get(name) for name in ("dropout", "continuing_subword_prefix", "end_of_word_suffix"))
        and not model.get("byte_fallback")
        and set(pre_tokenizers.ByteLevel.alphabet()) <= set(model["vocab"])
        and last is not None
        and last["type"] == "ByteLevel"
        and not last["add_prefix_space"]
        and all(_only_splits(step) for step in earlier)
    )


def _only_splits(step: dict[str, Any]) -> bool:
    return bool(step["type"] == "Digits" or (step["type"] == "Split" and step["behavior"] != "Removed"))


def _keeps_text(normalizer: dict[str, Any] | None) -> bool:
    steps = (normalizer or {"normalizers": []}).get("normalizers", [normalizer])
    return all(step["type"] == "NFC" for step in steps)
