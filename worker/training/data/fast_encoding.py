"""Encodes many strings into flat arrays of token ids: with `tokenizers`, or with the much faster `fastokens` if it is
installed.

`fastokens` is young, so it is never trusted: its ids are compared with those of `tokenizers` on strings that are known
to be hard, and on some rows of every batch of the actual data. If one id differs, the whole file is encoded with
`tokenizers`.
"""

from __future__ import annotations

import importlib
import json
import unicodedata
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer, pre_tokenizers

from worker.training.data.prepared import TokenizerName

Flat = tuple[npt.NDArray[np.uint32], npt.NDArray[np.int64]]
"""Ids of all strings end to end, and the number of ids of each."""
FIRST_COMPARED, COMPARED = 32, 2
"""Number of rows compared in the first batch, and in every later batch."""
HARD_TEXTS = (
    "",
    " Two  words\n\n\tand Ångström, e\u0301, 数据 🙂, don't 12345 x_y(): \n",
    "   \n \n\n  end  ",
    "I'LL they'Ve 1,234.5e-7 …—“quoted” ½ ﬁ \u200b\u00a0\u3000.\r\n\r\n",
    "👩‍👩‍👧🏽 नमस्ते שלום مرحبا Привет İstanbul ǅ ß \u017f \u0000\u001f\ufeff",
    "a" * 300 + " " * 300 + "\n" * 40 + "=" * 90,
)


class EncodersDiffer(Exception):
    """`fastokens` fails, or its ids differ from those of `tokenizers`."""


class Encoder:
    """Encodes batches of strings.

    Attributes:
        library: library that makes the ids.
    """

    def __init__(self, backend: Tokenizer, fast: bool) -> None:
        self._backend = backend
        self._fast = _load_fastokens(backend) if fast else None
        self._compared = FIRST_COMPARED
        self.library: TokenizerName = "fastokens" if self._fast else "tokenizers"

    def encode(self, texts: Sequence[str]) -> Flat:
        """Return the ids of the strings, without special tokens.

        Raises:
            EncodersDiffer: the libraries' ids differ; the caller encodes the file again without the fast one.
        """
        if self._fast is None:
            return encode_flat(self._backend, texts)
        encoded = _call(self._fast, texts)
        _compare(self._backend, texts, encoded, self._compared)
        self._compared = COMPARED
        return encoded


def encode_flat(backend: Tokenizer, texts: Sequence[str]) -> Flat:
    """Return the ids that `tokenizers` gives for the strings."""
    encodings = backend.encode_batch_fast(list(texts), add_special_tokens=False)
    ids = [np.array(item.ids, np.uint32) for item in encodings]
    return np.concatenate([np.zeros(0, np.uint32), *ids]), np.array([len(item) for item in ids], np.int64)


def _load_fastokens(backend: Tokenizer) -> Callable[[list[str]], tuple[bytes, bytes]] | None:
    """Load the fast encoder for the same tokenizer; None if it is not installed, or cannot read or match this one."""
    try:
        library: Any = importlib.import_module("fastokens")
        encode: Callable[[list[str]], tuple[bytes, bytes]]
        encode = library.Tokenizer.from_json_str(backend.to_str()).encode_batch_flat
        added = [token.content for token in backend.get_added_tokens_decoder().values()]
        texts = [*HARD_TEXTS, *(f"x {token}\n{token} y" for token in added[:64])]
        _compare(backend, texts, _call(encode, texts), len(texts))
    except Exception:  # on any error the other library does the work
        return None
    return encode


def _call(encode: Callable[[list[str]], tuple[bytes, bytes]], texts: Sequence[str]) -> Flat:
    try:
        ids, starts = encode(list(texts))
    except Exception as error:  # e.g. a regex that gives up
        raise EncodersDiffer(str(error)) from error
    return np.frombuffer(ids, "<u4"), np.diff(np.frombuffer(starts, "<u8").astype(np.int64))


def _compare(backend: Tokenizer, texts: Sequence[str], encoded: Flat, count: int) -> None:
    """Compare `count` strings, spread over the batch."""
    ids, lengths = encoded
    ends = np.cumsum(lengths)
    for index in range(0, len(texts), max(1, len(texts) // max(1, count))):
        expected = backend.encode(texts[index], add_special_tokens=False).ids
        if ids[ends[index] - lengths[index] : ends[index]].tolist() != expected:
            raise EncodersDiffer("other ids")


UNKNOWN = 1 << 40
"""Length of an id without a known string: a sum that contains it is always wrong, but sums still increase."""


def byte_lengths(backend: Tokenizer) -> npt.NDArray[np.int64] | None:
    """Return the byte length of each id's string, followed by that of any larger id; None unless the tokenizer's type
    guarantees that tokens are exactly the string's bytes.

    An added token that strips white space around it makes the sum over a row too small, so callers must compare the sum
    with the length of the row's string in bytes.
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
    """Return whether NFC, the only normalisation that :func:`byte_lengths` allows, leaves the string unchanged."""
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
