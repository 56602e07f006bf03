"""Pairs of answers as the trainer sees them, and their micro-batches: both answers of a pair are in the same one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import overload

import numpy as np
import numpy.typing as npt
import torch

from worker.training.data.batches import MicroBatch, collate, empty_batch
from worker.training.data.packing import pack
from worker.training.data.prepared import PreparedRows, Row


@dataclass(frozen=True, slots=True)
class Pair:
    """A prompt with a preferred and a rejected answer.

    Attributes:
        number: place of its scores by the reference.
    """

    number: int
    chosen: Row
    rejected: Row

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

    def unweighted(self) -> Pair:
        """The pair as validation counts it."""
        return replace(self, chosen=self.chosen.unweighted())


class PreparedPairs(Sequence[Pair]):
    """Prepared rows, two by two: the chat with the preferred answer, and the one with the rejected answer.

    Args:
        rows: of a file of preferences.
        first: place of the first pair's scores by the reference.
    """

    def __init__(self, rows: PreparedRows, first: int = 0) -> None:
        self.rows, self.first = rows, first
        self.lengths: npt.NDArray[np.int64] = rows.lengths[::2] + rows.lengths[1::2]
        self.difficulties: npt.NDArray[np.uint8] = rows.difficulties[::2]

    def __len__(self) -> int:
        return len(self.rows) // 2

    @overload
    def __getitem__(self, index: int) -> Pair: ...
    @overload
    def __getitem__(self, index: slice) -> list[Pair]: ...
    def __getitem__(self, index: int | slice) -> Pair | list[Pair]:
        if isinstance(index, slice):
            return [self._pair(number) for number in range(*index.indices(len(self)))]
        return self._pair(range(len(self))[index])

    def _pair(self, number: int) -> Pair:
        return Pair(self.first + number, self.rows[2 * number], self.rows[2 * number + 1])


class PreferredAnswers(Sequence[Row]):
    """The chats with the preferred answers of some pairs, read on demand."""

    def __init__(self, pairs: Sequence[Pair]) -> None:
        self._pairs = pairs

    def __len__(self) -> int:
        return len(self._pairs)

    @overload
    def __getitem__(self, index: int) -> Row: ...
    @overload
    def __getitem__(self, index: slice) -> list[Row]: ...
    def __getitem__(self, index: int | slice) -> Row | list[Row]:
        if isinstance(index, slice):
            return [pair.chosen for pair in self._pairs[index]]
        return self._pairs[index].chosen


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
    def size(self) -> int:
        """Positions computed, padding included."""
        return self.chats.size

    @property
    def weight_sum(self) -> float:
        """Number of pairs."""
        return float(len(self.numbers))

    @property
    def target_count(self) -> int:
        """Number of pairs: each is preferred rightly or not."""
        return len(self.numbers)


def pair_batches(pairs: Sequence[Pair], token_budget: int, *, pad_token: int, packed: bool) -> list[PairBatch]:
    """Cut a step's pairs into micro-batches; a pair longer than the budget is one of its own."""
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
    return PairBatch(
        collate(chats, pad_token, packed=packed),
        torch.tensor([pair.number for pair in pairs]),
        torch.tensor([chat.targets for chat in chats]).view(-1, 2),
    )
