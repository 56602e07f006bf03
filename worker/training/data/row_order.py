"""Which rows each optimizer step trains on: a pure function of the rows, the contract and the step, so a resume needs no cursor."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate

from shared.contract import FineTuneContract
from shared.epochs import rows_per_epoch
from shared.planner import planned_steps
from worker.training.curriculum import Difficulties, histogram
from worker.training.replay import mixed_order


@dataclass(frozen=True, slots=True)
class Step:
    """One optimizer step.

    Attributes:
        epoch: counted from 0.
        number: counted from 1, over the whole run.
        rows: row numbers, ``batch_size * grad_accum`` of them, fewer in an epoch's last step.
    """

    epoch: int
    number: int
    rows: list[int]


@dataclass(frozen=True)
class Order:
    """The order of a whole run.

    Attributes:
        difficulties: of the rows that are trained on, (rows,).
        replay: rows of the replay file; they are numbered after the others.
    """

    contract: FineTuneContract
    difficulties: Difficulties
    replay: int = 0

    @cached_property
    def epochs(self) -> list[int]:
        """Rows of each epoch."""
        rows, levels = len(self.difficulties), histogram(self.difficulties)
        return rows_per_epoch(rows, self.contract, difficulties=levels, replay=self.replay)

    @cached_property
    def total_steps(self) -> int:
        """Optimizer steps of all epochs; an epoch's last, incomplete one counts."""
        return planned_steps(self.epochs, self.contract)

    def steps_of(self, epoch: int) -> int:
        """Optimizer steps of an epoch."""
        return planned_steps([self.epochs[epoch]], self.contract)

    def epoch_of(self, step: int) -> int:
        """Epoch of a 1-based step; the first one's before any step."""
        ends = list(accumulate(self.steps_of(epoch) for epoch in range(len(self.epochs))))
        return bisect_left(ends, step) if step else 0

    def left_out(self, epoch: int) -> int:
        """Times that the curriculum has kept a row out, in the epochs up to this one."""
        levels = histogram(self.difficulties)
        admitted = rows_per_epoch(len(self.difficulties), self.contract, difficulties=levels)[: epoch + 1]
        return sum(len(self.difficulties) - rows for rows in admitted)

    def after(self, done: int) -> Iterator[Step]:
        """The steps after the first ``done``."""
        size, number = self.contract.exec.batch_size * self.contract.exec.grad_accum, 0
        for epoch, rows in enumerate(self.epochs):
            steps = planned_steps([rows], self.contract)
            if number + steps <= done:
                number += steps
                continue
            order = mixed_order(self.difficulties, self.replay, self.contract, epoch).tolist()
            for start in range(0, rows, size):
                number += 1
                if number > done:
                    yield Step(epoch, number, order[start : start + size])
