"""Difficulty bounds of an epoch (curriculum), and the number of its rows: pure rules, for the planner and the trainer.

Progress, warm-up and the cosine need the number of steps of a whole run before its first one, so both use these rules.

- **Curriculum**: each epoch admits the rows up to a difficulty. A row that states none counts as 5.
- **Replay**: rows of a second file, mixed into each epoch so that the model keeps what it could do.

Epochs are counted from 0.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from shared.contract.contracts import FineTuneContract
from shared.errors import Code, ContractRejected

EASIEST_CEILING = 3
HARDEST = 10
DEFAULT_DIFFICULTY = 5
"""Difficulty of a row that states none."""
MOST_WATCHED = 256
"""Maximum number of replay rows whose loss is measured: each costs one forward pass per epoch."""

Histogram = Mapping[int, int]
"""Number of rows by difficulty."""


def highest_difficulty(contract: FineTuneContract, epoch: int) -> int:
    """Return the highest difficulty of this epoch's rows.

    This is the schedule's value for the epoch, or its last earlier value if it has none for this epoch. Without a
    schedule, the bound rises linearly from 3 in the first epoch to 10 in the last, rounded up. Without a curriculum, it
    is 10.
    """
    if not contract.curriculum.enabled:
        return HARDEST
    if schedule := contract.exec.curriculum_schedule:
        stated = [schedule.epoch_1_max_difficulty, schedule.epoch_2_max_difficulty, schedule.epoch_3_max_difficulty]
        for ceiling in reversed(stated[: epoch + 1]):
            if ceiling is not None:
                return ceiling
    if contract.exec.epochs == 1:
        return HARDEST
    rise = (HARDEST - EASIEST_CEILING) * epoch
    return EASIEST_CEILING + math.ceil(rise / (contract.exec.epochs - 1))


def phase_of(contract: FineTuneContract, epoch: int) -> str | None:
    """Return the schedule's name for this epoch, or its last name for later epochs; None without a curriculum or names."""
    schedule = contract.exec.curriculum_schedule
    if not (contract.curriculum.enabled and schedule and schedule.curriculum_phases):
        return None
    return schedule.curriculum_phases[min(epoch, len(schedule.curriculum_phases) - 1)]


def admitted_per_epoch(difficulties: Histogram, contract: FineTuneContract) -> list[int]:
    """Count the rows of the training file in each epoch.

    Raises:
        ContractRejected: ``CORPUS_TOO_SMALL``: an epoch would have none.
    """
    ceilings = [highest_difficulty(contract, epoch) for epoch in range(contract.exec.epochs)]
    admitted = [sum(rows for level, rows in difficulties.items() if level <= ceiling) for ceiling in ceilings]
    if 0 in admitted:
        epoch = admitted.index(0)
        easiest = min((level for level, rows in difficulties.items() if rows), default=DEFAULT_DIFFICULTY)
        raise ContractRejected(
            Code.CORPUS_TOO_SMALL,
            f"Epoch {epoch + 1} has no rows: the curriculum admits a difficulty of {ceilings[epoch]} at most, but the "
            f"easiest row has {easiest} (a row without a difficulty counts as {DEFAULT_DIFFICULTY}).",
            remedy=f"Raise that epoch's bound in exec.curriculum_schedule to {easiest} or more, state the rows'"
            " difficulty, or set curriculum.enabled to false.",
            param="exec.curriculum_schedule",
        )
    return admitted


def replayed_rows(rows: int, available: int, ratio: float) -> int:
    """Return the number of replayed rows in an epoch of ``rows`` other rows: ⌈ratio·rows⌉, at most the whole file."""
    # Rounded first, because in floating point 0.1 · 70 is a little over 7.
    return min(math.ceil(round(ratio * rows, 9)), available)


def rows_per_epoch(
    rows: int, contract: FineTuneContract, *, difficulties: Histogram | None = None, replay: int = 0
) -> list[int]:
    """Return the rows of each epoch: the admitted ones and the replayed ones.

    Args:
        rows: rows that are trained on, a validation split taken out.
        contract: epochs, curriculum, and the share of replayed rows.
        difficulties: difficulties of exactly these rows give an exact result; those of the rows before the split, or
            None, give an upper bound.
        replay: rows of the replay file; 0 without one.

    Raises:
        ContractRejected: see :func:`admitted_per_epoch`.
    """
    admitted = [rows] * contract.exec.epochs
    if contract.curriculum.enabled and difficulties is not None:
        admitted = [min(rows, easy) for easy in admitted_per_epoch(difficulties, contract)]
    return [easy + replayed_rows(easy, replay, contract.data.replay_ratio) for easy in admitted]
