"""Token ids of many texts as flat arrays: with `tokenizers`, or with the much faster `fastokens` where it is installed.

`fastokens` is young, so it is never believed: what it says is compared with `tokenizers` on texts that are known to be
hard, and on some rows of every batch of the very data. One other id, and the whole file is encoded with `tokenizers`.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer

from worker.training.prepared import TokenizerName

Flat = tuple[npt.NDArray[np.uint32], npt.NDArray[np.int64]]
"""Ids of all texts end to end, and the number of each text's."""
FIRST_COMPARED, COMPARED = 32, 2
"""Rows that are compared of the first batch, and of every later one."""
HARD_TEXTS = (
    "",
    " Two  words\n\n\tand Ångström, e\u0301, 数据 🙂, don't 12345 x_y(): \n",
    "   \n \n\n  end  ",
    "I'LL they'Ve 1,234.5e-7 …—“quoted” ½ ﬁ \u200b\u00a0\u3000.\r\n\r\n",
    "👩‍👩‍👧🏽 नमस्ते שלום مرحبا Привет İstanbul ǅ ß \u017f \u0000\u001f\ufeff",
    "a" * 300 + " " * 300 + "\n" * 40 + "=" * 90,
)


class EncodersDiffer(Exception):
    """`fastokens` makes other ids than `tokenizers`, or none."""


class Encoder:
    """Encodes batches of texts.

    Attributes:
        library: which library makes the ids.
    """

    def __init__(self, backend: Tokenizer, fast: bool) -> None:
        self._backend = backend
        self._fast = _load_fastokens(backend) if fast else None
        self._compared = FIRST_COMPARED
        self.library: TokenizerName = "fastokens" if self._fast else "tokenizers"

    def encode(self, texts: Sequence[str]) -> Flat:
        """Ids of texts, with no special tokens added.

        Raises:
            EncodersDiffer: encode the file again, without the fast library.
        """
        if self._fast is None:
            return encode_flat(self._backend, texts)
        found = _call(self._fast, texts)
        _compare(self._backend, texts, found, self._compared)
        self._compared = COMPARED
        return found


def encode_flat(backend: Tokenizer, texts: Sequence[str]) -> Flat:
    """Ids by `tokenizers`."""
    encodings = backend.encode_batch_fast(list(texts), add_special_tokens=False)
    ids = [np.array(one.ids, np.uint32) for one in encodings]
    return np.concatenate([np.zeros(0, np.uint32), *ids]), np.array([len(one) for one in ids], np.int64)


def _load_fastokens(backend: Tokenizer) -> Callable[[list[str]], tuple[bytes, bytes]] | None:
    """Its encoder for the same tokenizer; None where it is not installed, or cannot read or match this one."""
    try:
        library: Any = importlib.import_module("fastokens")
        encode: Callable[[list[str]], tuple[bytes, bytes]]
        encode = library.Tokenizer.from_json_str(backend.to_str()).encode_batch_flat
        added = [token.content for token in backend.get_added_tokens_decoder().values()]
        texts = [*HARD_TEXTS, *(f"x {token}\n{token} y" for token in added[:64])]
        _compare(backend, texts, _call(encode, texts), len(texts))
    except Exception:  # whatever it is, the other library does the work
        return None
    return encode


def _call(encode: Callable[[list[str]], tuple[bytes, bytes]], texts: Sequence[str]) -> Flat:
    try:
        ids, starts = encode(list(texts))
    except Exception as error:  # of a regex that gives up, say
        raise EncodersDiffer(str(error)) from error
    return np.frombuffer(ids, "<u4"), np.diff(np.frombuffer(starts, "<u8").astype(np.int64))


def _compare(backend: Tokenizer, texts: Sequence[str], found: Flat, count: int) -> None:
    """Compare so many texts, spread over the batch."""
    ids, lengths = found
    ends = np.cumsum(lengths)
    for index in range(0, len(texts), max(1, len(texts) // max(1, count))):
        expected = backend.encode(texts[index], add_special_tokens=False).ids
        if ids[ends[index] - lengths[index] : ends[index]].tolist() != expected:
            raise EncodersDiffer("other ids")
