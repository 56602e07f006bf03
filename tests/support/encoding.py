"""Encode rows one at a time and show their pieces, with the label builder of the supervision report."""

from __future__ import annotations

from collections.abc import Iterable

from shared.datasets.rows import TrainingRow
from shared.tokenization.assistant_spans import find_assistant_spans
from shared.tokenization.labels import LabelledRow, label_chats
from shared.tokenization.supervision_counts import text_pieces
from shared.tokenization.tokenizer import Tokenizer


def encode_row(tokenizer: Tokenizer, row: TrainingRow, seq_len: int, last_k: int = 0) -> LabelledRow:
    """One encoded row: its last ``seq_len`` tokens, in which only the last ``last_k`` supervised tokens have labels (0:
    all).
    """
    [labelled] = label_chats(tokenizer, [find_assistant_spans(tokenizer, row)])
    return labelled.example(seq_len, last_k)


def encode_rows(
    tokenizer: Tokenizer, rows: Iterable[TrainingRow], seq_len: int, last_k: int
) -> tuple[list[LabelledRow], list[int]]:
    """Encoded rows, and the line numbers of rows without a supervised token, which are left out."""
    labelled_rows = label_chats(tokenizer, [find_assistant_spans(tokenizer, row) for row in rows])
    examples = [labelled.example(seq_len, last_k) for labelled in labelled_rows]
    return [one for one in examples if one.targets], [one.line for one in examples if not one.targets]


def sample_view(tokenizer: Tokenizer, row: TrainingRow, *, seq_len: int, last_k: int = 0) -> list[tuple[str, bool]]:
    """A row as pieces of text, each with whether it is supervised."""
    [labelled] = label_chats(tokenizer, [find_assistant_spans(tokenizer, row)])
    return text_pieces(labelled, labelled.example(seq_len, last_k))
