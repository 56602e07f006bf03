"""From chat rows to token ids and labels: the assistant's tokens and their end token are learnt, nothing else is.

There is one label builder, this one: what is checked before a job is what the trainer learns. Which characters are the
assistant's is found in `shared/answers.py`; here characters become tokens. A token that straddles a boundary is not
learnt, an end token that directly follows learnt tokens always is. Truncation drops the beginning, and labels move with
the tokens.
"""

from __future__ import annotations

import itertools
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

from shared.answers import Chat, Span, find_answers
from shared.dataset import TrainingRow
from shared.tokenizer import Tokenizer

T = TypeVar("T")

IGNORED = -100
"""Label of a position that carries no loss (PyTorch's default ``ignore_index``)."""
BATCH_ROWS = 64


@dataclass(frozen=True, slots=True)
class Example:
    """One encoded row.

    Attributes:
        line: the row's line number in its file.
        ids: token ids, at most ``seq_len``.
        labels: same length; ``labels[i]`` is ``ids[i]`` where it is learnt, else ``IGNORED``. The shift by one between
            input and target is the loss's business.
        truncated: tokens cut off at the beginning.
    """

    line: int
    ids: list[int]
    labels: list[int]
    truncated: int

    @property
    def targets(self) -> int:
        """Positions that carry loss: the first token has no position before it that could predict it."""
        return sum(label != IGNORED for label in self.labels[1:])


@dataclass(frozen=True, slots=True)
class LabelledChat:
    """A chat's tokens, before anything is cut off.

    Attributes:
        offsets: (start, end) of each token in the chat's text.
        learnt: whether each token is learnt.
    """

    chat: Chat
    ids: list[int]
    offsets: list[Span]
    learnt: list[bool]

    def example(self, seq_len: int, last_k: int = 0) -> Example:
        """Keep the last ``seq_len`` tokens, and of the learnt ones the last ``last_k`` (0: all)."""
        labels = [id_ if learnt else IGNORED for id_, learnt in zip(self.ids, self.learnt, strict=True)]
        labels = _keep_last(labels, last_k)
        return Example(self.chat.line, self.ids[-seq_len:], labels[-seq_len:], max(0, len(self.ids) - seq_len))


def encode_row(tokenizer: Tokenizer, row: TrainingRow, seq_len: int, last_k: int = 0) -> Example:
    """Encode one row.

    Args:
        tokenizer: the base model's, with its chat template.
        row: a valid row.
        seq_len: tokens kept, counted from the end.
        last_k: learn only the last K of the supervised tokens; 0 learns all.

    Raises:
        InvalidRequest: ``TEMPLATE_UNSUPPORTED``: the template does not show where the answer begins.
    """
    return label_chats(tokenizer, [find_answers(tokenizer, row)])[0].example(seq_len, last_k)


def encode_rows(
    tokenizer: Tokenizer, rows: Iterable[TrainingRow], seq_len: int, last_k: int
) -> tuple[list[Example], list[int]]:
    """Encode rows; those with nothing to learn are left out.

    Returns:
        the examples, and the line numbers of the rows left out.
    """
    examples, skipped = [], []
    for batch in in_batches(rows):
        for labelled in label_chats(tokenizer, [find_answers(tokenizer, row) for row in batch]):
            example = labelled.example(seq_len, last_k)
            if example.targets:
                examples.append(example)
            else:
                skipped.append(example.line)
    return examples, skipped


def label_chats(tokenizer: Tokenizer, chats: Sequence[Chat]) -> list[LabelledChat]:
    """Tokenise chats, and carry what is learnt from characters to tokens."""
    encodings = tokenizer.encode_batch([chat.text for chat in chats])
    return [
        LabelledChat(
            chat, found.ids, found.offsets, _with_end_tokens(found.ids, _inside(found.offsets, chat.spans), tokenizer)
        )
        for chat, found in zip(chats, encodings, strict=True)
    ]


def in_batches(rows: Iterable[T], size: int = BATCH_ROWS) -> Iterator[list[T]]:
    """Cut a stream into lists."""
    iterator = iter(rows)
    while batch := list(itertools.islice(iterator, size)):
        yield batch


def count_lines(skipped: list[int], shown: int = 10) -> str:
    """Line numbers for a message, capped."""
    more = f" and {len(skipped) - shown} more" if len(skipped) > shown else ""
    return ", ".join(str(line) for line in itertools.islice(skipped, shown)) + more


def _inside(offsets: list[Span], spans: list[Span]) -> list[bool]:
    """Which tokens lie wholly within a span."""
    mask = [False] * len(offsets)
    for start, end in spans:
        for index in range(bisect_left(offsets, (start, start)), len(offsets)):
            first, last = offsets[index]
            if first >= end:
                break
            mask[index] = last <= end
    return mask


def _with_end_tokens(ids: list[int], mask: list[bool], tokenizer: Tokenizer) -> list[bool]:
    """Learn an end token that directly follows learnt tokens: a model that never sees it never stops.

    Of two end tokens in a row only the first is learnt: generation is over at it.
    """
    ends = tokenizer.end_ids
    learnt = list(mask)
    for index in range(1, len(ids)):
        if ids[index] in ends and mask[index - 1] and ids[index - 1] not in ends:
            learnt[index] = True
    return learnt


def _keep_last(labels: list[int], last_k: int) -> list[int]:
    if not last_k:
        return labels
    kept = {index for index, label in enumerate(labels) if label != IGNORED}
    kept = set(sorted(kept)[-last_k:])
    return [label if index in kept else IGNORED for index, label in enumerate(labels)]
