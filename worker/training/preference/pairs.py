"""Pairs of answers as the trainer sees them, and their micro-batches: both answers of a pair are in the same one, and their
prompt is computed once where the model allows it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from worker.training.data.batches import MicroBatch, Numbers, empty_batch, pack_rows, pad_rows
from worker.training.data.packing import pack
from worker.training.data.prepared import PreparedRows, Row
from worker.training.preference.scored_rows import ScoredRows

LEAST_SHARE = 1 / 8
"""Share of both chats' tokens below which a common prefix is computed twice: attention copies the prefix for the second
answer, which would take as much memory as is saved.
"""


@dataclass(frozen=True, slots=True)
class Pair:
    """A prompt with a preferred and a rejected answer.

    Attributes:
        number: place of its scores by the reference.
        prefix: tokens at the beginning of both chats that are computed once; 0: each chat is computed alone.
    """

    number: int
    chosen: Row
    rejected: Row
    prefix: int = 0

    @property
    def lengths(self) -> tuple[int, ...]:
        """Tokens of both chats."""
        return (len(self.chosen.ids), len(self.rejected.ids))

    @property
    def weight_sum(self) -> float:
        """1: the loss is a mean over pairs."""
        return 1.0

    @property
    def weight(self) -> float:
        """Weight of the pair."""
        return self.chosen.weight

    @property
    def answer(self) -> Row:
        """The chat with the preferred answer."""
        return self.chosen

    @property
    def is_wanted(self) -> bool:
        """True: the preferred answer is one that the adapter should give."""
        return True

    def unweighted(self) -> Pair:
        """Return the pair as validation uses it."""
        return replace(self, chosen=self.chosen.unweighted())


class PreparedPairs(ScoredRows[Pair]):
    """Prepared rows, two by two: the chat with the preferred answer, and the one with the rejected answer.

    Args:
        rows, first, splits: as in :class:`ScoredRows`.
        once: whether the common prefix of both chats of a pair is computed once.
    """

    sides = 2

    def __init__(
        self, rows: PreparedRows, first: int = 0, splits: Sequence[Numbers] = (), *, once: bool = False
    ) -> None:
        super().__init__(rows, first, splits)
        self._once = once

    def row(self, number: int) -> Pair:
        """Return a pair."""
        chosen, rejected = self.rows[2 * number], self.rows[2 * number + 1]
        return Pair(self.first + number, chosen, rejected, common_prefix(chosen, rejected) if self._once else 0)


def common_prefix(chosen: Row, rejected: Row) -> int:
    """Return the length of the chats' common prefix, which is shorter than either chat; 0 if it is too short to be
    worth sharing.
    """
    longest = min(len(chosen.ids), len(rejected.ids)) - 1
    differ = np.flatnonzero(chosen.ids[:longest] != rejected.ids[:longest])
    prefix = int(differ[0]) if len(differ) else longest
    return prefix if prefix >= LEAST_SHARE * (len(chosen.ids) + len(rejected.ids)) else 0


@dataclass(frozen=True, slots=True)
class PairBatch:
    """Tensors of one forward and backward pass, on the CPU.

    Attributes:
        chats: preferred, rejected, preferred, …, one chat after another.
        numbers: places of the pairs' scores by the reference, (pairs,).
        lengths: scored tokens of the answers, int64, (pairs, 2).
    """

    chats: MicroBatch
    numbers: torch.Tensor
    lengths: torch.Tensor

    @property
    def places(self) -> torch.Tensor:
        """Places of the answers' scores by the reference, preferred, rejected, …"""
        return (2 * self.numbers[:, None] + torch.arange(2)).flatten()

    @property
    def size(self) -> int:
        """Positions computed, padding included."""
        return self.chats.size

    @property
    def weight_sum(self) -> float:
        """Number of pairs."""
        return float(len(self.numbers))

    @property
    def target_count(self) -> int:
        """Number of pairs: each is ranked correctly or not."""
        return len(self.numbers)


def pair_batches(pairs: Sequence[Pair], token_budget: int, *, pad_token: int, packed: bool) -> list[PairBatch]:
    """Divide a step's pairs into micro-batches; a pair longer than the budget gets its own micro-batch."""
    plan = _packed(pairs, token_budget) if packed else _similar(pairs, token_budget)
    return [_collate([pairs[index] for index in group], pad_token, packed=packed) for group in plan]


def no_pairs() -> PairBatch:
    """Return a batch of one token without a pair."""
    return PairBatch(empty_batch(), torch.zeros(0, dtype=torch.int64), torch.zeros((0, 2), dtype=torch.int64))


def _packed(pairs: Sequence[Pair], token_budget: int) -> list[list[int]]:
    lengths = [sum(pair.lengths) for pair in pairs]
    return pack(lengths, max(token_budget, *lengths))


def _similar(pairs: Sequence[Pair], token_budget: int) -> list[list[int]]:
    """Group pairs by their longest side; a micro-batch ends before its padded chats would exceed the budget."""
    longest = [max(pair.lengths) for pair in pairs]
    capacity = max(token_budget, 2 * max(longest))
    groups: list[list[int]] = []
    for index in sorted(range(len(pairs)), key=lambda i: (-longest[i], i)):
        if groups and 2 * (len(groups[-1]) + 1) * longest[groups[-1][0]] <= capacity:
            groups[-1].append(index)
        else:
            groups.append([index])
    return groups


def _collate(pairs: Sequence[Pair], pad_token: int, *, packed: bool) -> PairBatch:
    chats = [chat for pair in pairs for chat in (pair.chosen, pair.rejected)]
    prefixes = [prefix for pair in pairs for prefix in (0, pair.prefix)]
    return PairBatch(
        pack_rows(chats, prefixes) if packed else pad_rows(chats, pad_token),
        torch.tensor([pair.number for pair in pairs]),
        torch.tensor([chat.targets for chat in chats]).view(-1, 2),
    )
