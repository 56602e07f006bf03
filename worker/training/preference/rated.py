"""Rated answers as the trainer sees them, and their micro-batches.

KTO compares the gain of an answer with the gain of answers to other prompts (its KL reference point). As in TRL, each
prompt is therefore also scored with another prompt's answer. TRL uses the neighbour in the batch; here the partner is
fixed for the whole run, so the reference scores it once, and the division into micro-batches does not matter.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from worker.training.data.batches import MicroBatch, Numbers, collate, empty_batch, plan_micro_batches
from worker.training.data.prepared import PreparedRows, Row
from worker.training.preference.scored_rows import SCORES, ScoredRows


@dataclass(frozen=True, slots=True)
class RatedAnswer:
    """A prompt with an answer that is rated good or bad.

    Attributes:
        place: index of its score by the reference.
        other: the prompt with another prompt's answer, whose score is at the next place; None if this object is itself
            such a combination.
    """

    place: int
    chat: Row
    is_good: bool
    other: Row | None = None

    @property
    def lengths(self) -> tuple[int, ...]:
        """Tokens of the chat."""
        return self.chat.lengths

    @property
    def weight_sum(self) -> float:
        """1: the loss is a mean over answers."""
        return 1.0

    @property
    def weight(self) -> float:
        """Weight of the row: 1."""
        return self.chat.weight

    @property
    def answer(self) -> Row:
        """The chat."""
        return self.chat

    @property
    def is_wanted(self) -> bool:
        """True if the answer is one that the adapter should give."""
        return self.is_good

    def unweighted(self) -> RatedAnswer:
        """Return the answer as validation uses it: unchanged."""
        return self

    def mismatched(self) -> RatedAnswer:
        """Return the prompt with another prompt's answer."""
        assert self.other is not None
        return replace(self, place=self.place + 1, chat=self.other, other=None)


class PreparedRatedAnswers(ScoredRows[RatedAnswer]):
    """Prepared rows, each a chat with a rated answer.

    Args:
        rows, first: as in :class:`ScoredRows`.
        splits: row numbers of each split; a row's mismatched answer comes from its own split, so that validation never
            uses an answer that is trained on.
    """

    def __init__(self, rows: PreparedRows, first: int, splits: Sequence[Numbers]) -> None:
        super().__init__(rows, first)
        self._longest = int(rows.lengths.max(initial=0))
        self._partners = partners([_prompt_digest(rows[number]) for number in range(len(rows))], splits)

    def row(self, number: int) -> RatedAnswer:
        """Return a rated answer."""
        row = self.rows[number]
        chat = replace(row, weight=1.0)
        other = mismatch(chat, self.rows[int(self._partners[number])], self._longest)
        return RatedAnswer(SCORES * (self.first + number), chat, is_good=row.weight > 0, other=other)

    def preferred(self) -> Sequence[int]:
        """Return the numbers of the answers that are rated good."""
        good: list[int] = np.flatnonzero(self.rows.row_weights).tolist()
        return good


def partners(prompts: Sequence[bytes], splits: Sequence[Numbers]) -> Numbers:
    """Return, for each row, the row whose answer is put after its prompt: a row of the same split and, if possible,
    with a different prompt.

    Rows are sorted by prompt, and each row's partner is as many places away as the most frequent prompt has rows; so
    the prompts differ if no prompt has more than half of the rows.

    Args:
        prompts: prompt of each row, in a form whose order carries no meaning.
        splits: row numbers of each split.
    """
    numbers = np.arange(len(prompts))
    for split in splits:
        ordered = sorted(split.tolist(), key=lambda number: (prompts[number], number))
        _, counts = np.unique([prompts[number] for number in ordered], return_counts=True) if ordered else (None, [0])
        shift = int(max(counts))
        shift = shift if shift < len(ordered) else 1
        numbers[ordered] = np.roll(ordered, -shift)
    return numbers


def mismatch(row: Row, partner: Row, longest: int) -> Row:
    """Return a row's prompt with its partner's answer, cut at the beginning to ``longest`` tokens."""
    prompt, answer = _answer_start(row), _answer_start(partner)
    ids = np.concatenate([row.ids[:prompt], partner.ids[answer:]])[-longest:]
    weights = np.concatenate([np.zeros(prompt, np.float32), partner.weights[answer:]])[-longest:]
    return replace(row, ids=ids, weights=weights)


def _answer_start(row: Row) -> int:
    return int(np.argmax(row.weights > 0))


def _prompt_digest(row: Row) -> bytes:
    return hashlib.blake2b(row.ids[: _answer_start(row)].tobytes(), digest_size=16).digest()


@dataclass(frozen=True, slots=True)
class RatedBatch:
    """Tensors of one forward and backward pass, on the CPU.

    Attributes:
        chats: one chat after another.
        places: places of the answers' scores by the reference, (answers,).
        lengths: scored tokens of the answers, int64, (answers,).
        is_good: (answers,), bool.
    """

    chats: MicroBatch
    places: torch.Tensor
    lengths: torch.Tensor
    is_good: torch.Tensor

    @property
    def size(self) -> int:
        """Positions computed, padding included."""
        return self.chats.size

    @property
    def weight_sum(self) -> float:
        """Number of answers."""
        return float(len(self.places))

    @property
    def target_count(self) -> int:
        """Number of answers: each is on the correct side of the reference point or not."""
        return len(self.places)


def rated_batches(
    answers: Sequence[RatedAnswer], token_budget: int, *, pad_token: int, packed: bool
) -> list[RatedBatch]:
    """Divide a step's answers into micro-batches; an answer longer than the budget gets its own micro-batch."""
    groups = plan_micro_batches([len(answer.chat.ids) for answer in answers], token_budget, packed=packed)
    return [_collate([answers[index] for index in group], pad_token, packed=packed) for group in groups]


def no_answers() -> RatedBatch:
    """Return a batch of one token without an answer."""
    none = torch.zeros(0, dtype=torch.int64)
    return RatedBatch(empty_batch(), none, none, torch.zeros(0, dtype=torch.bool))


def _collate(answers: Sequence[RatedAnswer], pad_token: int, *, packed: bool) -> RatedBatch:
    return RatedBatch(
        collate([answer.chat for answer in answers], pad_token, packed=packed),
        torch.tensor([answer.place for answer in answers]),
        torch.tensor([answer.chat.targets for answer in answers]),
        torch.tensor([answer.is_good for answer in answers]),
    )
