"""Rows as flat arrays of token ids and loss weights: the rule of `shared/tokenization/labels.py` applied to many rows
at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from shared.datasets.reader import TrainingRow
from shared.tokenization.assistant_spans import Chat, find_assistant_spans
from shared.tokenization.labels import LabelledChat, label_chats
from shared.tokenization.tokenizer import Tokenizer
from worker.training.data.fast_encoding import Encoder, byte_lengths, is_kept
from worker.training.data.prepared import TokenizerName

Flags = npt.NDArray[np.bool_]
Counts = npt.NDArray[np.int64]
Weights = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class LabelledRows:
    """Several rows, end to end.

    Attributes:
        lengths: int64, (rows,): number of tokens of each row.
        ids: uint32, (tokens,).
        weights: float32, (tokens,); 0 where a token is not supervised. The first token of a row may have a weight here;
            it is not a target.
    """

    lengths: Counts
    ids: npt.NDArray[np.uint32]
    weights: npt.NDArray[np.float32]

    @property
    def starts(self) -> Counts:
        return np.cumsum(self.lengths) - self.lengths

    def per_row(self, flags: Flags) -> Counts:
        """Count the tokens of each row for which a condition holds."""
        before: Counts = np.concatenate((np.zeros(1, np.int64), np.cumsum(flags)))
        counts: Counts = before[self.starts + self.lengths] - before[self.starts]
        return counts

    def targets(self) -> Counts:
        """Return the number of positions of each row that carry loss."""
        return self.per_row(self.weights > 0)

    def last_supervised(self, last_k: int) -> LabelledRows:
        """Keep only the last ``last_k`` supervised tokens of each row; 0 keeps all."""
        if not last_k:
            return self
        supervised = self.weights > 0
        count = np.cumsum(supervised)
        after = np.repeat(self._last_of(count), self.lengths) - count
        return replace(self, weights=np.where(after < last_k, self.weights, 0).astype(np.float32))

    def last_tokens(self, limit: int) -> LabelledRows:
        """Truncate rows at the beginning to ``limit`` tokens; the new first token is not a target."""
        rows = self
        if self.lengths.max(initial=0) > limit:
            to_end = np.repeat(self.starts + self.lengths, self.lengths) - np.arange(len(self.ids))
            keep = to_end <= limit
            rows = LabelledRows(np.minimum(self.lengths, limit), self.ids[keep], self.weights[keep])
        weights = rows.weights.copy()
        weights[rows.starts[rows.lengths > 0]] = 0
        return replace(rows, weights=weights)

    def select(self, rows: Flags) -> LabelledRows:
        """Return only these rows."""
        if rows.all():
            return self
        tokens = np.repeat(rows, self.lengths)
        return LabelledRows(self.lengths[rows], self.ids[tokens], self.weights[tokens])

    def replace_rows(self, rows: Flags, others: LabelledRows) -> LabelledRows:
        """Replace the flagged rows by other rows, in order."""
        order = np.empty(len(rows), np.int64)
        order[rows] = len(rows) + np.arange(len(others.lengths))
        order[~rows] = np.flatnonzero(~rows)
        ids = [*np.split(self.ids, self.starts[1:]), *np.split(others.ids, others.starts[1:])]
        weights = [*np.split(self.weights, self.starts[1:]), *np.split(others.weights, others.starts[1:])]
        return LabelledRows(
            np.concatenate((self.lengths, others.lengths))[order],
            np.concatenate([ids[row] for row in order]),
            np.concatenate([weights[row] for row in order]),
        )

    def _last_of(self, counts: npt.NDArray[Any]) -> npt.NDArray[Any]:
        ends = self.starts + self.lengths
        return np.where(ends > 0, counts[np.maximum(ends - 1, 0)], 0) if len(counts) else np.zeros_like(ends)


class Labeller:
    """Turns rows into labelled arrays, batch by batch.

    Args:
        tokenizer: the base's tokenizer.
        fast: whether the faster library may be used.
    """

    def __init__(self, tokenizer: Tokenizer, *, fast: bool = True) -> None:
        self._tokenizer = tokenizer
        self._bytes = byte_lengths(tokenizer.backend)
        self._encoder = Encoder(tokenizer.backend, fast=fast and self._bytes is not None)
        self.library: TokenizerName = self._encoder.library

    def write(self, row: TrainingRow) -> Chat:
        """Render the row with the template.

        Raises:
            InvalidRequest: ``TEMPLATE_UNSUPPORTED``, with the line number.
        """
        return find_assistant_spans(self._tokenizer, row, compare_prompt=False)

    def token(self, token_id: int) -> str:
        """Return a token as the vocabulary spells it."""
        return self._tokenizer.backend.id_to_token(token_id) or ""

    def label(self, rows: Sequence[TrainingRow], chats: Sequence[Chat] | None = None) -> LabelledRows:
        """Return the rows' tokens and weights.

        Args:
            rows: rows to label.
            chats: the rendered rows, if they have been rendered already.

        Raises:
            InvalidRequest: ``TEMPLATE_UNSUPPORTED``, with the line number.
        """
        chats = [self.write(row) for row in rows] if chats is None else chats
        if self._bytes is None:
            return by_offsets(self._tokenizer, rows, chats)
        ids, lengths = self._encoder.encode([chat.text for chat in chats])
        batch = TokenBytes(ids, lengths, self._bytes)
        labelled = LabelledRows(lengths, ids, self._weigh(batch, rows, chats))
        wrong = ~batch.agree([chat.text for chat in chats])
        if not wrong.any():
            return labelled
        others = np.flatnonzero(wrong).tolist()
        slow = by_offsets(self._tokenizer, [rows[number] for number in others], [chats[number] for number in others])
        return labelled.replace_rows(wrong, slow)

    def _weigh(self, batch: TokenBytes, rows: Sequence[TrainingRow], chats: Sequence[Chat]) -> Weights:
        spans = [(number, *span) for number, chat in enumerate(chats) for span in _in_bytes(chat)]
        weights = self._with_end_tokens(batch, batch.inside(spans)).astype(np.float32)
        for number, (row, chat) in enumerate(zip(rows, chats, strict=True)):
            for start, end, weight in weighted_spans(row, chat):
                tokens = batch.overlapping(number, len(chat.text[:start].encode()), len(chat.text[:end].encode()))
                weights[tokens] = np.where(weights[tokens] > 0, np.maximum(weights[tokens], np.float32(weight)), 0)
        return weights

    def _with_end_tokens(self, batch: TokenBytes, inside: Flags) -> Flags:
        """Supervise an end token that directly follows supervised tokens; of two consecutive end tokens, only the
        first.
        """
        is_end = np.isin(batch.ids, list(self._tokenizer.end_ids))
        follows = np.zeros_like(inside)
        follows[1:] = inside[:-1] & ~is_end[:-1]
        follows[batch.starts[batch.lengths > 0]] = False
        return inside | (is_end & follows)


class TokenBytes:
    """Start and end of the tokens of some rows, in bytes from the first row's beginning."""

    def __init__(self, ids: npt.NDArray[np.uint32], lengths: Counts, sizes: Counts) -> None:
        self.ids, self.lengths = ids, lengths
        self.starts = np.cumsum(lengths) - lengths
        size = sizes[np.minimum(ids, len(sizes) - 1)]
        before = np.concatenate(([0], np.cumsum(size)))
        self._begins, self._ends = before[:-1], before[1:]
        self._row_begins, row_ends = before[self.starts], before[self.starts + lengths]
        self._row_bytes = row_ends - self._row_begins

    def agree(self, texts: Sequence[str]) -> Flags:
        """Return, for each row, whether its tokens are exactly its string's bytes."""
        real = np.array([len(text) if text.isascii() else len(text.encode()) for text in texts], np.int64)
        are_equal: Flags = (self._row_bytes == real) & np.array([is_kept(text) for text in texts], np.bool_)
        return are_equal

    def inside(self, spans: Sequence[tuple[int, int, int]]) -> Flags:
        """Return which tokens lie completely within one of the spans, each (row, start, end)."""
        row, start, end = np.array(spans, np.int64).reshape(-1, 3).T
        base = self._row_begins[row]
        last = self.starts[row] + self.lengths[row]  # a row whose bytes do not agree must not reach into the next
        first = np.minimum(np.searchsorted(self._begins, base + start, "left"), last)
        after = np.clip(np.searchsorted(self._ends, base + end, "right"), first, last)
        change = np.zeros(len(self.ids) + 1, np.int64)
        np.add.at(change, first, 1)
        np.add.at(change, after, -1)
        return np.cumsum(change)[:-1] > 0

    def overlapping(self, row: int, start: int, end: int) -> slice:
        """Return which tokens share a byte with a span of a row."""
        base, last = self._row_begins[row], self.starts[row] + self.lengths[row]
        first = min(np.searchsorted(self._ends, base + start, "right"), last)
        return slice(int(first), int(min(np.searchsorted(self._begins, base + end, "left"), last)))


def _in_bytes(chat: Chat) -> list[tuple[int, int]]:
    """Return the supervised spans of a chat, in bytes of its text."""
    if chat.text.isascii():
        return chat.spans
    spans, place, size = [], 0, 0
    for start, end in chat.spans:
        begin = size + len(chat.text[place:start].encode())
        place, size = end, begin + len(chat.text[start:end].encode())
        spans.append((begin, size))
    return spans


def by_offsets(tokenizer: Tokenizer, rows: Sequence[TrainingRow], chats: Sequence[Chat]) -> LabelledRows:
    """Label with the offsets that the tokenizer returns: correct for every tokenizer, and slow."""
    labelled = label_chats(tokenizer, chats)
    weights = [_weigh(row, chat) for row, chat in zip(rows, labelled, strict=True)]
    return LabelledRows(
        np.array([len(chat.ids) for chat in labelled], np.int64),
        np.fromiter((id_ for chat in labelled for id_ in chat.ids), np.uint32),
        np.concatenate([np.zeros(0, np.float32), *weights]),
    )


def _weigh(row: TrainingRow, labelled: LabelledChat) -> npt.NDArray[np.float32]:
    """Weigh each token: 1 if it is supervised, more if it overlaps a span of the row with a higher weight."""
    weights = np.ones(len(labelled.ids), np.float32)
    offsets = np.array(labelled.offsets, np.int64).reshape(-1, 2)
    for start, end, weight in weighted_spans(row, labelled.chat):
        overlaps = (offsets[:, 0] < end) & (offsets[:, 1] > start)
        weights[overlaps] = np.maximum(weights[overlaps], np.float32(weight))
    return weights * np.array(labelled.supervised, np.bool_)


def weighted_spans(row: TrainingRow, chat: Chat) -> list[tuple[int, int, float]]:
    """Return the row's syntax spans as (start, end, weight) in characters of the rendered chat.

    Spans are given relative to the last turn's content. If the template does not write that content unchanged exactly
    once, their positions are unknown and none is used.
    """
    content = row.messages[-1].content
    if not row.syntax_spans or not content or not chat.spans:
        return []
    start, end = chat.spans[-1]
    place = chat.text.find(content, start, end)
    if place < 0 or (place > start and chat.text.find(content, place + 1, end) >= 0):
        return []
    return [(place + span.start, place + span.end, span.weight) for span in row.syntax_spans]
