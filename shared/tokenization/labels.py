"""Labels: convert chat rows to token ids and mark the assistant's tokens and their end tokens, and only these, as
supervised.

This is the only label builder, so checks before a job see exactly what the trainer trains on. `assistant_spans.py`
finds the assistant's characters; here characters become tokens. A token that crosses the border of a span is not
supervised; an end token directly after supervised tokens always is. Truncation drops the beginning, and labels move
with the tokens.
"""

from __future__ import annotations

import itertools
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass

from shared.tokenization.assistant_spans import Chat, Span
from shared.tokenization.tokenizer import Encoding, Tokenizer

IGNORED = -100
"""Label of a position that carries no loss (PyTorch's default ``ignore_index``)."""
BATCH_ROWS = 64


@dataclass(frozen=True, slots=True)
class LabelledRow:
    """One encoded row.

    Attributes:
        line: the row's line number in its file.
        ids: token ids, at most ``seq_len``.
        labels: same length; ``labels[i]`` is ``ids[i]`` where it is supervised, else ``IGNORED``. The loss shifts them
            by one against the input.
        truncated: number of tokens cut off at the beginning.
    """

    line: int
    ids: list[int]
    labels: list[int]
    truncated: int

    @property
    def targets(self) -> int:
        """Count the positions that carry loss: no position predicts the first token."""
        return sum(label != IGNORED for label in self.labels[1:])


@dataclass(frozen=True, slots=True)
class LabelledChat:
    """A chat's tokens, before anything is cut off.

    Attributes:
        offsets: (start, end) of each token in the chat's text.
        supervised: whether each token is supervised.
    """

    chat: Chat
    ids: list[int]
    offsets: list[Span]
    supervised: list[bool]

    def example(self, seq_len: int, last_k: int = 0) -> LabelledRow:
        """Keep the last ``seq_len`` tokens, and the last ``last_k`` supervised ones (0: all)."""
        kept = [index for index, supervised in enumerate(self.supervised) if supervised][-last_k:]
        labels = [IGNORED] * len(self.ids)
        for index in kept:
            labels[index] = self.ids[index]
        return LabelledRow(self.chat.line, self.ids[-seq_len:], labels[-seq_len:], max(0, len(self.ids) - seq_len))


def label_chats(tokenizer: Tokenizer, chats: Sequence[Chat]) -> list[LabelledChat]:
    """Tokenise chats, and find the supervised tokens."""
    encodings = tokenizer.encode_batch([chat.text for chat in chats])
    return [
        LabelledChat(chat, encoding.ids, encoding.offsets, _supervised(encoding, chat.spans, tokenizer.end_ids))
        for chat, encoding in zip(chats, encodings, strict=True)
    ]


def format_line_numbers(skipped: list[int], shown: int = 10) -> str:
    """Format line numbers for a message, at most ``shown`` of them."""
    more = f" and {len(skipped) - shown} more" if len(skipped) > shown else ""
    return ", ".join(str(line) for line in itertools.islice(skipped, shown)) + more


def _supervised(encoding: Encoding, spans: list[Span], end_ids: frozenset[int]) -> list[bool]:
    """Return, for each token, whether it is supervised: it must be completely within a span, or the end token after
    one.
    """
    ids, offsets = encoding.ids, encoding.offsets
    inside = [False] * len(ids)
    for start, end in spans:
        for index in range(bisect_left(offsets, (start, start)), len(ids)):
            first, last = offsets[index]
            if first >= end:
                break
            inside[index] = last <= end
    # A model that is never trained on the end token never stops. If two end tokens follow each other, only the first is
    # supervised, because generation stops there.
    return [
        inside[index] or (index > 0 and ids[index] in end_ids and inside[index - 1] and ids[index - 1] not in end_ids)
        for index in range(len(ids))
    ]
