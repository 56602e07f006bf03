"""Selects the rows of each epoch and step: order, curriculum (easy rows first) and replay (rows of a second file).
Pure.

The order is a pure function of difficulties, sizes, contract, epoch and the replay file's rows at risk, so a resumed
run needs no cursor. The replay file is shuffled once. Its rows at risk come first in an epoch's share
(`worker/training/self_evaluation/replay_risk.py`). The others continue where the previous epoch's share ended, and
start over at the end of the file. So no row occurs twice in an epoch and, without rows at risk, the numbers of times
that any two rows occur in a run differ by at most one.
"""

from __future__ import annotations

import random
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate

import numpy as np
import numpy.typing as npt

from shared.contract.contracts import FineTuneContract
from shared.contract.epochs import (
    HARDEST,
    MOST_WATCHED,
    Histogram,
    admitted_per_epoch,
    highest_difficulty,
    replayed_rows,
    rows_per_epoch,
)
from shared.contract.plan import planned_steps


def nothing_at_risk(_epoch: int) -> Sequence[int]:
    """Return no rows; used before any loss is known."""
    return ()


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
class RowOrder:
    """The order of a whole run.

    Attributes:
        difficulties: difficulties of the training rows, (rows,).
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
        """Number of optimizer steps of all epochs, including an epoch's last, incomplete step."""
        return planned_steps(self.epochs, self.contract)

    @cached_property
    def last_steps(self) -> list[int]:
        """Number of each epoch's last step."""
        return list(accumulate(self.steps_of(epoch) for epoch in range(len(self.epochs))))

    def steps_of(self, epoch: int) -> int:
        """Return the optimizer steps of an epoch."""
        return planned_steps([self.epochs[epoch]], self.contract)

    def epoch_of(self, step: int) -> int:
        """Return the epoch of a 1-based step; 0 before any step."""
        return bisect_left(self.last_steps, step) if step else 0

    def ends_epoch(self, step: Step) -> bool:
        """Return whether a step is the last one of its epoch."""
        return step.number == self.last_steps[step.epoch]

    def left_out(self, epoch: int) -> int:
        """Return how many rows the curriculum has left out, summed over the epochs up to this one."""
        levels = histogram(self.difficulties)
        admitted = rows_per_epoch(len(self.difficulties), self.contract, difficulties=levels)[: epoch + 1]
        return sum(len(self.difficulties) - rows for rows in admitted)

    def step_tokens(self, lengths: Indices) -> list[int]:
        """Return the number of tokens of each step of the run, as if no replay row were at risk.

        Args:
            lengths: lengths of the rows by number: the training rows, then those of the replay file.
        """
        size = self.contract.exec.batch_size * self.contract.exec.grad_accum
        tokens: list[int] = []
        for epoch, rows in enumerate(self.epochs):
            if rows:
                order = mixed_order(self.difficulties, self.replay, self.contract, epoch)
                tokens += np.add.reduceat(lengths[order], np.arange(0, rows, size)).tolist()
        return tokens

    @cached_property
    def watched(self) -> list[int]:
        """Rows of the replay file whose loss is measured: twice as many as an epoch replays, starting with those whose
        turn comes first.
        """
        most = max(replays_per_epoch(self.difficulties, self.replay, self.contract), default=0)
        walk = _replay_walk(self.replay, self.contract)
        rows: list[int] = walk[: min(2 * most, MOST_WATCHED)].tolist()
        return rows

    def after(self, done: int, at_risk: Callable[[int], Sequence[int]] = nothing_at_risk) -> Iterator[Step]:
        """Yield the steps after the first ``done``.

        Args:
            at_risk: returns the replay file's rows at risk, the largest risk first; called with each epoch before the
                first of its steps that is yielded.
        """
        size, number = self.contract.exec.batch_size * self.contract.exec.grad_accum, 0
        for epoch, rows in enumerate(self.epochs):
            steps = planned_steps([rows], self.contract)
            if number + steps <= done:
                number += steps
                continue
            order = mixed_order(self.difficulties, self.replay, self.contract, epoch, at_risk(epoch)).tolist()
            for start in range(0, rows, size):
                number += 1
                if number > done:
                    yield Step(epoch, number, order[start : start + size])


Difficulties = npt.NDArray[np.uint8]
"""Difficulties of the training rows, 1 to 10."""
Indices = npt.NDArray[np.int64]


def histogram(difficulties: Difficulties) -> Histogram:
    """Return the number of rows by difficulty."""
    counts = np.bincount(difficulties, minlength=HARDEST + 1)
    return {level: int(rows) for level, rows in enumerate(counts) if rows}


def admitted(difficulties: Difficulties, contract: FineTuneContract, epoch: int) -> npt.NDArray[np.bool_]:
    """Return which rows are easy enough for this epoch."""
    mask: npt.NDArray[np.bool_] = difficulties <= highest_difficulty(contract, epoch)
    return mask


def epoch_order(difficulties: Difficulties, contract: FineTuneContract, epoch: int) -> Indices:
    """Return indices of the epoch's rows in training order, each once.

    Shuffled with the contract's seed and the epoch; under a curriculum the easy ones come first, and rows of one
    difficulty are shuffled among themselves.
    """
    order = shuffled(np.flatnonzero(admitted(difficulties, contract, epoch)), f"epoch-{contract.exec.seed}-{epoch}")
    if contract.curriculum.enabled:
        order = order[np.argsort(difficulties[order], kind="stable")]
    return order


def shuffled(indices: Indices, seed: str) -> Indices:
    """Return the indices in an order that only the seed determines, and not the release of NumPy."""
    order = indices.tolist()
    random.Random(seed).shuffle(order)
    return np.array(order, dtype=np.int64)


def mixed_order(
    difficulties: Difficulties, replay: int, contract: FineTuneContract, epoch: int, at_risk: Sequence[int] = ()
) -> Indices:
    """Return the indices of the epoch's rows in training order.

    Args:
        difficulties: difficulties of the training rows, shape (rows,).
        replay: number of rows of the replay file; 0 without one.
        contract: curriculum, replay ratio, seed.
        epoch: number of the epoch, from 0.
        at_risk: rows of the replay file that come before its other rows in this epoch, as known when the epoch begins.
            Their places among the training rows are random.

    Returns:
        Indices into the training rows followed by the replay rows: ``i < len(difficulties)`` is a training row, the
        rest is replay row ``i - len(difficulties)``. The training rows keep their curriculum order.
    """
    order = epoch_order(difficulties, contract, epoch)
    if not replay:
        return order
    drawn = replay_draw(difficulties, replay, contract, epoch, at_risk)
    places = random.Random(f"replay-places-{contract.exec.seed}-{epoch}").sample(
        range(len(order) + len(drawn)), len(drawn)
    )
    mixed = np.empty(len(order) + len(drawn), dtype=np.int64)
    is_replay = np.zeros(len(mixed), dtype=np.bool_)
    is_replay[places] = True
    mixed[is_replay] = drawn + len(difficulties)
    mixed[~is_replay] = order
    return mixed


def replay_contract(contract: FineTuneContract) -> FineTuneContract:
    """Return the contract that the replay file is prepared under, without its context filter, which concerns only the
    new data.
    """
    return contract.model_copy(update={"data": contract.data.model_copy(update={"context_filter": None})})


def replays_per_epoch(difficulties: Difficulties, replay: int, contract: FineTuneContract) -> list[int]:
    """Return how many rows of the replay file each epoch mixes in."""
    return [
        replayed_rows(rows, replay, contract.data.replay_ratio)
        for rows in admitted_per_epoch(histogram(difficulties), contract)
    ]


def _replay_walk(replay: int, contract: FineTuneContract) -> Indices:
    return shuffled(np.arange(replay, dtype=np.int64), f"replay-{contract.exec.seed}")


def replay_draw(
    difficulties: Difficulties, replay: int, contract: FineTuneContract, epoch: int, at_risk: Sequence[int] = ()
) -> Indices:
    """Return the rows of the replay file that this epoch mixes in: indices into that file, each once.

    Args:
        at_risk: rows that come first; the other rows follow in turn.
    """
    counts, walk = replays_per_epoch(difficulties, replay, contract), _replay_walk(replay, contract)
    turn = walk[np.arange(sum(counts[:epoch]), sum(counts[:epoch]) + replay) % replay]
    first = np.array(at_risk, dtype=np.int64)
    drawn: Indices = np.concatenate([first, turn[~np.isin(turn, first)]])[: counts[epoch]]
    return drawn
