"""Rows whose answers the reference scores, and the log-probabilities of their answers."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Protocol, TypeVar, overload

import numpy as np
import numpy.typing as npt
import torch
from peft import PeftModel

from worker.training.data.batches import MicroBatch, Numbers
from worker.training.data.prepared import PreparedRows, Row
from worker.training.method import Example
from worker.training.model.lm_head import head_log_probs
from worker.training.supervised import predicting_rows

RowT = TypeVar("RowT", bound=Example)
SCORES = 2
"""Number of scores that the reference gives a row: both answers of a pair, or one answer after its own and after another
prompt."""


class ScoredBatch(Protocol):
    """A micro-batch of answers."""

    @property
    def chats(self) -> MicroBatch:
        """One chat after another."""

    @property
    def lengths(self) -> torch.Tensor:
        """Scored tokens of their answers, int64; in the order of the chats when flattened."""

    @property
    def places(self) -> torch.Tensor:
        """Places of the answers' scores by the reference, in the order of the chats."""


class ScoredRows(Sequence[RowT]):
    """The rows of a prepared file, read on demand.

    Args:
        rows: prepared rows; ``sides`` of them form a row here.
        first: number of the first row among the rows of all files, which determines the place of its scores.
        splits: numbers of the rows for training, and of the rows for validation.

    Attributes:
        lengths: int64, (rows,): tokens computed for each row.
        difficulties: uint8, (rows,).
    """

    sides = 1

    def __init__(self, rows: PreparedRows, first: int = 0, splits: Sequence[Numbers] = ()) -> None:  # noqa: ARG002
        self.rows, self.first = rows, first
        self.lengths: Numbers = rows.lengths.reshape(-1, self.sides).sum(1)
        self.difficulties: npt.NDArray[np.uint8] = rows.difficulties[:: self.sides]

    @abstractmethod
    def row(self, number: int) -> RowT:
        """Return a row."""

    def __len__(self) -> int:
        return len(self.rows) // self.sides

    @overload
    def __getitem__(self, index: int) -> RowT: ...
    @overload
    def __getitem__(self, index: slice) -> list[RowT]: ...
    def __getitem__(self, index: int | slice) -> RowT | list[RowT]:
        if isinstance(index, slice):
            return [self.row(number) for number in range(*index.indices(len(self)))]
        return self.row(range(len(self))[index])

    def preferred(self) -> Sequence[int]:
        """Return the numbers of the rows whose answer the adapter should give."""
        return range(len(self))


class WantedAnswers(Sequence[Row]):
    """The chats of some rows with the answers that the adapter should give, read on demand."""

    def __init__(self, rows: Sequence[Example]) -> None:
        self._rows = rows
        self._places = preferred_places(rows)

    def __len__(self) -> int:
        return len(self._places)

    @overload
    def __getitem__(self, index: int) -> Row: ...
    @overload
    def __getitem__(self, index: slice) -> list[Row]: ...
    def __getitem__(self, index: int | slice) -> Row | list[Row]:
        if isinstance(index, slice):
            return [self._rows[place].answer for place in self._places[index]]
        return self._rows[self._places[index]].answer


def preferred_places(rows: Sequence[Example]) -> Sequence[int]:
    """Return the places of the rows whose answer the adapter should give."""
    if isinstance(rows, ScoredRows):
        return rows.preferred()
    if isinstance(rows, PreparedRows):  # all answers of such rows are wanted, so no row is read
        return range(len(rows))
    return [at for at, row in enumerate(rows) if row.is_wanted]


def answer_log_probs(model: PeftModel, batch: ScoredBatch, device: torch.device) -> torch.Tensor:
    """Return the log-probability of each answer in nats, fp32, (answers,)."""
    head, rows, there = predicting_rows(model, batch.chats, device)
    by_token = head_log_probs(head, rows, there.targets)
    answers = by_token.split(batch.lengths.flatten().tolist())
    # Not with index_add, whose order of additions differs from run to run on a GPU.
    return torch.stack([answer.sum() for answer in answers]) if answers else by_token
