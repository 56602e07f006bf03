"""Which rows of the training file an epoch takes, and in which order: a pure function of difficulties, contract, epoch."""

from __future__ import annotations

import random

import numpy as np
import numpy.typing as npt

from shared.contract import FineTuneContract
from shared.epochs import HARDEST, Histogram, highest_difficulty

Difficulties = npt.NDArray[np.uint8]
"""Of every row that is trained on, 1 to 10."""
Indices = npt.NDArray[np.int64]


def histogram(difficulties: Difficulties) -> Histogram:
    """Rows by difficulty."""
    counts = np.bincount(difficulties, minlength=HARDEST + 1)
    return {level: int(rows) for level, rows in enumerate(counts) if rows}


def admitted(difficulties: Difficulties, contract: FineTuneContract, epoch: int) -> npt.NDArray[np.bool_]:
    """Which rows are easy enough for this epoch."""
    mask: npt.NDArray[np.bool_] = difficulties <= highest_difficulty(contract, epoch)
    return mask


def epoch_order(difficulties: Difficulties, contract: FineTuneContract, epoch: int) -> Indices:
    """Indices of the epoch's rows as they are trained on, each once.

    Shuffled with the contract's seed and the epoch; under a curriculum the easy ones come first, and rows of one
    difficulty are shuffled among themselves.
    """
    order = shuffled(np.flatnonzero(admitted(difficulties, contract, epoch)), f"epoch-{contract.exec.seed}-{epoch}")
    if contract.curriculum.enabled:
        order = order[np.argsort(difficulties[order], kind="stable")]
    return order


def shuffled(indices: Indices, seed: str) -> Indices:
    """The indices in an order that the seed decides, the same with every release of NumPy."""
    order = indices.tolist()
    random.Random(seed).shuffle(order)
    return np.array(order, dtype=np.int64)
